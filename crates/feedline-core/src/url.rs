//! Names of objects that lie elsewhere: `s3://bucket/key`, `https://host/path`; a grammar, and no access.
//!
//! A URL is taken only in its plain spelling. Whatever could mean one thing to a list of allowed URLs
//! and another to the server that is asked (`..`, encoded slashes, names before an `@`, numbers in odd
//! bases) is refused here, so nothing behind has to think of it. Queries are refused as well: they
//! often carry a secret, and plans are stored and shared.

use crate::braces::some_of;
use crate::{Error, Result};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// How an object is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Amazon S3, and what speaks like it.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// A web server.
    Http,
    /// A web server, over TLS.
    Https,
}

impl Scheme {
    const ALL: [(&'static str, Self); 5] = [
        ("s3", Self::S3),
        ("gs", Self::Gs),
        ("az", Self::Az),
        ("http", Self::Http),
        ("https", Self::Https),
    ];

    /// As it is written before `://`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, scheme)| *scheme == self).map_or("", |(name, _)| name)
    }

    /// Whether it is a web server, of which nothing can be listed.
    #[must_use]
    pub fn is_web(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

/// The host of a URL, or its bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// The name of an object, or of all objects below a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    scheme: Scheme,
    host: Host,
    port: Option<u16>,
    path: String,
}

/// What stands before `://`, if a name is written like a URL, and what stands behind.
fn split(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let begins = scheme.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    (begins && scheme.bytes().all(letter)).then_some((scheme, rest))
}

/// Whether a name is written like a URL, right or wrong, rather than like a path.
#[must_use]
pub fn is_url(path: &Path) -> bool {
    // A name that is no UTF-8 may still begin like a URL.
    split(&path.to_string_lossy()).is_some()
}

/// A text for messages, without what may be secret in it: names and passwords before an `@`, queries
/// and fragments.
#[must_use]
pub fn redacted(text: &str) -> String {
    let Some((scheme, rest)) = split(text) else { return text.to_owned() };
    let rest = match rest.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => rest.to_owned(),
    };
    match rest.find(['?', '#']) {
        Some(at) => format!("{scheme}://{}{}…", &rest[..at], &rest[at..=at]),
        None => format!("{scheme}://{rest}"),
    }
}

/// Where data lies as a plan says it: a URL in its plain spelling, or a path; `file:///data` is the
/// path `/data`.
///
/// # Errors
///
/// If it is written like a URL and is none.
pub fn place(path: PathBuf) -> Result<PathBuf> {
    if !is_url(&path) {
        return Ok(path);
    }
    let Some(text) = path.to_str() else {
        let shown = redacted(&path.to_string_lossy());
        return Err(Error::pipeline(format!("{shown} is no URL: it is not UTF-8")));
    };
    match split(text) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") => file(text, rest),
        // A name with braces is kept as it is written, and each that it stands for must be right.
        _ if text.contains('{') => {
            let names = some_of(text)?;
            names.iter().try_for_each(|name| Url::parse(name).map(|_| ()))?;
            Ok(path)
        }
        _ => Ok(PathBuf::from(Url::parse(text)?.to_string())),
    }
}

/// The path that a `file://` URL names.
fn file(text: &str, rest: &str) -> Result<PathBuf> {
    let path = rest.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(wrong(text, "a file of this machine is written file:///folder/name"));
    }
    if path.contains(['?', '#']) {
        return Err(wrong(text, "? and # are written %3F and %23 in it"));
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let byte = after.get(..2).and_then(hex).filter(|byte| *byte != 0);
        bytes.push(byte.ok_or_else(|| wrong(text, "% is followed by two hexadecimal digits"))?);
        rest = &after[2..];
    }
    use std::os::unix::ffi::OsStringExt;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
}

