//! One process that runs functions: asked, listened to, and ended.

use super::command::HostCommand;
use super::message::{Answer, Input, LONGEST, Outcome, Place, Request, Verb};
use super::{HELLO, memory};
use feedline_core::{
    Buffer, BufferMut, Cancel, Context, DType, Error, Function, Made, Makes, Name, Result, Sample,
    SampleSeed, Tensor, Value,
};
use feedline_shm::{Mappings, Segments, View, receive_with_descriptors, send_with_descriptor};
use rustix::process::{Pid, Signal};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a host may take to say that it is there, and a function to be loaded.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked whether anyone still waits for the answer.
const GLANCE: Duration = Duration::from_millis(20);
/// A host has no more segments than this, and no more bytes in them.
const MOST_SEGMENTS: usize = 64;
const MOST_BYTES: usize = 16 << 30;
/// More names than any function gives fields.
const MOST_NAMES: usize = 1024;

/// Why there is no answer.
pub(super) enum Fault {
    /// It was not asked: the request would be too long.
    Unsaid(String),
    /// The process is gone, for this reason.
    Ended(String),
    /// The process does not answer in time.
    Late,
    /// The process says what no host says.
    Nonsense(String),
    /// Nobody wants the answer any more.
    Cancelled,
    /// Nothing can be called here, whatever the sample.
    Fatal(Error),
}

/// A process that runs functions.
pub(super) struct Process {
    child: Child,
    socket: UnixStream,
    /// The process that started it.
    home: u32,
    greeted: bool,
    segments: Segments,
    /// What goes in is written here.
    input: Option<BufferMut>,
    /// The segment that the host knows of.
    announced: Option<u32>,
    /// What comes out lies here.
    mappings: Mappings,
    leases: Arc<memory::Leases>,
    loaded: HashMap<Arc<str>, u32>,
    names: HashMap<String, Name>,
}

impl Process {
    /// Starts one. It ends with the thread that calls this.
    pub(super) fn start(command: &HostCommand, segments: Segments) -> Result<Self> {
        let unavailable = |error| Error::unavailable("a socket for a host", error);
        let (own, theirs) = UnixStream::pair().map_err(unavailable)?;
        own.set_read_timeout(Some(GLANCE)).map_err(unavailable)?;
        own.set_write_timeout(Some(PATIENCE)).map_err(unavailable)?;
        let child = command.start(OwnedFd::from(theirs))?;
        Ok(Self {
            child,
            socket: own,
            home: std::process::id(),
            greeted: false,
            segments,
            input: None,
            announced: None,
            mappings: Mappings::new(View::ReadOnly, MOST_BYTES, MOST_SEGMENTS),
            leases: Arc::default(),
            loaded: HashMap::new(),
            names: HashMap::new(),
        })
    }

