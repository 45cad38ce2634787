//! The cache: memory first, then the disk, then another host's, then storage.
//!
//! ```text
//!  find ──► memory ──► disk ──► owner's ──► (made) ──► keep: gate ──► memory, else disk
//! ```

use crate::admit::{Choice, Gate};
use crate::disk::{About, Disk, OnDisk, Put};
use crate::peers::{Asked, Hub};
use crate::ram::Ram;
use feedline_core::{
    Attempt, Cache, CacheStats, Cost, Fetch, Found, Name, Pool, Result, Sample, Store, Stored,
    Tensor, Value, Workspace,
};
use feedline_ops::Pipeline;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

/// How a cache is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names what is kept.
    pub identity: String,
    /// Says what that is, for people.
    pub about: About,
    /// Bytes of memory.
    pub ram: u64,
    /// Folder and bytes of disk.
    pub disk: Option<(PathBuf, u64)>,
    /// Which samples are kept if there is no room for all.
    pub choice: Choice,
    /// With whom it is shared.
    pub peers: Option<Arc<Hub>>,
}

/// Keeps samples in memory and on a disk.
pub struct TieredCache {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    identity: String,
    ram: Ram,
    disk: Option<Disk>,
    gate: Gate,
    counts: Counts,
    peers: Option<Arc<Hub>>,
    /// Pipelines that can make what peers ask for, and what threads need to do so.
    makers: Mutex<Vec<Maker>>,
    workspaces: Mutex<Vec<Workspace>>,
}

/// A pipeline, and where its data lies.
type Maker = (Weak<Pipeline>, Arc<dyn Store>);

/// What a peer is told.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each sample")]
pub(crate) enum Answer {
    /// Here it is.
    Sample(Sample, Cost),
    /// It is not kept here.
    Unwanted,
    /// Nothing more is kept here.
    Full,
}

#[derive(Default)]
struct Counts {
    ram_hits: AtomicU64,
    disk_hits: AtomicU64,
    peer_hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    bytes_saved: AtomicU64,
    nanos_saved: AtomicU64,
    served: AtomicU64,
    read_for_peers: AtomicU64,
}

impl Counts {
    fn hit(&self, which: &AtomicU64, cost: Cost) {
        which.fetch_add(1, Ordering::Relaxed);
        self.bytes_saved.fetch_add(cost.bytes, Ordering::Relaxed);
        self.nanos_saved.fetch_add(cost.work + cost.wait, Ordering::Relaxed);
    }
}

impl TieredCache {
    /// Opens a cache.
    ///
    /// # Errors
    ///
    /// If the folder cannot be used.
    pub fn open(settings: &Settings) -> Result<Self> {
        let Settings { identity, about, ram, disk, choice, peers } = settings;
        let disk = disk.as_ref().filter(|(_, bytes)| *bytes > 0);
        let capacity = ram.saturating_add(disk.map_or(0, |(_, bytes)| *bytes));
        let disk = disk.map(|(path, bytes)| Disk::open(path, identity, about, *bytes));
        let owners = peers.as_ref().map_or(1, |hub| hub.count() as u64);
        let inner = Arc::new(Inner {
            identity: identity.clone(),
            ram: Ram::new(*ram),
            disk: disk.transpose()?,
            gate: Gate::new(*choice, about.samples.div_ceil(owners.max(1)), capacity),
            counts: Counts::default(),
            peers: peers.clone(),
            makers: Mutex::default(),
            workspaces: Mutex::default(),
        });
        if let Some(hub) = peers {
            hub.serve(identity, Arc::downgrade(&inner));
        }
        Ok(Self { inner })
    }

    /// Lets samples that peers ask for be made by this pipeline, as long as it is there.
    pub fn make_by(&self, pipeline: &Arc<Pipeline>, store: &Arc<dyn Store>) {
        let mut makers = self.inner.makers.lock().unwrap_or_else(PoisonError::into_inner);
        makers.retain(|(pipeline, _)| pipeline.strong_count() > 0);
        makers.push((Arc::downgrade(pipeline), Arc::clone(store)));
    }
}

