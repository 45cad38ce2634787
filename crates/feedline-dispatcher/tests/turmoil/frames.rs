//! A connection between a client and a worker: the frames of the wire, over simulated TCP.
//!
//! The streams that Feedline really uses are made of blocking sockets and threads, which cannot be
//! simulated. Their frames can: headers, checksums, sequences, greetings, requests and stretches are
//! written and read by the same code.

use feedline_core::{Buffer, Error, Stretch};
use feedline_wire::frame::{
    HEADER, Header, Hello, Kind, Limits, VERSION, checksum, decode_error, decode_request,
    encode_error, encode_request,
};
use feedline_wire::stretch::{Decoder, Encoded};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::TcpStream;

/// How many bytes may be under way.
const CREDIT: u64 = 1 << 20;

/// One end of a connection.
pub struct Link {
    stream: TcpStream,
    sent: u64,
    received: u64,
    request: u32,
    limits: Limits,
    decoder: Decoder,
}

/// What came.
pub enum Came {
    /// Something is asked for, under this number.
    Request(u32, Vec<u8>),
    /// A stretch of what was asked for.
    Stretch(Stretch),
    /// That was all.
    End,
    /// It cannot be had.
    Failed(Error),
}

fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Link {
    fn new(stream: TcpStream) -> Self {
        let (limits, decoder) = (Limits::greeting(), Decoder::new(Limits::default()));
        Self { stream, sent: 0, received: 0, request: 0, limits, decoder }
    }

    /// Connects to a worker, and greets.
    pub async fn connect(address: &str) -> io::Result<Self> {
        let mut link = Self::new(TcpStream::connect(address).await?);
        link.greet([0; 16]).await?;
        let hello = link.greeted().await?;
        match hello.newest {
            VERSION => Ok(link),
            other => Err(malformed(format!("the worker speaks version {other}"))),
        }
    }

    /// Takes a client in that connects.
    pub async fn accept(stream: TcpStream, instance: [u8; 16]) -> io::Result<Self> {
        let mut link = Self::new(stream);
        let ours = Hello { oldest: VERSION, newest: VERSION, ..Hello::default() };
        if link.greeted().await?.common_version(&ours).is_none() {
            return Err(malformed("the client speaks another version"));
        }
        link.greet(instance).await?;
        Ok(link)
    }

    async fn greet(&mut self, instance: [u8; 16]) -> io::Result<()> {
        let timeout = 10_000;
        let hello =
            Hello { oldest: VERSION, newest: VERSION, timeout, instance, ..Hello::default() };
        self.say(Kind::Hello, 0, &hello.encode()).await
    }

    async fn greeted(&mut self) -> io::Result<Hello> {
        let (header, description, _) = self.frame().await?;
        self.limits = Limits::default();
        match header.kind {
            Kind::Hello => Hello::decode(&description),
            other => Err(malformed(format!("a {other:?} frame instead of a greeting"))),
        }
    }

    async fn write(&mut self, header: Header, parts: &[&[u8]]) -> io::Result<()> {
        let head = Header { sequence: self.sent, ..header }.encode();
        self.sent += 1;
        // One write is one segment, which is on its way as a whole.
        let bytes = [&[&head[..]], parts].concat().concat();
        self.stream.write_all(&bytes).await
    }

    async fn say(&mut self, kind: Kind, request: u32, description: &[u8]) -> io::Result<()> {
        self.write(Header::new(kind, request, description), &[description]).await
    }

    /// Asks for something. What comes from now on belongs to it.
    pub async fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.request += 1;
        let description = encode_request(CREDIT, b"", request);
        self.say(Kind::Request, self.request, &description).await
    }

    /// Sends a stretch of what was asked for under a number.
    pub async fn send(&mut self, request: u32, stretch: &Stretch) -> io::Result<()> {
        let encoded = Encoded::new(stretch);
        let header = Header {
            sent: encoded.length,
            plain: encoded.length,
            payload_checksum: Some(checksum(encoded.parts.iter().copied())),
            ..Header::new(Kind::Stretch, request, &encoded.description)
        };
        let parts: Vec<&[u8]> =
            [&encoded.description[..]].into_iter().chain(encoded.parts.iter().copied()).collect();
        self.write(header, &parts).await
    }

    /// Says that this was all, or why it cannot be had.
    pub async fn end(&mut self, request: u32, outcome: Result<(), Error>) -> io::Result<()> {
        match outcome {
            Ok(()) => self.say(Kind::End, request, &[]).await,
            Err(error) => self.say(Kind::Error, request, &encode_error(&error)).await,
        }
    }

    async fn frame(&mut self) -> io::Result<(Header, Vec<u8>, Vec<u8>)> {
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head).await?;
        let header = Header::decode(&head, self.received, &self.limits)?;
        self.received += 1;
        let mut description = vec![0; header.description];
        self.stream.read_exact(&mut description).await?;
        header.check_description(&description)?;
        let mut payload = vec![0; header.sent];
        self.stream.read_exact(&mut payload).await?;
        header.check_payload(&payload)?;
        Ok((header, description, payload))
    }

    /// What comes next. Nothing of an earlier request does.
    pub async fn next(&mut self) -> io::Result<Came> {
        loop {
            let (header, description, payload) = self.frame().await?;
            let old = header.kind != Kind::Request && header.request != self.request;
            match header.kind {
                _ if old => {}
                Kind::Request => {
                    let (_, _, request) = decode_request(&description)?;
                    return Ok(Came::Request(header.request, request.to_vec()));
                }
                Kind::Stretch => {
                    let payload = [Buffer::from(&payload[..])];
                    return Ok(Came::Stretch(self.decoder.decode(&description, &payload)?));
                }
                Kind::End => return Ok(Came::End),
                Kind::Error => return Ok(Came::Failed(decode_error(&description)?)),
                other => return Err(malformed(format!("a {other:?} frame out of place"))),
            }
        }
    }
}
