//! Everything that reads bytes from outside, each as a function of bytes.

pub mod control;
pub mod files;
pub mod frames;
pub mod functions;
pub mod journal;
pub mod plans;
pub mod states;
pub mod stream;
pub mod urls;

/// Something that reads bytes from outside.
#[derive(Debug)]
pub struct Target {
    /// What it is called.
    pub name: &'static str,
    /// Reads bytes; panics if what comes of them is not what is promised.
    pub run: fn(&[u8]),
    /// Inputs to begin with, made by our own writers.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// No input is longer, in bytes.
    pub longest: usize,
    /// It may ask for so many bytes of memory at once.
    pub memory: usize,
}

const fn target(name: &'static str, run: fn(&[u8]), corpus: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, corpus, longest: 16 << 10, memory: 8 << 20 }
}

/// Pictures and packed files may be larger than the bytes that describe them.
const fn unpacking(name: &'static str, run: fn(&[u8]), corpus: fn() -> Vec<Vec<u8>>) -> Target {
    Target { memory: 256 << 20, ..target(name, run, corpus) }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("frame", frames::frame, frames::frame_corpus),
    target("description", frames::description, frames::description_corpus),
    target("stretch", frames::stretch, frames::stretch_corpus),
    target("served", stream::served, stream::served_corpus),
    target("received", stream::received, stream::received_corpus),
    target("borrowed", stream::borrowed, stream::borrowed_corpus),
    target("message", control::message, control::message_corpus),
    target("conversation", control::conversation, control::conversation_corpus),
    target("answer", functions::answer, functions::answer_corpus),
    target("request", functions::request, functions::request_corpus),
    target("journal", journal::journal, journal::journal_corpus),
    target("record", journal::record, journal::record_corpus),
    target("state", states::state, states::state_corpus),
    target("checkpoint", states::checkpoint, states::checkpoint_corpus),
    target("ask", states::ask, states::ask_corpus),
    target("kept", frames::kept, frames::kept_corpus),
    target("plan", plans::plan, plans::plan_corpus),
    target("url", urls::url, urls::url_corpus),
    target("braces", urls::braces, urls::braces_corpus),
    unpacking("npy", files::npy, files::npy_corpus),
    unpacking("npz", files::npz, files::npz_corpus),
    unpacking("nifti", files::nifti, files::nifti_corpus),
    unpacking("nifti-gz", files::nifti_gz, files::nifti_gz_corpus),
    unpacking("arrow", files::arrow, files::arrow_corpus),
    unpacking("picture", files::picture, files::picture_corpus),
];
