//! What a host that runs functions says, and what it is told.

use crate::runner::{came_to, ended};
use feedline_core::{DType, Shape};
use feedline_engine::host::{Answer, Input, Outcome, Place, Request, Verb};

/// An answer of a host: whatever is read is written again.
pub fn answer(input: &[u8]) {
    let Some(answer) = ended(Answer::decode(input)) else { return };
    came_to("an answer");
    let written = answer.encode().expect("what was read can be written");
    assert_eq!(Answer::decode(&written[4..]).expect("what was written can be read"), answer);
}

/// A request of the engine, as a host reads it.
pub fn request(input: &[u8]) {
    let Some(request) = ended(Request::decode(input)) else { return };
    came_to("a request");
    let written = request.encode().expect("what was read can be written");
    assert_eq!(&written[4..], input);
}

fn places() -> Vec<Place> {
    let place = |name: &str, dtype: DType, shape: &[usize], offset, bytes| Place {
        name: name.to_owned(),
        dtype,
        shape: Shape::from_slice(shape),
        offset,
        bytes,
    };
    vec![
        place("image", DType::U8, &[4, 5, 3], 0, 60),
        place("label", DType::I64, &[], 64, 8),
        place("text", DType::Text, &[], 128, 3),
    ]
}

/// Answers of every kind.
pub fn answer_corpus() -> Vec<Vec<u8>> {
    let outcomes = [
        Outcome::Sample(places()),
        Outcome::Yes,
        Outcome::No,
        Outcome::Failed("ValueError: no\nTraceback".to_owned()),
    ];
    let one = |outcomes: Vec<Outcome>| {
        let answer = Answer { segment: 3, size: 1 << 16, gone: vec![1, 2], outcomes };
        answer.encode().expect("it is short")[4..].to_vec()
    };
    let mut corpus: Vec<Vec<u8>> =
        outcomes.iter().map(|outcome| one(vec![outcome.clone()])).collect();
    corpus.push(one(outcomes.to_vec()));
    corpus
}

/// Requests of every kind.
pub fn request_corpus() -> Vec<Vec<u8>> {
    let verbs = [Verb::Load, Verb::Map, Verb::Filter];
    let request = |verb| Request {
        verb,
        random: verb == Verb::Map,
        function: 1,
        segment: 2,
        size: 1 << 20,
        free: vec![4],
        samples: vec![Input { seed: [5, 6], fields: places() }],
    };
    verbs.iter().map(|verb| request(*verb).encode().expect("it is short")[4..].to_vec()).collect()
}
