//! Objects that lie elsewhere, by URL: `s3://`, `gs://`, `az://`, `https://`, `http://`.
//!
//! ```text
//!  read ──► parts of a few megabytes ──► tries of each, from where the last one ended ──► bytes
//!            at the same time              version and length compared with the listing
//! ```
//!
//! Whoever reads waits on a thread of its own, and two threads carry the bytes of all. What was listed
//! is pinned: of an object that has another version or length no byte is given.

mod allowed;
mod net;
mod object;
mod retry;

pub use allowed::Allowed;
pub use retry::Patience;

use crate::local::sort;
use allowed::Rules;
use feedline_core::{Attempt, Cut, Entry, Error, Extent, Result, Store, Url};
use futures_util::{StreamExt, TryStreamExt, stream};
use net::{Environment, Net};
use object::{Purpose, bad, entry_of, key_of, trouble, url_of};
use retry::{Tries, Trouble};
use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Reads longer than this are made of parts …
const PART: usize = 8 << 20;
/// … of which so many are asked for at the same time.
const PARTS_AT_ONCE: usize = 8;
/// Objects that are looked at at the same time.
const LOOKS_AT_ONCE: usize = 32;
/// Runs of a cut with less than this between them are read together: to ask once more takes longer.
const NEAR: u64 = 512 << 10;

/// Objects of all stores that are reached by URL. Connections are made when they are first needed.
pub struct UrlStore {
    rules: Rules,
    patience: Patience,
    environment: Environment,
    /// The connections, and the process that made them.
    net: Mutex<Option<(u32, Arc<Net>)>>,
}

/// What of an object is read.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    url: &'a Url,
    /// Its length when it was listed, if that is known.
    size: Option<u64>,
    /// The version that was listed; and the one that was met, where none was.
    listed: i64,
    met: &'a AtomicI64,
}

impl std::fmt::Debug for UrlStore {
    // Settings hold credentials: they are never shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UrlStore({:?})", self.rules)
    }
}

impl Default for UrlStore {
    fn default() -> Self {
        Self::new(Patience::default())
    }
}