impl Cache for TieredCache {
    fn find(&self, index: u64) -> Found {
        let inner = &self.inner;
        let owned = inner.peers.as_ref().is_none_or(|hub| hub.owner_of(index) == hub.me());
        if owned {
            inner.gate.looked();
        }
        if let Some((sample, cost)) = inner.ram.find(index) {
            inner.counts.hit(&inner.counts.ram_hits, cost);
            return Found::Here(sample);
        }
        if let Some(place) = inner.disk.as_ref().and_then(|disk| disk.find(index)) {
            return Found::Stored(Box::new(Reading { place, inner: Arc::clone(inner) }));
        }
        // One who is full may have passed its own samples on.
        if inner.peers.is_some() && (!owned || inner.gate.is_closed()) {
            return Found::Stored(Box::new(Asking { index, inner: Arc::clone(inner) }));
        }
        inner.counts.misses.fetch_add(1, Ordering::Relaxed);
        Found::Missing
    }

    fn wants(&self, index: u64) -> bool {
        let ours = self.inner.peers.as_ref().is_none_or(|hub| hub.is_ours(index));
        ours && self.inner.gate.wants(index)
    }

    fn keep(&self, index: u64, fields: &[(Name, Tensor)], cost: Cost) {
        self.inner.keep(index, fields, cost);
    }

    fn stats(&self) -> CacheStats {
        let Inner { identity, ram, disk, gate, counts, peers, .. } = &*self.inner;
        let Counts { ram_hits, disk_hits, peer_hits, misses, damaged, .. } = counts;
        let Counts { bytes_saved, nanos_saved, served, read_for_peers, .. } = counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (disk_samples, disk_bytes, disk_limit) = disk.as_ref().map_or((0, 0, 0), Disk::counts);
        let full = gate.is_closed().then(|| "it is full".to_owned());
        CacheStats {
            identity: identity.clone(),
            ram_hits: count(ram_hits),
            disk_hits: count(disk_hits),
            peer_hits: count(peer_hits),
            misses: count(misses),
            ram_samples: ram.count(),
            ram_bytes: ram.used(),
            ram_limit: ram.limit(),
            disk_samples,
            disk_bytes,
            disk_limit,
            bytes_saved: count(bytes_saved),
            seconds_saved: count(nanos_saved) as f64 / 1e9,
            damaged: count(damaged),
            served: count(served),
            bytes_read_for_peers: count(read_for_peers),
            peer_failures: peers.as_ref().map_or(0, |hub| hub.failures()),
            note: disk.as_ref().and_then(Disk::note).or(full).unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for TieredCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TieredCache({})", self.inner.identity)
    }
}

impl Inner {
    fn keep(&self, index: u64, fields: &[(Name, Tensor)], cost: Cost) {
        let bytes = Ram::size_of(fields);
        if !self.gate.admits(index, bytes, cost) {
            return;
        }
        if self.ram.put(index, fields, cost) {
            self.gate.kept(bytes);
            return;
        }
        match self.disk.as_ref().map(|disk| disk.put(index, fields, cost)) {
            Some(Put::Kept) => self.gate.kept(bytes),
            Some(Put::Full(room)) => self.gate.refused(room.max(self.ram.room())),
            Some(Put::Broken) | None => self.gate.refused(self.ram.room()),
        }
    }

    /// A sample for a peer: what is here, or what is made now and kept.
    pub(crate) fn answer(&self, index: u64) -> Answer {
        let answer = self.find_or_make(index);
        let given = matches!(answer, Answer::Sample(..));
        self.counts.served.fetch_add(u64::from(given), Ordering::Relaxed);
        answer
    }

