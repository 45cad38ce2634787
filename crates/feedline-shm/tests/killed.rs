//! A producer that is killed takes nothing with it and leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "the test ends otherwise")]

use feedline_shm::{Mappings, Segments, View, receive_with_descriptors, send_with_descriptor};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;

const CHILD: &str = "FEEDLINE_TEST_KILLED";
const LENGTH: usize = 1 << 20;

#[test]
fn what_a_killed_producer_sent_stays_readable_and_is_freed_with_its_last_reader() {
    if let Some(name) = std::env::var_os(CHILD) {
        return produce(&name.into_string().unwrap());
    }
    let name = format!("feedline-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
        .env(CHILD, &name)
        .spawn()
        .unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    let (mut bytes, mut descriptors) = ([0; 8], Vec::<OwnedFd>::new());
    let count = receive_with_descriptors(&socket, &mut bytes, &mut descriptors).unwrap();
    assert_eq!((count, descriptors.len()), (8, 1));
    let size = u64::from_le_bytes(bytes) as usize;
    let mut mappings = Mappings::new(View::ReadOnly, 4 << 20, 4);
    mappings.add(0, size, descriptors.remove(0)).unwrap();
    let region = mappings.region(0, 0, LENGTH, || ()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The socket says that the producer is gone; its bytes are still there, all of them.
    assert_eq!(socket.read(&mut bytes).unwrap(), 0);
    assert!(region.iter().all(|byte| *byte == 7));
    assert!(maps().contains("memfd:feedline"));
    drop(region);
    drop(mappings);
    assert!(!maps().contains("memfd:feedline"));
    assert!(open_files().iter().all(|file| !file.contains("memfd:feedline")));
    let named = std::fs::read_dir("/dev/shm").map_or(0, |dir| {
        let ours = |name: &str| name.contains("feedline");
        dir.flatten().filter(|entry| ours(&entry.file_name().to_string_lossy())).count()
    });
    assert_eq!(named, 0);
}

fn produce(name: &str) {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let socket = UnixStream::connect_addr(&address).unwrap();
    let segments = Segments::new(4 << 20);
    let mut buffer = segments.take(LENGTH).unwrap().unwrap();
    buffer.fill(7);
    let (segment, _) = segments.locate(&buffer).unwrap();
    let size = (segment.size() as u64).to_le_bytes();
    send_with_descriptor(&socket, &size, segment.descriptor()).unwrap();
    // Until killed, or until the other side is gone.
    let _ = (&socket).read(&mut [0]);
}

fn maps() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap()
}

fn open_files() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}
