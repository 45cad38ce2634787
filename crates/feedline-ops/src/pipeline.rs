//! A plan bound to its steps and its data: everything a run needs, and nothing that runs.
//!
//! ```text
//!  Plan ──canonical──► steps ──prepare──► specs ──open──► Pipeline
//!        (spelling)          (types)            (data)
//! ```

use crate::batch::{Batch, Buckets, Padded};
use crate::keep;
use crate::order::Shard;
use crate::registry::{Builtin, Step};
use feedline_core::{
    Address, Before, Blobs, Cache, Context, Cursor, Error, Host, Length, Map, Order, OrderRun,
    Policy, Result, SampleSeed, Source, SourceRecipe, Spec, StepId, Store, Workspace,
};
use feedline_plan::{Call, Fingerprint, Plan};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// A per-sample step in its place.
pub struct BoundMap {
    /// The step's name.
    pub name: &'static str,
    /// Names it in the key of its draws.
    pub id: StepId,
    /// The prepared step.
    pub map: Box<dyn Map>,
    /// The step and the arguments that decide what it gives, as the plan spells them.
    pub call: String,
}

/// A pipeline that is checked and opened.
pub struct Pipeline {
    /// The plan, in its canonical spelling.
    pub plan: Plan,
    /// The data.
    pub source: Arc<dyn Source>,
    /// What the source gives.
    pub input: Spec,
    order: Vec<Box<dyn OrderRun>>,
    /// Names of the steps that order, for explaining.
    pub order_names: Vec<&'static str>,
    /// The per-sample steps, in order.
    pub maps: Vec<BoundMap>,
    /// How samples are stacked; `None` delivers them one by one.
    pub batch: Option<Batch>,
    /// By which lengths they are chosen for a batch; `None` takes them as they come.
    pub bucket: Option<Buckets>,
    /// The fields that are filled up in a batch.
    pub padded: Vec<Padded>,
    /// What happens to bad samples.
    pub policy: Policy,
    /// Where samples are kept from one epoch to the next, if the plan says so.
    pub cache: Option<CachePoint>,
    /// What a sample looks like when it is finished.
    pub sample: Spec,
    /// What is delivered.
    pub output: Spec,
    length: Length,
    host: Option<Arc<dyn Host>>,
}

/// Where in a pipeline samples are kept.
#[derive(Clone)]
pub struct CachePoint {
    /// After so many per-sample steps.
    pub after: usize,
    /// What the plan says about it.
    pub recipe: keep::Cache,
    /// Names what is kept: the same for the same data after the same steps.
    pub identity: String,
    /// Whether samples come in another order every epoch, so that the first to come are any.
    pub shuffled: bool,
    /// The cache itself, once it is attached; without it samples are made each time.
    pub attached: OnceLock<Arc<dyn Cache>>,
}