fn wrong(text: &str, why: &str) -> Error {
    Error::pipeline(format!("{} is no URL that can be read: {why}", redacted(text)))
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// If it is none, or not in its plain spelling. The message holds nothing secret.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| wrong(text, why);
        let (name, rest) = split(text).ok_or_else(|| bad("it begins like s3://bucket/"))?;
        let known = Scheme::ALL.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let Some((_, scheme)) = known else {
            let known: Vec<&str> = Scheme::ALL.iter().map(|(name, _)| *name).collect();
            let known = known.join(", ");
            return Err(bad(&format!("{name} is none of the schemes there are: {known}, file")));
        };
        if rest.contains('@')
            && (scheme.is_web() || !rest.contains('/') || before(rest).contains('@'))
        {
            return Err(bad(
                "a name or password before @ would be stored with the plan; credentials come from \
                 the environment",
            ));
        }
        if rest.chars().any(|letter| letter.is_control() || letter == '\\') {
            return Err(bad("it has \\ or an unprintable letter in it"));
        }
        if scheme.is_web() && rest.contains(['?', '#']) {
            return Err(bad(
                "a query often holds a secret, and it would be stored with the plan; name objects \
                 that need none",
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match scheme.is_web() {
            true => web_host(authority, *scheme).map_err(bad)?,
            false => (bucket(authority).map_err(bad)?, None),
        };
        if scheme.is_web() {
            web_path(path).map_err(bad)?;
        }
        let segments = path.strip_suffix('/').unwrap_or(path);
        for segment in segments.split('/').filter(|_| !segments.is_empty() || path == "/") {
            match segment {
                "" => return Err(bad("it has // in its path")),
                "." | ".." => return Err(bad("it has . or .. as a part of its path")),
                _ => {}
            }
        }
        Ok(Self { scheme: *scheme, host, port, path: path.to_owned() })
    }

    /// The URL that a path is written as; `None` if it is a path.
    #[must_use]
    pub fn of(path: &Path) -> Option<Result<Self>> {
        is_url(path).then(|| match path.to_str() {
            Some(text) => Self::parse(text),
            None => Err(wrong(&path.to_string_lossy(), "it is not UTF-8")),
        })
    }

    /// How it is reached.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The bucket, or the host without its port.
    #[must_use]
    pub fn host(&self) -> String {
        match &self.host {
            Host::Name(name) => name.clone(),
            Host::V4(address) => address.to_string(),
            Host::V6(address) => format!("[{address}]"),
        }
    }

    /// The host, if it is an address.
    #[must_use]
    pub fn address(&self) -> Option<std::net::IpAddr> {
        match self.host {
            Host::Name(_) => None,
            Host::V4(address) => Some(address.into()),
            Host::V6(address) => Some(address.into()),
        }
    }

    /// What stands behind the first slash: the key of an object, or the beginning of many.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.path
    }

    /// Whether it names all objects below a prefix rather than one.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.path.is_empty() || self.path.ends_with('/')
    }

    /// The same with a slash at its end.
    #[must_use]
    pub fn as_folder(&self) -> Self {
        let slash = if self.is_folder() { "" } else { "/" };
        Self { path: format!("{}{slash}", self.path), ..self.clone() }
    }

    /// Whether `other` is this URL or lies below it. Parts of names do not count: `s3://b/train` holds
    /// `s3://b/train/x`, and not `s3://b/training`.
    #[must_use]
    pub fn holds(&self, other: &Self) -> bool {
        let same =
            self.scheme == other.scheme && self.host == other.host && self.port == other.port;
        let below = match other.path.strip_prefix(&self.path) {
            Some(rest) => rest.is_empty() || rest.starts_with('/') || self.is_folder(),
            None => false,
        };
        same && below
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.host())?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        write!(f, "/{}", self.path)
    }
}

/// What stands before the first slash.
fn before(rest: &str) -> &str {
    rest.split_once('/').map_or(rest, |(before, _)| before)
}

fn bucket(name: &str) -> Result<Host, &'static str> {
    if name.is_empty() {
        return Err("it names no bucket: s3://bucket/folder/");
    }
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let begins = name.as_bytes()[0].is_ascii_alphanumeric();
    if !begins || name.len() > 255 || !name.bytes().all(letter) || name.contains("..") {
        return Err("a bucket is called by letters, digits, dots, - and _ alone");
    }
    Ok(Host::Name(name.to_owned()))
}

fn web_host(authority: &str, scheme: Scheme) -> Result<(Host, Option<u16>), &'static str> {
    const WRONG_PORT: &str = "what stands behind its host is no port";
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("a [ in its host is not closed")?;
            let address = address.parse().map_err(|_| "its host is no address")?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or(WRONG_PORT)?),
            };
            (Host::V6(address), port)
        }
        None => {
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            };
            (name_or_address(host)?, port)
        }
    };
    let Some(port) = port else { return Ok((host, None)) };
    let plain = !port.starts_with('0') && port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = Some(port).filter(|_| plain).and_then(|p| p.parse().ok()).ok_or(WRONG_PORT)?;
    let usual = if scheme == Scheme::Https { 443 } else { 80 };
    Ok((host, (port != usual).then_some(port)))
}

fn name_or_address(host: &str) -> Result<Host, &'static str> {
    if host.is_empty() {
        return Err("it names no host");
    }
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let labels: Vec<&str> = host.split('.').collect();
    let sound = |label: &&str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.bytes().all(letter)
    };
    if host.len() > 253 || !labels.iter().all(sound) {
        return Err(
            "a host is called by letters, digits, dots and - alone, without a dot at its end",
        );
    }
    // What ends in a number is an address, and those have one spelling: four numbers in tens.
    let last = labels[labels.len() - 1].to_ascii_lowercase();
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
        return host.parse().map(Host::V4).map_err(|_| "its host is no address of four numbers");
    }
    Ok(Host::Name(host.to_ascii_lowercase()))
}