    /// Writes samples to where the host can read them, computing values that were deferred. Each is
    /// ready, or bad.
    pub(super) fn prepare(
        &mut self,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Result<Vec<Result<Input>>> {
        let mut end = 0;
        let laid: Vec<_> = samples
            .into_iter()
            .map(|(seed, sample)| {
                context.seed = seed;
                let mut draws = context.draws();
                let drawn = [draws.next_u64(), draws.next_u64()];
                (seed, lay(sample, &mut end).map(|(fields, values)| (drawn, fields, values)))
            })
            .collect();
        let room = self.room(end)?;
        let inputs = laid.into_iter().map(|(at, laid)| {
            let (seed, fields, values) = laid?;
            context.seed = at;
            for (offset, value) in values {
                let bytes = value.bytes();
                value.write(&mut room[offset..offset + bytes], context)?;
            }
            Ok(Input { seed, fields })
        });
        Ok(inputs.collect())
    }

    /// At least so many bytes that the host can read.
    fn room(&mut self, bytes: usize) -> Result<&mut BufferMut> {
        if self.input.as_ref().is_none_or(|input| input.len() < bytes) {
            self.forget_input();
            self.input = Some(memory::take(&self.segments, bytes.max(1) + bytes / 4)?);
        }
        Ok(self.input.as_mut().expect("it was just made"))
    }

    fn forget_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.segments.retire(&input);
        }
    }

    /// Takes what was written for the host out, to have another one read it.
    pub(super) fn take_input(&mut self) -> Option<BufferMut> {
        self.input.take()
    }

    /// Gives the host something to read that was written for another one.
    pub(super) fn set_input(&mut self, input: BufferMut) {
        self.forget_input();
        self.input = Some(input);
    }

    /// Calls a function with samples that were prepared: what it made of each, or how it failed.
    pub(super) fn call(
        &mut self,
        function: &Function,
        inputs: &[Input],
        context: &mut Context<'_>,
    ) -> Result<Vec<Result<Made, String>>, Fault> {
        let cancel = context.workspace.cancel.clone();
        let number = match self.loaded.get(&function.code) {
            Some(number) => *number,
            None => {
                let start = Instant::now();
                self.greet(&cancel)?;
                let loaded = self.load(function, &cancel);
                context.workspace.once_nanos += start.elapsed().as_nanos() as u64;
                loaded?
            }
        };
        let verb = match function.makes {
            Makes::Sample => Verb::Map,
            Makes::Decision => Verb::Filter,
        };
        let memory = self.input.take();
        let request = (verb, function.random, number);
        let timeout = function.timeout.saturating_mul(inputs.len() as u32);
        let answer = self.ask(request, inputs, memory.as_deref(), timeout, &cancel);
        self.input = memory;
        let (outcomes, segment) = answer?;
        let bytes = outcomes.iter().map(|outcome| match outcome {
            Outcome::Sample(places) => places.iter().map(|place| place.bytes).sum(),
            _ => 0u64,
        });
        let total = bytes.fold(0, u64::saturating_add);
        // Where nothing but decisions and failures came, no segment was used, whatever number is said.
        let samples = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Sample(_)));
        let lease = samples.then(|| self.leases.lease(segment));
        let copies = total <= memory::SMALL || self.leases.out() > memory::MOST_LEASES;
        let mut made = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            made.push(match (outcome, function.makes) {
                (Outcome::Sample(places), Makes::Sample) => {
                    let lease = lease.as_ref().expect("a sample came");
                    self.tensors((segment, lease), places, copies, context)?.map(Made::Sample)
                }
                (Outcome::Yes, Makes::Decision) => Ok(Made::Decision(true)),
                (Outcome::No, Makes::Decision) => Ok(Made::Decision(false)),
                (Outcome::Failed(text), _) => Err(text),
                _ => {
                    let what = "an outcome of another kind than was asked for";
                    return Err(Fault::Nonsense(what.into()));
                }
            });
        }
        Ok(made)
    }

    /// Waits until the host is there.
    fn greet(&mut self, cancel: &Cancel) -> Result<(), Fault> {
        if self.greeted {
            return Ok(());
        }
        let (mut hello, mut descriptors) = (Vec::new(), Vec::new());
        let until = Instant::now() + PATIENCE;
        let read = self.receive(&mut hello, HELLO.len(), &mut descriptors, until, cancel);
        let what = "the host for functions";
        read.map_err(|fault| match fault {
            Fault::Ended(how) => Fault::Fatal(Error::unavailable(
                what,
                io::Error::other(format!("its process {how} before it was ready")),
            )),
            Fault::Late => Fault::Fatal(Error::unavailable(
                what,
                io::Error::new(io::ErrorKind::TimedOut, "its process did not get ready"),
            )),
            other => other,
        })?;
        if hello != HELLO {
            return Err(Fault::Fatal(Error::unavailable(
                what,
                io::Error::other("the command is none: it begins with something else"),
            )));
        }
        self.greeted = true;
        Ok(())
    }

    /// Brings a function.
    fn load(&mut self, function: &Function, cancel: &Cancel) -> Result<u32, Fault> {
        let number = self.loaded.len() as u32;
        let code = function.bytes.data();
        let mut room = memory::take(&self.segments, code.len().max(1)).map_err(Fault::Fatal)?;
        room[..code.len()].copy_from_slice(code);
        let place = Place {
            name: "code".to_owned(),
            dtype: DType::Bytes,
            shape: Default::default(),
            offset: 0,
            bytes: code.len() as u64,
        };
        let input = [Input { seed: [0; 2], fields: vec![place] }];
        let request = (Verb::Load, function.random, number);
        let answer = self.ask(request, &input, Some(&room), PATIENCE, cancel);
        self.segments.retire(&room);
        let cannot = |why: &str| {
            let name = &function.name;
            Fault::Fatal(Error::pipeline(format!("the function {name} cannot be loaded: {why}")))
        };
        match answer.as_ref().map(|(outcomes, _)| outcomes.as_slice()) {
            Ok([Outcome::Yes]) => {}
            Ok([Outcome::Failed(text)]) => return Err(cannot(text)),
            Ok(_) => return Err(cannot("its host gives no clear answer")),
            Err(Fault::Ended(how)) => return Err(cannot(&format!("the process {how}"))),
            Err(Fault::Late) => return Err(cannot("it takes too long")),
            Err(_) => return answer.map(|_| number),
        }
        self.loaded.insert(Arc::clone(&function.code), number);
        Ok(number)
    }

    /// Asks for something and waits for the answer: an outcome for each sample, and the segment in which
    /// they lie.
    fn ask(
        &mut self,
        (verb, random, function): (Verb, bool, u32),
        inputs: &[Input],
        memory: Option<&[u8]>,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<(Vec<Outcome>, u32), Fault> {
        let known = memory.and_then(|bytes| self.segments.locate(bytes));
        let Some((segment, _)) = known else {
            return Err(Fault::Fatal(Error::Internal("a sample outside shared memory".into())));
        };
        let new = self.announced != Some(segment.number());
        let request = Request {
            verb,
            random,
            function,
            segment: segment.number(),
            size: if new { segment.size() as u64 } else { 0 },
            free: self.leases.freed(),
            samples: inputs.to_vec(),
        };
        let bytes = request.encode().map_err(|error| Fault::Unsaid(error.to_string()))?;
        let until = Instant::now() + timeout;
        let descriptor = new.then(|| segment.descriptor());
        let sent = match descriptor {
            Some(descriptor) => send_with_descriptor(&self.socket, &bytes, descriptor),
            None => Ok(0),
        };
        let sent = sent.and_then(|sent| self.send(&bytes[sent..]));
        match sent {
            Ok(()) => self.announced = Some(segment.number()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Fault::Late),
            Err(_) => return Err(Fault::Ended(self.how_it_ended())),
        }
        let (mut message, mut descriptors) = (Vec::new(), Vec::new());
        self.receive(&mut message, 4, &mut descriptors, until, cancel)?;
        let length = u32::from_le_bytes(message[..4].try_into().expect("four bytes were read"));
        let length = length as usize;
        if length > LONGEST {
            return Err(Fault::Nonsense(format!("an answer of {length} bytes")));
        }
        self.receive(&mut message, 4 + length, &mut descriptors, until, cancel)?;
        let nonsense = |error: io::Error| Fault::Nonsense(error.to_string());
        let Answer { segment, size, gone, outcomes } =
            Answer::decode(&message[4..]).map_err(nonsense)?;
        if message.len() != 4 + length || descriptors.len() != usize::from(size != 0) {
            return Err(Fault::Nonsense("more than one answer, or not its segment".into()));
        }
        if let Some(descriptor) = descriptors.pop() {
            let size =
                usize::try_from(size).map_err(|_| Fault::Nonsense("a huge segment".into()))?;
            self.mappings.add(segment, size, descriptor).map_err(nonsense)?;
        }
        for number in gone {
            self.mappings.remove(number).map_err(nonsense)?;
        }
        if outcomes.len() != inputs.len() {
            let (found, wanted) = (outcomes.len(), inputs.len());
            return Err(Fault::Nonsense(format!("{found} outcomes for {wanted} samples")));
        }
        Ok((outcomes, segment))
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads until there are `wanted` bytes; what has come already may be more.
    fn receive(
        &mut self,
        message: &mut Vec<u8>,
        wanted: usize,
        descriptors: &mut Vec<OwnedFd>,
        until: Instant,
        cancel: &Cancel,
    ) -> Result<(), Fault> {
        while message.len() < wanted {
            let have = message.len();
            // Of a greeting no more is taken than there is.
            let most = if self.greeted { wanted.max(4096) } else { wanted };
            message.resize(most, 0);
            let received =
                receive_with_descriptors(&self.socket, &mut message[have..], descriptors);
            message.truncate(have + *received.as_ref().unwrap_or(&0));
            match received {
                Ok(0) => return Err(Fault::Ended(self.how_it_ended())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if cancel.is_cancelled() {
                        return Err(Fault::Cancelled);
                    }
                    if Instant::now() >= until {
                        return Err(Fault::Late);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(Fault::Nonsense(error.to_string()));
                }
                Err(_) => return Err(Fault::Ended(self.how_it_ended())),
            }
        }
        Ok(())
    }

    /// The tensors of a sample that came out, or what is wrong with it.
    fn tensors(
        &mut self,
        (segment, lease): (u32, &Arc<memory::Lease>),
        places: Vec<Place>,
        copies: bool,
        context: &mut Context<'_>,
    ) -> Result<Result<Vec<(Name, Tensor)>, String>, Fault> {
        let mut fields = Vec::with_capacity(places.len());
        for Place { name, dtype, shape, offset, bytes } in places {
            let (offset, bytes) = (offset as usize, bytes as usize);
            let keep = Arc::clone(lease);
            let region = self.mappings.region(segment, offset, bytes, move || drop(keep));
            let mut region = region.map_err(|error| Fault::Nonsense(error.to_string()))?;
            if copies {
                let mut own = context.workspace.pool.take(bytes).map_err(Fault::Fatal)?;
                own.copy_from_slice(&region);
                region = own.freeze();
            }
            check(&name, dtype, &region)?;
            let tensor = Tensor::new(dtype, &shape, region).map_err(Fault::Fatal)?;
            let Some(name) = self.name(&name) else {
                return Ok(Err(format!(
                    "it gave a field {name:?}; names are not empty, and there are {MOST_NAMES} at most"
                )));
            };
            fields.push((name, tensor));
        }
        Ok(Ok(fields))
    }

    /// A name, of which a host cannot give any number.
    fn name(&mut self, name: &str) -> Option<Name> {
        if let Some(known) = self.names.get(name) {
            return Some(*known);
        }
        if self.names.len() >= MOST_NAMES || name.is_empty() {
            return None;
        }
        let new = Name::new(name);
        self.names.insert(name.to_owned(), new);
        Some(new)
    }

    /// Says what became of a process that hung up.
    fn how_it_ended(&mut self) -> String {
        let until = Instant::now() + Duration::from_millis(500);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return described(status),
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return "closed its connection".to_owned(),
            }
        }
    }
}