impl UrlStore {
    /// A store of everything that this user may read.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        let plain_http = std::env::var_os("FEEDLINE_ALLOW_HTTP").is_some_and(|value| value == "1");
        Self::with(Rules { allowed: None, plain_http }, patience)
    }

    /// A store of what lies below some URLs, whatever else is asked for.
    #[must_use]
    pub fn confined(allowed: Allowed, patience: Patience) -> Self {
        Self::with(Rules { allowed: Some(allowed), plain_http: false }, patience)
    }

    fn with(rules: Rules, patience: Patience) -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let environment = std::env::vars_os().filter_map(text).collect();
        Self { rules, patience, environment, net: Mutex::default() }
    }

    /// The same with these settings (`AWS_REGION`, …) instead of those of the environment.
    #[must_use]
    pub fn with_settings(self, settings: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { environment: settings.iter().map(own).collect(), net: Mutex::default(), ..self }
    }

    fn net(&self) -> Result<Arc<Net>> {
        let mut net = self.net.lock().unwrap_or_else(PoisonError::into_inner);
        let this = std::process::id();
        match &*net {
            Some((process, net)) if *process == this => return Ok(Arc::clone(net)),
            // The threads of a process are not there in one that was forked from it; nor can they be
            // ended there.
            Some(_) => std::mem::forget(net.take()),
            None => {}
        }
        let made = Arc::new(Net::new(&self.rules, &self.patience, Arc::clone(&self.environment))?);
        *net = Some((this, Arc::clone(&made)));
        Ok(made)
    }

    /// The URL of a path, if it may be read.
    fn allowed(&self, path: &Path) -> Result<Url> {
        let url = url_of(path)?;
        self.rules.check(&url)?;
        Ok(url)
    }

    /// Looks at one object, as often as it takes.
    async fn look(&self, net: &Net, path: &Path) -> Result<Entry> {
        let url = self.allowed(path)?;
        if url.is_folder() {
            return Err(Error::Source(format!("{url} is a folder, not an object")));
        }
        let mut tries = Tries::opening(self.patience);
        loop {
            let looked = tokio::time::timeout(tries.left(), net.look(&url)).await;
            match looked.unwrap_or_else(|_| Err(Trouble::later("the server is silent"))) {
                Ok(entry) => return Ok(Entry { path: path.to_owned(), ..entry }),
                Err(trouble) => tries.again(&url.to_string(), trouble).await?,
            }
        }
    }

    /// All objects below a prefix, as often as it takes, each time from where the last try ended.
    async fn below(&self, net: &Net, url: &Url) -> Result<Vec<Entry>> {
        let store = net.store(url)?;
        let prefix = key_of(url)?;
        let prefix = Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let mut tries = Tries::opening(self.patience);
        let (mut entries, mut last) = (Vec::new(), None);
        loop {
            let mut listing = match &last {
                None => store.list(prefix),
                Some(last) => store.list_with_offset(prefix, last),
            };
            let failed = loop {
                match tokio::time::timeout(self.patience.silence, listing.next()).await {
                    Ok(Some(Ok(meta))) => {
                        tries.brought_something();
                        entries.push(entry_of(url, &meta));
                        last = Some(meta.location);
                    }
                    Ok(Some(Err(error))) => break trouble(url, &error, Purpose::Opening),
                    Ok(None) => return Ok(entries),
                    Err(_) => break Trouble::later("the server is silent"),
                }
            };
            tries.again(&url.to_string(), failed).await?;
        }
    }

    /// Reads a range into `out`, in parts if it is a large one.
    async fn fill(&self, net: &Net, wanted: Wanted<'_>, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.len() <= PART {
            return self.part(net, wanted, offset, out).await;
        }
        let parts = out.chunks_mut(PART).enumerate().map(|(number, out)| {
            let from = offset + (number * PART) as u64;
            async move { self.part(net, wanted, from, out).await }
        });
        stream::iter(parts).buffer_unordered(PARTS_AT_ONCE).try_collect().await
    }

    /// Reads a range into `out`, as often as it takes, each time from where the last try ended.
    async fn part(&self, net: &Net, wanted: Wanted<'_>, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut tries = Tries::reading(self.patience, out.len() as u64);
        let mut done = 0;
        loop {
            let before = done;
            let trying = self.try_part(net, wanted, offset, out, &mut done);
            let tried = tokio::time::timeout(tries.left(), trying).await;
            match tried.unwrap_or_else(|_| Err(Trouble::later("its bytes come too slowly"))) {
                Ok(()) => return Ok(()),
                Err(trouble) => {
                    if done > before {
                        tries.brought_something();
                    }
                    tries.again(&wanted.url.to_string(), trouble).await?;
                }
            }
        }
    }

    async fn try_part(
        &self,
        net: &Net,
        wanted: Wanted<'_>,
        offset: u64,
        out: &mut [u8],
        done: &mut usize,
    ) -> Result<(), Trouble> {
        // Of an empty object there is no range to ask for.
        let range = (!out.is_empty())
            .then(|| offset + *done as u64..offset + out.len() as u64)
            .filter(|range| !range.is_empty());
        let mut answer = net.ask(wanted.url, range).await?;
        wanted.check(answer.total, answer.version)?;
        let whole = wanted.size == Some(out.len() as u64);
        if answer.from_start && offset > 0 {
            let why = format!(
                "{} can be read from its beginning only: its server gives no ranges",
                wanted.url
            );
            return Err(Error::Source(why).into());
        }
        // A server without ranges begins again, and so does this.
        if answer.from_start {
            *done = 0;
        }
        while *done < out.len() {
            let Some(bytes) = answer.next().await? else {
                let missing = out.len() - *done;
                return Err(Trouble::later(format!("the answer ended {missing} bytes too early")));
            };
            let room = &mut out[*done..];
            if bytes.len() > room.len() {
                if whole && answer.total.is_none() {
                    return Err(bad(wanted.url, "the object has changed: it is longer").into());
                }
                // The server gives more than it was asked for. What was asked for is there.
                room.copy_from_slice(&bytes[..room.len()]);
                *done = out.len();
                return Ok(());
            }
            room[..bytes.len()].copy_from_slice(&bytes);
            *done += bytes.len();
        }
        if out.is_empty() && answer.next().await?.is_some_and(|bytes| !bytes.is_empty()) {
            return Err(bad(wanted.url, "the object has changed: it is no longer empty").into());
        }
        Ok(())
    }
}

impl Wanted<'_> {
    /// Whether an answer is of the object that was listed.
    fn check(&self, total: Option<u64>, version: i64) -> Result<()> {
        if let (Some(size), Some(total)) = (self.size, total)
            && size != total
        {
            let reason =
                format!("the object has changed: it has {total} bytes, and had {size} when listed");
            return Err(bad(self.url, &reason));
        }
        if version == 0 {
            return Ok(());
        }
        let known = match self.listed {
            0 => self.met.compare_exchange(0, version, Ordering::Relaxed, Ordering::Relaxed),
            listed => Err(listed),
        };
        match known.err().is_none_or(|known| known == version) {
            true => Ok(()),
            false => Err(bad(
                self.url,
                "the object has changed since it was listed: its server names another version (ETag)",
            )),
        }
    }
}