/// Letters that may stand in the path of a web server as they are.
fn web_path(path: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:/".contains(&byte);
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if plain(*first) {
            continue;
        }
        if *first != b'%' {
            return Err("blanks, braces and letters beyond ASCII are written as % and two digits");
        }
        let byte = after.get(..2).and_then(hex).ok_or("% is followed by two hexadecimal digits")?;
        if byte < b' ' || byte == 0x7F || b"/\\.%".contains(&byte) {
            return Err("dots, slashes and % may not be encoded in it");
        }
        rest = &after[2..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        Url::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn urls_have_one_spelling() {
        for (text, plain) in [
            ("s3://bucket", "s3://bucket/"),
            ("S3://bucket/a/b.jpg", "s3://bucket/a/b.jpg"),
            ("s3://bucket/a b/ä?#%.jpg", "s3://bucket/a b/ä?#%.jpg"),
            ("gs://my_bucket.x/train/", "gs://my_bucket.x/train/"),
            ("az://container/x@y", "az://container/x@y"),
            ("HTTPS://Host.Example:443/A%20b", "https://host.example/A%20b"),
            ("http://127.0.0.1:80/x", "http://127.0.0.1/x"),
            ("http://[::1]:8080/", "http://[::1]:8080/"),
            ("http://localhost:9000", "http://localhost:9000/"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(url.to_string(), plain);
            assert_eq!(Url::parse(plain).unwrap(), url);
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for text in [
            "s3://",
            "s3:///key",
            "s3://-b/x",
            "s3://b c/x",
            "s3://b:80/x",
            "s3://b/../x",
            "s3://b//x",
            "s3://b/./x",
            "s3://b/a\\b",
            "s3://b/\u{7}",
            "s3://a..b/x",
            "https://",
            "https:///x",
            "https://h/..",
            "https://h/a/../b",
            "https://h/%2e%2e/b",
            "https://h/a%2Fb",
            "https://h/a%5cb",
            "https://h/a%00",
            "https://h/a%25",
            "https://h/%",
            "https://h/%g1",
            "https://h//a",
            "https://h/a//b",
            "https://h/a b",
            "https://h/ä",
            "https://ä/",
            "https://h./a",
            "https://.h/a",
            "https://a..b/",
            "https://h:0/",
            "https://h:/",
            "https://h:99999/",
            "https://h:080/",
            "https://h:a/",
            "https://h\\@x/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://1.2.3.4.5/",
            "https://127.0.0.0x1/",
            "https://[::1",
            "https://[1.2.3.4]/",
            "https://[::1]x/",
            "https://[fe80::1%25eth0]/",
            "https://-h/",
            "https://h?x",
            "https://h/?q=1",
            "https://h/#f",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
        assert!(
            said("ftp://host/x").contains("s3, gs, az, http, https, file"),
            "{}",
            said("ftp://x")
        );
        assert!(said("s3:///key").contains("names no bucket"));
    }

    #[test]
    fn secrets_are_never_repeated() {
        for text in [
            "https://user:canary@host/x",
            "https://user:can/canary@host/x",
            "https://canary@host",
            "s3://key:canary@bucket/x",
            "s3://key:canary@bucket",
            "https://host/x?sig=canary",
            "https://host/x#canary",
            "https://user:canary@host/{0..9}?x=canary",
            "ftp://user:canary@host/x",
            "file://user:canary@host/x",
        ] {
            let error = place(PathBuf::from(text)).unwrap_err().to_string();
            assert!(!error.contains("canary"), "{error}");
        }
        assert_eq!(redacted("no/url@all?"), "no/url@all?");
    }

    #[test]
    fn files_of_this_machine_are_paths() {
        let path = |text: &str| place(PathBuf::from(text));
        assert_eq!(path("file:///data/a%20b").unwrap(), Path::new("/data/a b"));
        assert_eq!(path("file://localhost/data").unwrap(), Path::new("/data"));
        assert_eq!(path("data/x").unwrap(), Path::new("data/x"));
        for wrong in ["file://data", "file://host/x", "file:///a%2", "file:///a%00", "file:///a?b"]
        {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_url_holds_what_lies_below_it_and_nothing_beside() {
        let holds = |a: &str, b: &str| Url::parse(a).unwrap().holds(&Url::parse(b).unwrap());
        assert!(holds("s3://b/train", "s3://b/train"));
        assert!(holds("s3://b/train", "s3://b/train/x"));
        assert!(holds("s3://b/train/", "s3://b/train/x/y"));
        assert!(holds("s3://b/", "s3://b/x"));
        assert!(!holds("s3://b/train", "s3://b/training"));
        assert!(!holds("s3://b/train/", "s3://b/train"));
        assert!(!holds("s3://b/train/", "s3://c/train/x"));
        assert!(!holds("https://h/a/", "https://h:8443/a/x"));
        assert!(!holds("https://h/a/", "http://h/a/x"));
    }
}
