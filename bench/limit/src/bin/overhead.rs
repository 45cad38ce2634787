//! What the always-on counters cost: runs a plan for a number of samples, with or without them.
//!
//! Meant to be run under an instruction counter: `bench/overhead.sh` does.

use feedline_core::{Blobs, Position, Store};
use feedline_engine::{Next, Options, Run};
use feedline_ops::Pipeline;
use feedline_store::LocalStore;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, plan, samples, counters] = &args[..] else {
        return Err("usage: overhead PLAN SAMPLES on|off".into());
    };
    let (samples, counters): (usize, bool) = (samples.parse()?, counters == "on");
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let pipeline = Arc::new(Pipeline::open(&plan.parse()?, &*store, &Blobs::new())?);
    let options = Options { threads: 1, counters, ..Options::default() };
    let mut run = Run::start(pipeline, store, Position::default(), options)?;
    let mut seen = 0;
    while seen < samples {
        if let Next::Batch(batch) = run.next()? {
            seen += batch.rows;
        }
    }
    let prepared = run.stats().prepared;
    println!("{{\"delivered\": {seen}, \"prepared\": {prepared}, \"counters\": {counters}}}");
    Ok(())
}
