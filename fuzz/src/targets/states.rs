//! What trainers save, and what clients ask workers for.

use crate::runner::{came_to, ended};
use crate::targets::files::Memory;
use feedline_client::{Checkpoint, merge_checkpoints};
use feedline_core::{Blobs, Position, Seed, Span, Store};
use feedline_engine::{State, merge_states};
use feedline_ops::Pipeline;
use feedline_ops::plain::{Part, Plain};
use feedline_plan::Plan;
use feedline_wire::control::DatasetId;
use feedline_wire::{
    Ask, ConsumerIndex, Cursor, Epoch, Incarnation, JobId, Offset, Order, SaveShard, Seat, Stamp,
    Start, Ticket, Window, Windows,
};
use std::sync::{Arc, LazyLock};

static PIPELINES: LazyLock<Vec<Arc<Pipeline>>> = LazyLock::new(|| {
    let plans = [
        "range count=1000 | shuffle | batch size=4",
        "range count=37 | on_error policy=skip | batch size=3 pad=true",
    ];
    let open = |text: &&str| {
        let plan: Plan = text.parse().expect("the plan is right");
        Arc::new(Pipeline::open(&plan, &Memory::empty(), &Blobs::new()).expect("it opens"))
    };
    plans.iter().map(open).collect()
});

/// The state of a run, loaded.
pub fn state(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = feedline_remote::is_dealt(text);
    let _ = ended(feedline_remote::merge_states(&[text.to_owned()]));
    let Some(state) = ended(State::from_json(text)) else { return };
    let again = State::from_json(&state.to_json()).expect("a state reads back");
    assert_eq!(again, state);
    let _ = ended(merge_states(std::slice::from_ref(&state)));
    let _ = ended(merge_states(&[state.clone(), again]));
    for pipeline in PIPELINES.iter() {
        for (rank, world) in [(0, 1), (1, 2)] {
            let position = state.position_for(pipeline, Seed(3), rank, world);
            let Some(position) = ended(position) else { continue };
            let part = Part { seed: Seed(3), rank, world, position, ..Part::default() };
            let store: Arc<dyn Store> = Arc::new(Memory::empty());
            let plain = Plain::new(Arc::clone(pipeline), store, part);
            came_to("+".repeat(plain.take(3).count()));
        }
    }
}

/// States of all pipelines at some places.
pub fn state_corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for pipeline in PIPELINES.iter() {
        for (rank, world) in [(0, 1), (1, 2)] {
            let start = State::new(pipeline, Position::default(), Seed(3), rank, world);
            corpus.push(start.to_json().into_bytes());
            let later = Position { tail: 24, epoch: 2, ..Position::default() };
            let odd = Position {
                left_over: vec![Span { start: 3, end: 5 }, Span { start: 9, end: 11 }],
                at: Some((rank, 1)),
                batches: 1,
                skipped: 2,
                ..later.clone()
            };
            for position in [later, odd] {
                let state = State::new(pipeline, position, Seed(3), rank, world);
                corpus.push(state.to_json().into_bytes());
            }
        }
    }
    corpus
}

/// What a client of an `any` job saves, merged with itself.
pub fn checkpoint(input: &[u8]) {
    let Some(checkpoint) = ended(serde_json::from_slice::<Checkpoint>(input)) else { return };
    let text = serde_json::to_vec(&checkpoint).expect("a checkpoint is written");
    let again: Checkpoint = serde_json::from_slice(&text).expect("a checkpoint reads back");
    assert_eq!(again, checkpoint);
    let cursor = &checkpoint.cursor;
    came_to(format!("{} {}", cursor.is_untouched(), cursor.is_used(Window(3))));
    let _ = (cursor.digest(), cursor.used.top());
    let mut other = checkpoint.clone();
    other.cursor.consumer = ConsumerIndex(1);
    let windows = Windows { count: 10, steps: 4, last: 2 };
    for all in [vec![checkpoint.clone()], vec![checkpoint, other]] {
        let Some(merged) = ended(merge_checkpoints(&all, &windows)) else { continue };
        let steps = merged.left.steps(&merged.windows);
        let cut = merged.left.cut(&merged.windows);
        came_to(format!("{}", steps == 0));
        let end = steps.min(8);
        let pieces = merged.left.pieces(&merged.windows, 0, end);
        assert!(pieces.len() as u64 <= end, "{pieces:?} of {cut:?}");
    }
}

/// Checkpoints of one and of two clients.
pub fn checkpoint_corpus() -> Vec<Vec<u8>> {
    let windows = Windows { count: 10, steps: 4, last: 2 };
    let mut corpus = Vec::new();
    for (consumers, order) in [(1, Order::Any), (2, Order::Any), (2, Order::Exact)] {
        let (consumer, ticket) = (ConsumerIndex(0), Ticket(1));
        let seat = Seat { job: JobId(7), incarnation: Incarnation(1), consumer, ticket };
        let mut cursor = Cursor::new(&seat, consumers, order, Epoch(1));
        corpus.push(Checkpoint { start: None, cursor: cursor.clone() });
        cursor.used.insert(Window(4));
        cursor.open.insert(Window(2), Offset(3));
        (cursor.floor, cursor.seen, cursor.used_up) = (Window(2), Stamp(9), 3);
        let position = String::new();
        let start = Some(Start { epoch: Epoch(1), position, windows });
        corpus.push(Checkpoint { start, cursor });
    }
    let text = |one: &Checkpoint| serde_json::to_vec(one).expect("a checkpoint is written");
    corpus.iter().map(text).collect()
}

/// What a client asks a worker for.
pub fn ask(input: &[u8]) {
    if let Some(ask) = ended(Ask::decode(input)) {
        assert_eq!(Ask::decode(&ask.encode()).expect("it reads back"), ask);
        let _ = ended(serde_json::from_str::<Position>(&ask.start));
    }
}

/// Asks of both sorts.
pub fn ask_corpus() -> Vec<Vec<u8>> {
    let ask = Ask {
        job: JobId(7),
        dataset: DatasetId("0123456789abcdef".into()),
        part: Some(feedline_wire::Part { index: 1, of: 3, files: true }),
        seed: 3,
        epoch: 1,
        start: String::new(),
        rank: 1,
        world: 2,
        first: 10,
        steps: 4,
        from: 0,
        rounds: false,
        with_index: true,
        rows: false,
        relaxed: false,
        save: Some(SaveShard { folder: "/data/out".into(), shard: 2 }),
    };
    let position = Position { tail: 24, epoch: 1, ..Position::default() };
    let start = serde_json::to_string(&position).expect("a position is written");
    vec![ask.encode(), Ask { start, rounds: true, from: 2, ..ask }.encode()]
}