/// A value, and where it is to be written.
type Offset = (usize, Value);

/// Where the fields of a sample are to lie, from `end` on, which moves behind them.
fn lay(sample: Sample, end: &mut usize) -> Result<(Vec<Place>, Vec<Offset>)> {
    let (mut fields, mut values, mut next) = (Vec::new(), Vec::new(), *end);
    for (name, value) in sample.into_fields() {
        let (dtype, shape) = match &value {
            Value::Tensor(tensor) => (tensor.dtype(), tensor.shape().into()),
            Value::Deferred(value) => (value.dtype(), value.shape()),
        };
        if dtype.size().is_none() && !shape.is_empty() {
            return Err(Error::record(format!(
                "field {name} is a list of {dtype}, which no function can be handed"
            )));
        }
        let bytes = value.bytes();
        let behind = next.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(64));
        let Some(behind) = behind.filter(|behind| *behind <= memory::LARGEST) else {
            return Err(Error::record(format!(
                "more than {} bytes, which no function can be handed",
                memory::LARGEST
            )));
        };
        let (offset, bytes) = (next as u64, bytes as u64);
        fields.push(Place { name: name.as_str().to_owned(), dtype, shape, offset, bytes });
        values.push((next, value));
        next = behind;
    }
    *end = next;
    Ok((fields, values))
}

/// Whether bytes are what their type says.
fn check(name: &str, dtype: DType, bytes: &Buffer) -> Result<(), Fault> {
    let right = match dtype {
        DType::Text => std::str::from_utf8(bytes).is_ok(),
        DType::Bool => bytes.iter().all(|byte| *byte <= 1),
        _ => true,
    };
    if right { Ok(()) } else { Err(Fault::Nonsense(format!("field {name:?} is no {dtype}"))) }
}

fn described(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (_, Some(9)) => "was killed (signal 9; perhaps the machine ran out of memory)".to_owned(),
        (_, Some(signal)) => format!("crashed (signal {signal})"),
        _ => "ended".to_owned(),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.home != std::process::id() {
            // A fork has a copy of this, and the process is its parent's.
            return;
        }
        self.forget_input();
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            // It fails if all of them are gone, which is what is wanted.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