/// Leaves out what only marks a folder: an empty object of the name of what others lie below.
fn without_markers(entries: &mut Vec<Entry>) {
    let empty: HashSet<PathBuf> =
        entries.iter().filter(|entry| entry.size == 0).map(|entry| entry.path.clone()).collect();
    if empty.is_empty() {
        return;
    }
    let mut markers = HashSet::new();
    for entry in &*entries {
        let above = entry.path.ancestors().skip(1);
        markers.extend(above.filter(|folder| empty.contains(*folder)).map(Path::to_owned));
    }
    entries.retain(|entry| !markers.contains(&entry.path));
}

impl Store for UrlStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        let url = url_of(root)?;
        if url.scheme().is_web() {
            if url.is_folder() {
                self.rules.check(&url)?;
                return Err(Error::Source(format!(
                    "{url} cannot be listed: a web server has no listing; name its objects, as in \
                     {url}x-{{000..127}}.bin, or in a list"
                )));
            }
            return Ok(vec![self.stat(root)?]);
        }
        let folder = url.as_folder();
        self.rules.check(&folder)?;
        let net = self.net()?;
        let mut entries = net.wait(self.below(&net, &folder))?;
        if entries.is_empty() && !url.is_folder() && self.rules.check(&url).is_ok() {
            return Ok(vec![self.stat(root)?]);
        }
        if entries.is_empty() {
            return Err(Error::Source(format!(
                "{folder} holds no objects: is it spelt right, from the beginning of its bucket?"
            )));
        }
        without_markers(&mut entries);
        sort(&mut entries);
        Ok(entries)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        self.allowed(path)?;
        let net = self.net()?;
        net.wait(self.look(&net, path))
    }

    fn stat_all(&self, paths: &[PathBuf]) -> Vec<Result<Entry>> {
        let net = match self.net() {
            Ok(net) => net,
            Err(error) => return paths.iter().map(|_| Err(error.clone())).collect(),
        };
        let looks = paths.iter().map(|path| self.look(&net, path));
        net.wait(stream::iter(looks).buffered(LOOKS_AT_ONCE).collect())
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        let url = self.allowed(extent.path)?;
        if out.is_empty() && !extent.whole {
            return Ok(());
        }
        let net = self.net()?;
        let (size, met) = (extent.whole.then_some(extent.length), AtomicI64::new(0));
        let wanted = Wanted { url: &url, size, listed: extent.modified, met: &met };
        net.wait(self.fill(&net, wanted, extent.offset, out))
    }

    fn try_read(&self, _: Extent<'_>, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    fn read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
        let url = self.allowed(cut.path)?;
        let net = self.net()?;
        let met = AtomicI64::new(0);
        let wanted = Wanted { url: &url, size: Some(cut.size), listed: cut.modified, met: &met };
        let spans = spans(cut, *done);
        if let [only] = &spans[..]
            && only.end - only.start == out.len() as u64
            && !cut.reversed.contains(&true)
        {
            net.wait(self.fill(&net, wanted, only.start, out))?;
            *done = cut.planes();
            return Ok(());
        }
        let net = &*net;
        let read = spans.iter().map(|span| async move {
            let mut bytes = vec![0; (span.end - span.start) as usize];
            self.fill(net, wanted, span.start, &mut bytes).await?;
            Ok::<_, Error>(bytes)
        });
        let bytes: Vec<Vec<u8>> =
            net.wait(stream::iter(read).buffered(PARTS_AT_ONCE).try_collect())?;
        cut.read_planes(done, out, |offset, out| {
            let at = spans.partition_point(|span| span.end <= offset);
            let from = (offset - spans[at].start) as usize;
            out.copy_from_slice(&bytes[at][from..from + out.len()]);
            Ok(Attempt::Done)
        })?;
        Ok(())
    }
}

/// The ranges that hold the planes of a cut from number `done` on, near ones joined.
fn spans(cut: &Cut<'_>, done: usize) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for plane in done..cut.planes() {
        let (begin, whole, _) = cut.plane(plane);
        let (runs, stride) = (cut.counts[2] as u64, cut.strides[2]);
        // Runs that lie far from each other within a plane are asked for by themselves.
        if runs > 1 && stride > cut.run as u64 + NEAR {
            let each = (0..runs).map(|run| begin + run * stride);
            ranges.extend(each.map(|at| at..at + cut.run as u64));
        } else {
            ranges.push(begin..begin + whole as u64);
        }
    }
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + NEAR => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
