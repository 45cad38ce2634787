//! Everything that hosts log, as it is logged: put into one number, and printed if anybody wants to
//! see it.

use std::cell::{Cell, RefCell};
use std::fmt::{Debug, Write};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static HASH: Cell<u64> = const { Cell::new(0) };
    static PANICS: Cell<u64> = const { Cell::new(0) };
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Whether everything is printed.
fn printing() -> bool {
    static PRINTING: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *PRINTING.get_or_init(|| std::env::var_os("FEEDLINE_TRACE").is_some())
}

/// Begins a trace.
pub fn begin() {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with(|panics| panics.set(panics.get() + 1));
            before(panic);
        }));
    });
    NOW.set(0);
    HASH.set(0);
    PANICS.set(0);
}

/// What was traced, put into one number.
pub fn hash() -> u64 {
    HASH.get()
}

/// How many panics there were. A task that panics is gone, and nobody is told.
pub fn panics() -> u64 {
    PANICS.get()
}

/// The time is this, in milliseconds.
pub fn set_now(now: u64) {
    NOW.set(now);
}

/// Notes what happens.
pub fn note(what: &str) {
    let now = NOW.get();
    if printing() {
        eprintln!("{now:>9} ms  {what}");
    }
    let mut hash = HASH.get() ^ now;
    for byte in what.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    HASH.set(hash.rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15));
}

/// Takes what is logged by Feedline, and what goes over the network.
pub struct Tracer;

impl Subscriber for Tracer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let told = target.starts_with("feedline") && *metadata.level() <= Level::DEBUG;
        metadata.is_event() && (told || target == "turmoil")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        LINE.with_borrow_mut(|line| {
            line.clear();
            event.record(&mut Line(line));
            // Each tick says so; what happens in it says more.
            if !line.starts_with(" step ") {
                note(line);
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a text does not fail. Bytes are left out: answers carry the date of the day.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            "protocol" => Ok(()),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
