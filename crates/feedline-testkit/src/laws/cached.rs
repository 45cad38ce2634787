//! The law of caches: wherever samples are kept, and however many, the same comes out.

use super::{Laws, Outcome};
use crate::Fixtures;
use feedline_cache::{Allowed, attach};
use feedline_core::{Pool, Position, Result, Store};
use feedline_engine::Options;
use feedline_ops::Pipeline;
use feedline_plan::{Call, Plan};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Memory of the machine that caches think they are on.
const MEMORY: u64 = 1 << 30;

impl Laws<'_> {
    /// With room for all, for some, and on a disk that a second run finds, at every place that a cache may
    /// have.
    pub(super) fn caches_change_nothing(&self, fixtures: &Fixtures) {
        let calls = self.pipeline.plan.calls();
        if self.endless || calls.iter().any(|call| call.step == "cache") {
            return;
        }
        let wanted: Vec<Outcome> =
            (0..2).map(|epoch| self.plain(Position::epoch(epoch), 0, 1, usize::MAX)).collect();
        // Of places between the same steps one is enough.
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        for at in 1..=calls.len() {
            let plan = with_cache(calls, at, &[("ram", "1GB")]);
            let Ok(pipeline) = open_with(&plan, &self.store, fixtures) else {
                continue;
            };
            places.entry(pipeline.cache.map_or(0, |point| point.after)).or_insert(at);
        }
        for at in places.values().copied() {
            self.kept(fixtures, at, &[("ram", "1GB")], None, &wanted);
        }
        let Some(last) = places.values().copied().last() else { return };
        self.kept(fixtures, last, &[("ram", "1500")], None, &wanted);
        self.kept(fixtures, last, &[("ram", "2500"), ("admit", "cost")], None, &wanted);
        // The second finds what the first has left.
        let folder = tempfile::tempdir().expect("a folder");
        for _ in 0..2 {
            self.kept(fixtures, last, &[("disk", "1GB")], Some(folder.path()), &wanted);
        }
    }

    fn kept(
        &self,
        fixtures: &Fixtures,
        at: usize,
        cache: &[(&str, &str)],
        folder: Option<&Path>,
        wanted: &[Outcome],
    ) {
        let mut plan = with_cache(self.pipeline.plan.calls(), at, cache);
        if let Some(folder) = folder {
            let mut calls = plan.calls().to_vec();
            calls[at].args.insert("path".into(), json!(folder));
            plan = Plan::new(calls);
        }
        let opened = open_with(&plan, &self.store, fixtures);
        let pipeline = Arc::new(opened.unwrap_or_else(|error| panic!("{plan}: {error}")));
        attach(&pipeline, &self.store, MEMORY, &Allowed::default()).expect("a cache");
        for (epoch, wanted) in wanted.iter().enumerate() {
            let options = Options { epochs: Some(1), ..self.options(3, 0, 0, 1) };
            let position = Position::epoch(epoch as u64);
            let found = super::engine_epoch(&pipeline, &self.store, position, options, usize::MAX);
            self.same(&found, wanted, &format!("{plan}\nepoch {epoch}, samples are kept"));
        }
        let attached = pipeline.cache.as_ref().and_then(|point| point.attached.get());
        let stats = attached.map(|cache| cache.stats()).unwrap_or_default();
        let hits = stats.ram_hits + stats.disk_hits;
        let all = cache[0].1 == "1GB" && wanted.iter().all(|epoch| epoch.error.is_none());
        let before = wanted[0].indices();
        // One that is damaged where no step looks is not kept, and good all the same.
        let mut workspace = pipeline.workspace(Pool::new(0), true);
        let mut whole = |index| pipeline.kept_sample(index, &*self.store, &mut workspace).is_ok();
        let again = wanted[1].indices().into_iter().filter(|index| before.contains(index));
        let samples = again.filter(|index| whole(*index)).count() as u64;
        assert!(
            !all || hits >= samples,
            "{plan}: {hits} of {samples} samples were found: {stats:?}"
        );
        assert_eq!(stats.damaged, 0, "{plan}: {stats:?}");
        assert!(stats.ram_bytes <= stats.ram_limit, "{plan}: {stats:?}");
    }
}

fn with_cache(calls: &[Call], at: usize, arguments: &[(&str, &str)]) -> Plan {
    let mut calls = calls.to_vec();
    let args = arguments.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
    calls.insert(at, Call { step: "cache".into(), args: args.collect() });
    Plan::new(calls)
}

fn open_with(plan: &Plan, store: &Arc<dyn Store>, fixtures: &Fixtures) -> Result<Pipeline> {
    Pipeline::open_with(plan, &**store, &fixtures.blobs, Some(Arc::clone(&fixtures.host)))
}
