//! Which URLs may be read, and which addresses may be connected to.
//!
//! ```text
//!  URL ──► Allowed: scheme, host, port, path ──► name ──► resolved addresses ──► reach ──► connection
//!             ▲ each redirect comes here again              the one that is connected to
//! ```

use feedline_core::{Error, Result, Scheme, Url};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// URLs below which objects may be read, and no others.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    urls: Vec<Url>,
}

impl Allowed {
    /// A list of what may be read: `s3://bucket/prefix/`, `https://host/path/`.
    ///
    /// # Errors
    ///
    /// If one is no URL, or can never be allowed.
    pub fn new(urls: &[String]) -> Result<Self> {
        let read = |text: &String| {
            let url = Url::parse(text)?;
            match url.address().map(reach) {
                Some(Reach::Never) => Err(Error::pipeline(format!(
                    "{url} is an address of this machine's network or provider, which is never read"
                ))),
                _ => Ok(url),
            }
        };
        Ok(Self { urls: urls.iter().map(read).collect::<Result<_>>()? })
    }

    /// Whether a URL is one of these or lies below one.
    #[must_use]
    pub fn permits(&self, url: &Url) -> bool {
        self.urls.iter().any(|allowed| allowed.holds(url))
    }

    /// What whoever asked for another URL is told.
    pub(crate) fn refused(&self, url: &Url) -> Error {
        let names: Vec<String> = self.urls.iter().map(Url::to_string).collect();
        let rule = match names.is_empty() {
            true => {
                "this worker reads no URLs; it would if it were started with --allow-url".into()
            }
            false => format!("only what lies below {} may be (--allow-url)", names.join(", ")),
        };
        Error::Source(format!("{url} may not be read here: {rule}"))
    }
}

/// What an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Public,
    /// Other machines of the same network.
    Private,
    /// This machine.
    Loopback,
    /// Nothing that holds data: this link, the provider's metadata, all machines at once.
    Never,
}

/// What an address leads to, also where one kind of address is wrapped in another.
pub(crate) fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => match wrapped(address) {
            Some(inside) => reach_v4(inside),
            None => reach_v6(address),
        },
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        [127, ..] => Reach::Loopback,
        // The metadata of Alibaba, Oracle and Azure lie outside the usual range.
        [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Reach::Never,
        [0, ..] | [169, 254, ..] | [224..=255, ..] => Reach::Never,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Reach::Private,
        [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18..=19, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    match address.segments() {
        _ if address == Ipv6Addr::LOCALHOST => Reach::Loopback,
        _ if address.is_unspecified() => Reach::Never,
        // This link, all machines at once, and the metadata of Amazon and Google.
        [0xFE80..=0xFEBF, ..] | [0xFF00..=0xFFFF, ..] => Reach::Never,
        [0xFD00, 0x0EC2, ..] | [0xFD20, 0x00CE, ..] => Reach::Never,
        // Teredo hides where it leads.
        [0x2001, 0, ..] => Reach::Never,
        [0xFC00..=0xFDFF, ..] | [0xFEC0..=0xFEFF, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

/// The address of the old kind that one of the new kind stands for.
fn wrapped(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let two = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(two(high, low)),
        [0, 0, 0, 0, 0, 0xFFFF, high, low] => Some(two(high, low)),
        [0, 0, 0, 0, 0xFFFF, 0, high, low] => Some(two(high, low)),
        [0x64, 0xFF9B, .., high, low] => Some(two(high, low)),
        [0x2002, high, low, ..] => Some(two(high, low)),
        _ => None,
    }
}

/// Who may be connected to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// What may be read; everything if there is no list.
    pub allowed: Option<Allowed>,
    /// Whether what is said may be read by others on the way.
    pub plain_http: bool,
}

impl Rules {
    /// Whether a URL may be read at all.
    pub(crate) fn check(&self, url: &Url) -> Result<()> {
        if let Some(allowed) = &self.allowed
            && !allowed.permits(url)
        {
            return Err(allowed.refused(url));
        }
        self.check_web(url)
    }

    /// What is known of a web server before its name is resolved.
    pub(crate) fn check_web(&self, url: &Url) -> Result<()> {
        if !url.scheme().is_web() {
            return Ok(());
        }
        if url.address().is_some_and(|address| reach(address) == Reach::Never) {
            return Err(Error::Source(format!(
                "{url} may not be read: its address belongs to this machine's network or provider"
            )));
        }
        // Whoever allowed a URL by name has said that it may be http.
        let open = self.plain_http || self.allowed.is_some() || is_loopback(url);
        if url.scheme() == Scheme::Http && !open {
            return Err(Error::Source(format!(
                "{url} would be read without TLS, so others could read and change it on the way; \
                 use https://, or set FEEDLINE_ALLOW_HTTP=1"
            )));
        }
        Ok(())
    }

    /// Whether a name that leads to this address may be used.
    pub(crate) fn check_resolved(&self, name: &str, address: IpAddr) -> Result<(), String> {
        let why = match reach(address) {
            Reach::Never => "which belongs to this machine's network or provider",
            Reach::Loopback if self.allowed.is_some() && name != "localhost" => {
                "this machine itself"
            }
            _ => return Ok(()),
        };
        Err(format!("{name} leads to {address}, {why}; that is not read"))
    }
}

fn is_loopback(url: &Url) -> bool {
    url.address().is_some_and(|address| reach(address) == Reach::Loopback)
        || url.host() == "localhost"
}

#[cfg(test)]
mod tests;