    fn find_or_make(&self, index: u64) -> Answer {
        self.gate.looked();
        if let Some((sample, cost)) = self.ram.find(index) {
            return Answer::Sample(sample, cost);
        }
        if let Some(place) = self.disk.as_ref().and_then(|disk| disk.find(index)) {
            if let (_, Some(sample)) = place.read(&Pool::new(0), true) {
                return Answer::Sample(sample, place.row.cost);
            }
            self.counts.damaged.fetch_add(1, Ordering::Relaxed);
            self.disk.iter().for_each(|disk| disk.forget(&place));
        }
        if self.gate.is_closed() {
            return Answer::Full;
        }
        let maker = {
            let makers = self.makers.lock().unwrap_or_else(PoisonError::into_inner);
            makers
                .iter()
                .find_map(|(pipeline, store)| Some((pipeline.upgrade()?, Arc::clone(store))))
        };
        let Some((pipeline, store)) = maker.filter(|_| self.gate.wants(index)) else {
            return Answer::Unwanted;
        };
        if index >= pipeline.source.length() {
            return Answer::Unwanted;
        }
        let kept = |workspace: &Workspace| workspace.times.len() == pipeline.maps.len() + 1;
        let workspace = {
            let mut free = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
            free.pop().filter(kept)
        };
        let mut workspace =
            workspace.unwrap_or_else(|| pipeline.workspace(Pool::new(64 << 20), false));
        let start = Instant::now();
        // If it is bad, whoever asked finds out by itself, and says so in its own words.
        let Ok(fields) = pipeline.kept_sample(index, &*store, &mut workspace) else {
            return Answer::Unwanted;
        };
        let bytes = pipeline.source.weight(index);
        self.counts.read_for_peers.fetch_add(bytes, Ordering::Relaxed);
        let cost = Cost { work: start.elapsed().as_nanos() as u64, wait: 0, bytes };
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        self.keep(index, &fields, cost);
        Answer::Sample(Sample::of(fields), cost)
    }
}

/// So many of those who may have a sample are asked for it.
const ASKED: usize = 3;

/// A sample that others are asked for.
struct Asking {
    index: u64,
    inner: Arc<Inner>,
}

impl Stored for Asking {
    fn fetch(&mut self, _pool: &Pool, wait: bool) -> Fetch {
        if !wait {
            return Fetch::WouldWait;
        }
        let inner = &*self.inner;
        let Some(hub) = &inner.peers else { return Fetch::Gone };
        for peer in hub.owners(self.index).into_iter().take(ASKED) {
            if hub.me() == Some(peer) {
                if inner.gate.is_closed() {
                    continue;
                }
                break;
            }
            match hub.ask(peer, &inner.identity, self.index) {
                Asked::Sample(sample, cost) => {
                    inner.counts.hit(&inner.counts.peer_hits, cost);
                    return Fetch::Sample(sample);
                }
                Asked::Passed => {}
                Asked::Gone => break,
            }
        }
        inner.counts.misses.fetch_add(1, Ordering::Relaxed);
        Fetch::Gone
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// A sample that is being got from the disk.
struct Reading {
    place: OnDisk,
    inner: Arc<Inner>,
}

impl Stored for Reading {
    fn fetch(&mut self, pool: &Pool, wait: bool) -> Fetch {
        let Inner { ram, disk, counts, .. } = &*self.inner;
        let (cost, index) = (self.place.row.cost, self.place.row.index);
        match self.place.read(pool, wait) {
            (Attempt::WouldWait, _) => Fetch::WouldWait,
            (Attempt::Done, Some(sample)) => {
                counts.hit(&counts.disk_hits, cost);
                if ram.room() > self.place.row.length {
                    let tensors: Vec<_> = tensors(&sample).collect();
                    ram.put(index, &tensors, cost);
                }
                Fetch::Sample(sample)
            }
            (Attempt::Done, None) => {
                counts.damaged.fetch_add(1, Ordering::Relaxed);
                counts.misses.fetch_add(1, Ordering::Relaxed);
                if let Some(disk) = disk {
                    disk.forget(&self.place);
                }
                Fetch::Gone
            }
        }
    }

    fn bytes(&self) -> usize {
        self.place.row.length as usize
    }
}

/// The fields of a sample that was kept: tensors, all of them.
pub(crate) fn tensors(sample: &Sample) -> impl Iterator<Item = (Name, Tensor)> {
    sample.fields().filter_map(|(name, value)| match value {
        Value::Tensor(tensor) => Some((*name, tensor.clone())),
        Value::Deferred(_) => None,
    })
}