/// A plan whose types are checked, not opened yet.
struct Checked {
    plan: Plan,
    source: Box<dyn SourceRecipe>,
    input: Spec,
    orders: Vec<(&'static str, StepId, Box<dyn Order>)>,
    maps: Vec<BoundMap>,
    batch: Option<Batch>,
    bucket: Option<Buckets>,
    padded: Vec<Padded>,
    policy: Policy,
    cache: Option<(usize, keep::Cache)>,
    sample: Spec,
    output: Spec,
}

/// Checks everything about a plan that can be known without opening its data.
fn check(plan: &Plan, store: Option<&dyn Store>) -> Result<Checked> {
    let mut steps = Vec::new();
    let mut calls = Vec::new();
    let mut counts: HashMap<&'static str, usize> = HashMap::new();
    if plan.calls().is_empty() {
        return Err(Error::pipeline("it is empty; begin with a source, such as images or range"));
    }
    for call in plan.calls() {
        let (step, canonical) = Builtin.step(call, store)?;
        let name = feedline_core::Name::new(&canonical.step).as_str();
        let occurrence = counts.entry(name).or_default();
        steps.push((name, StepId::new(name, *occurrence), step));
        *occurrence += 1;
        calls.push(canonical);
    }
    let mut steps = steps.into_iter();
    let Some((_, _, Step::Source(source))) = steps.next() else {
        return Err(Error::pipeline(format!(
            "{} is no source; begin with one, such as images or range",
            plan.calls()[0].step
        )));
    };
    let input = source.spec()?;
    let (mut sample, mut output) = (input.clone(), input.clone());
    let (mut orders, mut maps, mut batch, mut policy) = (Vec::new(), Vec::new(), None, None);
    let (mut bucket, mut padded, mut cache) = (None, Vec::new(), None);
    for (at, (name, id, step)) in steps.enumerate() {
        if let Some(size) = batch.as_ref().map(|batch: &Batch| batch.size as u64) {
            // The first few batches are the samples of the first few batches.
            let order = match &step {
                Step::Order(order) if bucket.is_none() => order.of_batches(size),
                _ => None,
            };
            if let Some(order) = order {
                order.check()?;
                orders.push((name, id, order));
                continue;
            }
            return Err(Error::pipeline(match step {
                Step::Batch(_) | Step::Bucket(_) => {
                    format!("{name}: the samples are in batches already")
                }
                _ => {
                    let last = if bucket.is_some() { "bucket" } else { "batch" };
                    format!("{name}: works on samples; put it before {last}")
                }
            }));
        }
        match step {
            Step::Source(_) => {
                return Err(Error::pipeline(format!(
                    "{name}: is a source; a pipeline begins with it and has only one"
                )));
            }
            Step::Order(order) => {
                order.check()?;
                orders.push((name, id, order));
            }
            Step::Map(mut map) => {
                sample = map.prepare(&sample)?;
                let call = calls[at + 1].identity().to_string();
                maps.push(BoundMap { name, id, map, call });
            }
            Step::Batch(recipe) => {
                (output, padded) = recipe.output(&sample)?;
                batch = Some(recipe);
            }
            Step::Bucket(recipe) => {
                let buckets;
                (output, padded, buckets) = recipe.output(&sample)?;
                (batch, bucket) = (Some(recipe.batch()), Some(buckets));
            }
            Step::Cache(recipe) => {
                recipe.check()?;
                check_cache(&maps, cache.is_some())?;
                cache = Some((maps.len(), recipe));
            }
            Step::Policy(given) => {
                if policy.is_some() {
                    return Err(Error::pipeline("on_error: is given twice"));
                }
                policy = Some(given);
            }
        }
        if batch.is_none() {
            output = sample.clone();
        }
    }
    let (plan, policy) = (Plan::new(calls), policy.unwrap_or_default());
    Ok(Checked {
        plan,
        source,
        input,
        orders,
        maps,
        batch,
        bucket,
        padded,
        policy,
        cache,
        sample,
        output,
    })
}

/// Whether samples may be kept after these steps.
fn check_cache(maps: &[BoundMap], given: bool) -> Result<()> {
    if given {
        return Err(Error::pipeline("cache: is given twice; the later one would be enough"));
    }
    let open = maps.iter().rposition(|step| step.map.is_open());
    if let Some(open) = open
        && !maps[open..].iter().any(|step| step.name == "resize")
    {
        return Err(Error::pipeline(format!(
            "cache: {} leaves it to a later resize how large its images are; put cache after resize",
            maps[open].call
        )));
    }
    match maps.iter().find(|step| step.map.is_random()) {
        None => Ok(()),
        Some(step) => Err(Error::pipeline(format!(
            "cache: {0} before it makes random choices, so its results are others in every epoch; put \
             cache before {0}",
            step.name
        ))),
    }
}

/// The name of what is kept: another release may compute other bits.
fn of_this_release(name: &str) -> String {
    let named = format!("{name} {}", env!("CARGO_PKG_VERSION"));
    blake3::hash(named.as_bytes()).to_hex()[..32].to_owned()
}

/// Tells each step what comes before it, as far as that is the same in every epoch.
///
/// Gives the names of what each one gets, and of what comes out in the end; none after a step that makes
/// random choices.
fn bind_maps(maps: &mut [BoundMap], manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut before = blake3::Hasher::new();
    before.update(manifest.as_bytes());
    let mut random = false;
    for step in maps {
        let identity = before.finalize().to_hex();
        step.map.bind((!random).then_some(&identity[..32]));
        if !random {
            names.push(identity[..32].to_owned());
        }
        before.update(b"|").update(step.call.as_bytes());
        random |= step.map.is_random();
    }
    if !random {
        names.push(before.finalize().to_hex()[..32].to_owned());
    }
    names
}

impl Pipeline {
    /// Checks a plan and says what it delivers, without opening data. With a store, a source may
    /// look at its files to settle what its arguments leave open, such as the types of its fields;
    /// the plan that comes back says them.
    ///
    /// # Errors
    ///
    /// If a step is unknown, an argument is wrong, or steps do not fit together.
    pub fn check(plan: &Plan, store: Option<&dyn Store>) -> Result<(Plan, Spec)> {
        let checked = check(plan, store)?;
        Ok((checked.plan, checked.output))
    }

    /// Checks a plan and opens its data.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::check`], or if the data is missing.
    pub fn open(plan: &Plan, store: &dyn Store, blobs: &Blobs) -> Result<Self> {
        Self::open_with(plan, store, blobs, None)
    }

