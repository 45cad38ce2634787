//! Descriptors over Unix sockets.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many descriptors are taken at a time; a sender sends one.
const AT_ONCE: usize = 4;

/// Whether the process at the other end runs as the same user.
///
/// # Errors
///
/// If the system does not say.
pub fn peer_is_same_user(socket: impl AsFd) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(peer.uid == rustix::process::geteuid())
}

/// Sends bytes and one descriptor with them; how many bytes were sent. The descriptor goes with the
/// first byte.
///
/// # Errors
///
/// If the socket does not take them.
pub fn send_with_descriptor(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "room for one was made");
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Receives bytes, and whatever descriptors came with them; how many bytes there were.
///
/// # Errors
///
/// If the socket fails, or more descriptors came than are taken.
pub fn receive_with_descriptors(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        match recvmsg(&socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        let message = format!("a peer sent more than {AT_ONCE} descriptors at once");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_the_bytes_it_was_sent_with() {
        let (left, right) = UnixStream::pair().unwrap();
        assert!(peer_is_same_user(&left).unwrap());
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut file = std::fs::File::from(rustix::fs::memfd_create("test", flags).unwrap());
        file.write_all(b"inside").unwrap();
        assert_eq!(send_with_descriptor(&left, b"hello", file.as_fd()).unwrap(), 5);
        let (mut bytes, mut descriptors) = ([0; 16], Vec::new());
        assert_eq!(receive_with_descriptors(&right, &mut bytes, &mut descriptors).unwrap(), 5);
        let mut read = String::new();
        let mut file = std::fs::File::from(descriptors.pop().unwrap());
        file.rewind().unwrap();
        file.read_to_string(&mut read).unwrap();
        assert_eq!((&bytes[..5], &read[..]), (&b"hello"[..], "inside"));
    }
}
