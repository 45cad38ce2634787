//! A host for functions without Python: the test binary itself, started once more.
//!
//! It is a real process that speaks what every host speaks. A function is a line of text, such as
//! `double index`; [`Doing`] lists what there is, also the ways in which a function or a host can
//! fail. A test binary that runs functions has a test of its own to be started as a host:
//!
//! ```
//! feedline_testkit::serve_functions!();
//! ```

use feedline_core::{BufferMut, DType, Shape};
use feedline_engine::host::{
    Answer, Environment, HELLO, HostCommand, Hosts, Input, Outcome, Place, Request, Verb,
};
use feedline_shm::{Mappings, Segments, View, receive_with_descriptors, send_with_descriptor};
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Says that a test binary was started as a host.
const ASKED: &str = "FEEDLINE_TEST_HOST";

/// Processes of this test binary that run functions.
#[must_use]
pub fn test_hosts() -> Hosts {
    Hosts::new(test_host_command())
}

/// The command that starts this test binary as a host.
///
/// # Panics
///
/// If the test does not know its own file.
#[must_use]
pub fn test_host_command() -> HostCommand {
    let own = std::env::current_exe().expect("a test knows its own file");
    let words = ["functions_are_served", "--exact", "--nocapture", "--quiet"].map(Into::into);
    let mut command = HostCommand::new([vec![own.into()], words.to_vec()].concat());
    command.environment = Environment::Whole;
    command.variables = vec![(ASKED.into(), "1".into())];
    command
}

/// Makes a test binary one that can be started as a host.
#[macro_export]
macro_rules! serve_functions {
    () => {
        #[test]
        fn functions_are_served() {
            $crate::serve_if_asked();
        }
    };
}

/// Serves until the engine hangs up, if this process was started for that.
///
/// # Panics
///
/// If the engine says something that no engine says.
pub fn serve_if_asked() {
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    // SAFETY: a host's standard input is a socket, which nothing else in this process reads.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    let served = serve(&socket);
    // Not by returning: the test's own report is of no interest.
    std::process::exit(i32::from(served.is_err()));
}

/// What a function does, by the first word of its line; the second names a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Doubles a whole number.
    Double,
    /// Adds a random number below 1,000 to a whole number.
    Jitter,
    /// Keeps all even numbers.
    Even,
    /// Keeps nothing.
    Nothing,
    /// Gives as many numbers as the whole number says.
    Count,
    /// Gives everything back as it is.
    Same,
    /// Fails where the number is 2.
    Fail,
    /// Ends its process where the number is 2.
    Exit,
    /// Ends its process where the number is 2, for the first time.
    Stumble,
    /// Never answers where the number is 2.
    Hang,
    /// Answers noise.
    Noise,
    /// Says that a huge answer comes.
    Huge,
    /// Hangs up in the middle of an answer.
    Half,
    /// Gives an array that lies outside its segment.
    Outside,
    /// Cannot be loaded.
    Refuse,
}

