//! Frames and what is in them, as they come from a socket.

use crate::runner::{came_to, ended};
use feedline_core::{Batch, Buffer, Error, Name, Rows, Stretch, Tensor};
use feedline_wire::compress::{Compression, Packer, Packing, Unpacker};
use feedline_wire::frame::{self, HEADER, Header, Hello, Kind, Limits, Piece};
use feedline_wire::secret::Secret;
use feedline_wire::stretch::{Decoder, Encoded};

/// As large as anything in here may say that it is.
fn limits() -> Limits {
    Limits { description: 16 << 10, payload: 1 << 20, fields: 64, names: 64 }
}

/// A header. Its own checksum is made to fit, so that what lies behind it is reached.
pub fn frame(input: &[u8]) {
    let mut bytes = [0; HEADER];
    let length = input.len().min(HEADER);
    bytes[..length].copy_from_slice(&input[..length]);
    let _ = ended(Header::decode(&bytes, 0, &limits()));
    bytes[..4].copy_from_slice(&frame::MAGIC);
    let sum = frame::checksum([&bytes[..60]]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    if let Some(header) = ended(Header::decode(&bytes, 0, &limits())) {
        came_to(format!("{:?} {:?}", header.kind, header.compression));
        assert_eq!(header.encode(), bytes, "a header is written as it was read");
        let _ = ended(header.check_description(input));
        let _ = ended(header.check_payload(input));
    }
}

/// Headers of every kind.
pub fn frame_corpus() -> Vec<Vec<u8>> {
    let kinds = [Kind::Hello, Kind::Request, Kind::Credit, Kind::End, Kind::Segment];
    let mut headers: Vec<Header> =
        kinds.iter().map(|kind| Header::new(*kind, 3, b"words")).collect();
    let (sent, plain) = (700, 1000);
    let stretch = Header::new(Kind::Stretch, 1, b"words");
    let packed = Header { compression: Compression::Lz4, sent, plain, ..stretch.clone() };
    headers.push(Header { payload_checksum: Some(7), ..packed });
    headers.push(Header { shared: true, sent, plain, ..stretch });
    headers.iter().map(|header| header.encode().to_vec()).collect()
}

/// The description of a frame; its first byte says of which kind.
pub fn description(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 6 {
        0 => {
            let token = Hello::token(bytes);
            if let Some(hello) = ended(Hello::decode(bytes)) {
                assert_eq!(token.expect("what is read first reads"), hello.token.expose());
                let again = Hello::decode(&hello.encode()).expect("a greeting reads back");
                assert_eq!(again, hello);
                came_to(format!("{:?}", hello.common_version(&again)));
            }
        }
        1 => {
            if let Some((credit, token, request)) = ended(frame::decode_request(bytes)) {
                assert_eq!(frame::encode_request(credit, token, request), bytes);
            }
        }
        2 => {
            if let Some((credit, released)) = ended(frame::decode_credit(bytes)) {
                assert_eq!(frame::encode_credit(credit, &released), bytes);
            }
        }
        3 => {
            if let Some((number, size)) = ended(frame::decode_segment(bytes)) {
                assert_eq!(frame::encode_segment(number, size), bytes);
            }
        }
        4 => {
            if let Some(pieces) = ended(frame::decode_pieces(bytes)) {
                let only: Vec<Piece> = pieces.iter().map(|(piece, _)| *piece).collect();
                let here: Vec<u8> = pieces.iter().flat_map(|(_, here)| *here).copied().collect();
                assert_eq!([frame::encode_pieces(&only), here].concat(), bytes);
            }
        }
        _ => {
            if let Some(error) = ended(frame::decode_error(bytes)) {
                let again = frame::decode_error(&frame::encode_error(&error));
                let again = again.expect("an error reads back");
                assert_eq!(again.to_string(), error.to_string());
            }
        }
    }
}

/// One description of each kind.
pub fn description_corpus() -> Vec<Vec<u8>> {
    let hello = Hello {
        oldest: 1,
        newest: 2,
        token: Secret::new(b"token".to_vec()),
        shared_memory: 1 << 30,
        compressions: vec![Compression::Lz4, Compression::Zstd],
        timeout: 10_000,
        instance: [3; 16],
        local: b"feedline-1".to_vec(),
    };
    let record = Error::Record {
        origin: "a.tar".into(),
        index: 300,
        step: "decode".into(),
        reason: "cut short".into(),
    };
    let lost = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer");
    let pieces =
        [Piece::Here { length: 2 }, Piece::Segment { number: 1, offset: 64, length: 1 << 20 }];
    let all = [
        (0, hello.encode()),
        (1, frame::encode_request(1 << 26, b"feedline1.00.00", b"what is asked for")),
        (2, frame::encode_credit(70_000, &[1, 300])),
        (3, frame::encode_segment(3, 1 << 20)),
        (4, [frame::encode_pieces(&pieces), b"ab".to_vec()].concat()),
        (5, frame::encode_error(&record)),
        (5, frame::encode_error(&Error::unavailable("a bucket", lost))),
        (5, frame::encode_error(&Error::Budget("too many".into()))),
    ];
    all.into_iter().map(|(kind, bytes)| [vec![kind], bytes].concat()).collect()
}

/// A stretch: how its payload is packed, two bytes for the description's length, the description,
/// the payload.
pub fn stretch(input: &[u8]) {
    let Some((&[way, low, high], rest)) = input.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (description, sent) = rest.split_at(length);
    let way = [Compression::None, Compression::Lz4, Compression::Zstd][usize::from(way % 3)];
    let mut payload = sent.to_vec();
    if way != Compression::None {
        payload = vec![0; 4096];
        if ended(Unpacker::default().unpack(way, sent, &mut payload)).is_none() {
            return;
        }
    }
    let mut decoder = Decoder::new(limits());
    let Some(found) = ended(decoder.decode(description, &[Buffer::from(&payload[..])])) else {
        return;
    };
    came_to(format!("{} rows", found.rows.count() > 0));
    let encoded = Encoded::new(&found);
    let payload: Vec<u8> = encoded.parts.concat();
    assert_eq!(payload.len(), encoded.length);
    // Nothing at all is sent where there are no bytes.
    let pieces = if payload.is_empty() { vec![] } else { vec![Buffer::from(&payload[..])] };
    let again = Decoder::new(limits()).decode(&encoded.description, &pieces);
    let again = again.expect("a stretch reads back");
    assert_eq!(Encoded::new(&again).description, encoded.description);
    assert_eq!(Encoded::new(&again).parts.concat(), payload);
}

/// A batch and loose rows.
pub(crate) fn stretches() -> Vec<Stretch> {
    let fields = vec![
        (Name::new("label"), Tensor::from_slice(&[2], &[7i64, -1])),
        (Name::new("image"), Tensor::from_slice(&[2, 3], &[1u8, 2, 3, 4, 5, 6])),
        (Name::new("text"), Tensor::text("words")),
    ];
    let good = vec![(0, 5, vec![Tensor::scalar(0.5f32), Tensor::bytes(Buffer::from(&b"raw"[..]))])];
    let bad = vec![(1, Error::record("cut short"))];
    let batch = Batch { fields, rows: 2, indices: Some(vec![300, 9]) };
    vec![
        Stretch { step: 17, rows: Rows::Batch(batch) },
        Stretch { step: 2, rows: Rows::Some { good, bad } },
    ]
}

/// A batch and loose rows, plain and packed.
pub fn stretch_corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    let with = |way: u8, description: &[u8], payload: &[u8]| {
        let length = (description.len() as u16).to_le_bytes();
        [&[way][..], &length, description, payload].concat()
    };
    for stretch in stretches() {
        let encoded = Encoded::new(&stretch);
        corpus.push(with(0, &encoded.description, &encoded.parts.concat()));
    }
    // A payload that is unpacked to 4096 bytes.
    let large = Tensor::from_slice(&[4096], &[7u8; 4096]);
    let batch = Batch { fields: vec![(Name::new("x"), large)], rows: 4096, indices: None };
    let stretch = Stretch { step: 0, rows: Rows::Batch(batch) };
    let encoded = Encoded::new(&stretch);
    for (packing, way) in [(Packing::Lz4, 1), (Packing::Zstd, 2)] {
        let mut packer = Packer::new(packing, &[Compression::Lz4, Compression::Zstd]);
        if let Ok(Some((_, bytes))) = packer.pack(&encoded.parts, encoded.length) {
            corpus.push(with(way, &encoded.description, bytes));
        }
    }
    corpus
}

/// An entry of a cache, as it lies on a disk.
pub fn kept(input: &[u8]) {
    came_to(if feedline_cache::read_unchecked(input) { "a sample" } else { "none" });
}

/// Samples of several kinds of fields.
pub fn kept_corpus() -> Vec<Vec<u8>> {
    let batches = stretches().into_iter().filter_map(|stretch| match stretch.rows {
        Rows::Batch(batch) => Some(feedline_cache::written(&batch.fields)),
        Rows::Some { .. } => None,
    });
    batches.chain([feedline_cache::written(&[])]).collect()
}