    /// As [`Pipeline::open`], with somebody who runs the functions of its steps.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::open`].
    pub fn open_with(
        plan: &Plan,
        store: &dyn Store,
        blobs: &Blobs,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Self> {
        let checked = check(plan, Some(store))?;
        let source = checked.source.open(store, blobs)?;
        Self::bind(checked, source, blobs, host)
    }

    /// The same pipeline on one part of its data, which need not be opened again.
    ///
    /// # Errors
    ///
    /// If the data cannot be parted in this way.
    pub fn shard(&self, shard: &Shard, blobs: &Blobs) -> Result<Self> {
        let mut calls = self.plan.calls().to_vec();
        calls.insert(1, Call::of(shard)?);
        let checked = check(&Plan::new(calls), None)?;
        let bound = Self::bind(checked, Arc::clone(&self.source), blobs, self.host.clone())?;
        Ok(bound.keeping_as(self))
    }

    /// The same pipeline once more, on the same opened data.
    ///
    /// # Errors
    ///
    /// None that opening it did not meet.
    pub fn again(&self, blobs: &Blobs) -> Result<Self> {
        let checked = check(&self.plan, None)?;
        let bound = Self::bind(checked, Arc::clone(&self.source), blobs, self.host.clone())?;
        Ok(bound.keeping_as(self))
    }

    /// Keeps samples where another pipeline on the same data does.
    fn keeping_as(mut self, other: &Self) -> Self {
        if let (Some(point), Some(theirs)) = (&mut self.cache, &other.cache)
            && point.identity == theirs.identity
        {
            point.attached.clone_from(&theirs.attached);
        }
        self
    }

    fn bind(
        checked: Checked,
        source: Arc<dyn Source>,
        blobs: &Blobs,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Self> {
        let Checked { plan, input, orders, mut maps, batch, .. } = checked;
        let Checked { bucket, padded, policy, cache, sample, output, .. } = checked;
        if let (Policy::Raise, Some(error)) = (&policy, source.known_bad()) {
            return Err(error);
        }
        let names = bind_maps(&mut maps, &source.manifest());
        for step in &mut maps {
            step.map.attach(blobs, host.as_ref())?;
        }
        let mut length = Length::Finite(source.length());
        let mut order: Vec<Box<dyn OrderRun>> = Vec::new();
        let (mut order_names, mut fixed) = (Vec::new(), true);
        for (name, id, recipe) in orders {
            let before = Before { length, fixed, order: &order };
            let run = recipe.bind(&*source, blobs, &before, id)?;
            length = run.length();
            fixed &= recipe.is_fixed();
            order.push(run);
            order_names.push(name);
        }
        let cache = cache.map(|(after, recipe)| CachePoint {
            after,
            recipe,
            identity: names.get(after).map(|name| of_this_release(name)).unwrap_or_default(),
            shuffled: order_names.iter().any(|name| matches!(*name, "shuffle" | "sample")),
            attached: OnceLock::new(),
        });
        Ok(Self {
            plan,
            source,
            input,
            order,
            order_names,
            maps,
            batch,
            bucket,
            padded,
            policy,
            cache,
            sample,
            output,
            length,
            host,
        })
    }

    /// Number of places in an epoch.
    #[must_use]
    pub fn length(&self) -> Length {
        self.length
    }

    /// Places in a stretch: those of one batch, or as many as the plan says.
    #[must_use]
    pub fn stretch(&self) -> usize {
        self.bucket.as_ref().map_or(self.group(), |bucket| bucket.stretch)
    }

    /// Samples that are prepared together: those of a full batch.
    #[must_use]
    pub fn group(&self) -> usize {
        self.batch.as_ref().map_or(1, |batch| batch.size)
    }

    /// Whether each place gives exactly one output and each stretch one batch, so that lengths and
    /// batches are arithmetic.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.policy == Policy::Raise && self.bucket.is_none() && !self.filters()
    }

    /// Whether samples may be missing from what is delivered: bad ones, or filtered ones.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        self.policy != Policy::Raise || self.filters()
    }

    fn filters(&self) -> bool {
        self.maps.iter().any(|step| step.map.is_filter())
    }

    /// Whether it has steps that take several samples at once.
    #[must_use]
    pub fn gathers(&self) -> bool {
        self.maps.iter().any(|step| step.map.gathers())
    }

    /// Who runs the functions of its steps, if it has any. Each run holds on to it.
    ///
    /// # Errors
    ///
    /// If it has some and nobody runs them here; names the first.
    pub fn host(&self) -> Result<Option<&Arc<dyn Host>>> {
        let found =
            self.maps.iter().find_map(|step| step.map.function().map(|name| (step.name, name)));
        match (found, &self.host) {
            (None, _) => Ok(None),
            (Some(_), Some(host)) => Ok(Some(host)),
            (Some((step, name)), None) => Err(Error::pipeline(format!(
                "{step}: the function {name} is to be run, and no host for functions was named here, \
                 such as \"python -m feedline.host\" (--functions, in a shell)"
            ))),
        }
    }

    /// The plan's fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.plan.fingerprint()
    }

    /// Which sample comes at a place.
    #[must_use]
    pub fn address(&self, place: u64, cursor: &mut Cursor) -> Address {
        let (mut place, mut visit) = (place, 0);
        for step in self.order.iter().rev() {
            (place, visit) = step.at(place, visit, cursor);
        }
        Address { index: place, visit }
    }

    /// The context in which finished values are written out, after all steps.
    pub fn finish<'a>(&self, seed: SampleSeed, workspace: &'a mut Workspace) -> Context<'a> {
        let slot = self.maps.len();
        Context { workspace, seed, step: StepId::new("finish", 0), slot }
    }

    /// A workspace for this pipeline's steps.
    #[must_use]
    pub fn workspace(&self, pool: feedline_core::Pool, reference: bool) -> Workspace {
        Workspace::new(pool, self.maps.len() + 1, reference)
    }
}