impl Doing {
    const ALL: [(&'static str, Self); 15] = [
        ("double", Self::Double),
        ("jitter", Self::Jitter),
        ("even", Self::Even),
        ("nothing", Self::Nothing),
        ("count", Self::Count),
        ("same", Self::Same),
        ("fail", Self::Fail),
        ("exit", Self::Exit),
        ("stumble", Self::Stumble),
        ("hang", Self::Hang),
        ("noise", Self::Noise),
        ("huge", Self::Huge),
        ("half", Self::Half),
        ("outside", Self::Outside),
        ("refuse", Self::Refuse),
    ];
}

/// What came out of a function: fields with their bytes, or something else.
enum Made {
    Fields(Vec<(Place, Vec<u8>)>),
    Said(Outcome),
}

/// The engine's segments: the one that is read at present.
struct Reader {
    mappings: Mappings,
    last: Option<u32>,
}

fn serve(socket: &UnixStream) -> io::Result<()> {
    (&*socket).write_all(HELLO)?;
    let mut reader = Reader { mappings: Mappings::new(View::ReadOnly, 1 << 40, 16), last: None };
    let segments = Segments::new(1 << 40);
    let (mut functions, mut shown): (Vec<(Doing, String)>, Vec<u32>) = (Vec::new(), Vec::new());
    let (mut kept, mut free): (Vec<(u32, BufferMut)>, Vec<u32>) = (Vec::new(), Vec::new());
    loop {
        let (mut head, mut descriptors) = ([0; 4], Vec::new());
        if !fill(socket, &mut head, &mut descriptors)? {
            return Ok(());
        }
        let mut message = vec![0; u32::from_le_bytes(head) as usize];
        fill(socket, &mut message, &mut descriptors)?;
        let request = Request::decode(&message)?;
        if let Some(descriptor) = descriptors.pop() {
            if let Some(last) = reader.last.replace(request.segment) {
                reader.mappings.remove(last)?;
            }
            reader.mappings.add(request.segment, request.size as usize, descriptor)?;
        }
        free.extend(&request.free);
        let (mut outcomes, mut made) = (Vec::new(), Vec::new());
        for input in &request.samples {
            let values = input.fields.iter().map(|place| reader.read(request.segment, place));
            let values = values.collect::<io::Result<Vec<_>>>()?;
            made.push(match request.verb {
                Verb::Load => {
                    let line = String::from_utf8_lossy(&values[0]).into_owned();
                    let (word, field) = line.split_once(' ').unwrap_or((&line, ""));
                    let known = Doing::ALL.iter().find(|(name, _)| *name == word);
                    match known.map_or(Doing::Refuse, |(_, doing)| *doing) {
                        Doing::Refuse => {
                            Made::Said(Outcome::Failed(format!("there is no function {word:?}")))
                        }
                        doing => {
                            functions.push((doing, field.to_owned()));
                            Made::Said(Outcome::Yes)
                        }
                    }
                }
                Verb::Map | Verb::Filter => {
                    let (doing, field) = &functions[request.function as usize];
                    call(*doing, field, input, values, socket)?
                }
            });
        }
        let bytes = made.iter().flat_map(|made| match made {
            Made::Fields(fields) => fields.as_slice(),
            Made::Said(_) => &[],
        });
        let bytes: usize = bytes.map(|(_, bytes)| bytes.len().next_multiple_of(64)).sum();
        let (mut out, mut end) = (None, 0);
        for made in made {
            outcomes.push(match made {
                Made::Said(outcome) => outcome,
                Made::Fields(fields) => {
                    let buffer = match &mut out {
                        Some(buffer) => buffer,
                        None => out.insert(room(&segments, &mut kept, &mut free, bytes)?),
                    };
                    Outcome::Sample(place(fields, buffer, &mut end))
                }
            });
        }
        let located = out.as_ref().and_then(|buffer| segments.locate(buffer));
        let number = located.as_ref().map_or(0, |(segment, _)| segment.number());
        let new = located.filter(|_| !shown.contains(&number));
        let size = new.as_ref().map_or(0, |(segment, _)| segment.size() as u64);
        let bytes = Answer { segment: number, size, gone: Vec::new(), outcomes }.encode()?;
        let sent = match &new {
            Some((segment, _)) => send_with_descriptor(socket, &bytes, segment.descriptor())?,
            None => 0,
        };
        (&*socket).write_all(&bytes[sent..])?;
        shown.extend(new.map(|_| number));
        kept.extend(out.map(|buffer| (number, buffer)));
    }
}

impl Reader {
    fn read(&self, segment: u32, place: &Place) -> io::Result<Vec<u8>> {
        let (offset, bytes) = (place.offset as usize, place.bytes as usize);
        Ok(self.mappings.region(segment, offset, bytes, || {})?.to_vec())
    }
}

/// A buffer in a segment that the engine has freed, or in a new one.
fn room(
    segments: &Segments,
    kept: &mut Vec<(u32, BufferMut)>,
    free: &mut Vec<u32>,
    bytes: usize,
) -> io::Result<BufferMut> {
    let fits = |(number, buffer): &(u32, BufferMut)| free.contains(number) && buffer.len() >= bytes;
    if let Some(at) = kept.iter().position(fits) {
        let (number, buffer) = kept.swap_remove(at);
        free.retain(|free| *free != number);
        return Ok(buffer);
    }
    let taken = segments.take(bytes.max(4096)).map_err(io::Error::other)?;
    taken.ok_or_else(|| io::Error::other("no shared memory"))
}

fn place(fields: Vec<(Place, Vec<u8>)>, buffer: &mut BufferMut, end: &mut usize) -> Vec<Place> {
    let mut places = Vec::new();
    for (mut place, bytes) in fields {
        buffer[*end..*end + bytes.len()].copy_from_slice(&bytes);
        (place.offset, place.bytes) = (*end as u64 + place.offset, bytes.len() as u64);
        places.push(place);
        *end += bytes.len().next_multiple_of(64);
    }
    places
}

/// Reads until the bytes are full; false if the engine hung up before the first.
fn fill(
    socket: &UnixStream,
    bytes: &mut [u8],
    descriptors: &mut Vec<std::os::fd::OwnedFd>,
) -> io::Result<bool> {
    let mut have = 0;
    while have < bytes.len() {
        match receive_with_descriptors(socket.as_fd(), &mut bytes[have..], descriptors)? {
            0 if have == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => have += received,
        }
    }
    Ok(true)
}

fn call(
    doing: Doing,
    field: &str,
    input: &Input,
    values: Vec<Vec<u8>>,
    socket: &UnixStream,
) -> io::Result<Made> {
    let mut fields: Vec<(Place, Vec<u8>)> = input.fields.iter().cloned().zip(values).collect();
    fields.iter_mut().for_each(|(place, _)| place.offset = 0);
    let Some(at) = fields.iter().position(|(place, _)| place.name == field) else {
        return Ok(Made::Said(Outcome::Failed(format!("there is no field {field:?}"))));
    };
    let number = <[u8; 8]>::try_from(&fields[at].1[..]).map(i64::from_le_bytes).unwrap_or(0);
    let set = |mut fields: Vec<(Place, Vec<u8>)>, number: i64| {
        fields[at].1 = number.to_le_bytes().to_vec();
        Ok(Made::Fields(fields))
    };
    match doing {
        Doing::Double => set(fields, number.wrapping_mul(2)),
        Doing::Jitter => set(fields, number + (input.seed[0] % 1000) as i64),
        Doing::Even if number % 2 == 0 => Ok(Made::Said(Outcome::Yes)),
        Doing::Even | Doing::Nothing => Ok(Made::Said(Outcome::No)),
        Doing::Count => {
            let length = number.clamp(0, 1000) as usize;
            fields[at].0.shape = Shape::from_slice(&[length]);
            fields[at].0.dtype = DType::U8;
            fields[at].1 = (0..length).map(|each| each as u8).collect();
            Ok(Made::Fields(fields))
        }
        Doing::Fail if number == 2 => Ok(Made::Said(Outcome::Failed("it is a two".into()))),
        Doing::Exit if number == 2 => std::process::exit(3),
        Doing::Stumble if number == 2 && input.seed[0].is_multiple_of(2) => {
            // The first process that meets it leaves a note for the others.
            let note = std::env::temp_dir()
                .join(format!("feedline-stumbled-{}", rustix::process::getppid().map_or(0, pid)));
            match std::fs::File::create_new(&note) {
                Ok(_) => std::process::abort(),
                Err(_) => {
                    let _ = std::fs::remove_file(&note);
                    Ok(Made::Fields(fields))
                }
            }
        }
        Doing::Hang if number == 2 => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Doing::Noise => {
            (&*socket).write_all(&[8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])?;
            std::thread::sleep(Duration::from_secs(3600));
            Ok(Made::Fields(fields))
        }
        Doing::Huge => {
            (&*socket).write_all(&[0xff; 16])?;
            std::thread::sleep(Duration::from_secs(3600));
            Ok(Made::Fields(fields))
        }
        Doing::Half => {
            (&*socket).write_all(&[200, 0, 0, 0, 1])?;
            std::process::exit(0)
        }
        Doing::Outside => {
            fields[at].0.offset = 1 << 40;
            Ok(Made::Fields(fields))
        }
        _ => Ok(Made::Fields(fields)),
    }
}

fn pid(pid: rustix::process::Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
