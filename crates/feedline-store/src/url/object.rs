//! One request for one object: what came of it, told in the same words whoever was asked.

use super::net::{Net, Refusal, seconds};
use super::retry::Trouble;
use feedline_core::{Entry, Error, Result, Url};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt};
use reqwest::header::{self, HeaderMap};
use std::error::Error as StdError;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What is being done, which decides what a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Opening,
    Reading,
}

/// The beginning of an answer.
pub(crate) struct Answer {
    /// Bytes of the whole object, if the server says so.
    pub total: Option<u64>,
    /// Which version it is of; 0 if unknown.
    pub version: i64,
    /// Whether it begins at the object's first byte, whatever was asked for.
    pub from_start: bool,
    body: Body,
}

enum Body {
    Web(reqwest::Response),
    Cloud(BoxStream<'static, object_store::Result<bytes::Bytes>>),
}

impl Answer {
    /// The next bytes; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<bytes::Bytes>, Trouble> {
        match &mut self.body {
            Body::Web(response) => response.chunk().await.map_err(|error| cut_short(&error)),
            Body::Cloud(stream) => {
                stream.next().await.transpose().map_err(|error| cut_short(&error))
            }
        }
    }
}

fn cut_short(error: &(dyn StdError + 'static)) -> Trouble {
    Trouble::later(format!("the answer was cut short: {}", deepest(error)))
}

/// A number that only this version of an object has, made of the server's name for it.
fn version_of(tag: &str) -> i64 {
    // Servers put quotes around it, or do not, and mark it as weak on some ways and not on others.
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let hash = tag.bytes().fold(0xCBF2_9CE4_8422_2325, mix);
    // 0 means that nothing is known, and times are positive.
    ((hash >> 1) as i64).max(1)
}

fn version_of_meta(meta: &ObjectMeta) -> i64 {
    match &meta.e_tag {
        Some(tag) => version_of(tag),
        None => meta.last_modified.timestamp_nanos_opt().unwrap_or(0).max(0),
    }
}

fn version_of_headers(headers: &HeaderMap) -> i64 {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    text(header::ETAG).or_else(|| text(header::LAST_MODIFIED)).map_or(0, version_of)
}

/// An object of a listing.
pub(crate) fn entry_of(url: &Url, meta: &ObjectMeta) -> Entry {
    let path = PathBuf::from(format!(
        "{}://{}/{}",
        url.scheme().as_str(),
        url.host(),
        meta.location.as_ref()
    ));
    Entry { path, size: meta.size, modified: version_of_meta(meta) }
}

/// The key of an object in its bucket.
pub(crate) fn key_of(url: &Url) -> Result<Key> {
    Key::parse(url.key()).map_err(|_| Error::Source(format!("{url}: its name cannot be asked for")))
}

impl Net {
    /// Looks at an object without reading it.
    pub(crate) async fn look(&self, url: &Url) -> Result<Entry, Trouble> {
        if !url.scheme().is_web() {
            let store = self.store(url)?;
            let meta = store.head(&key_of(url)?).await;
            let meta = meta.map_err(|error| trouble(url, &error, Purpose::Opening))?;
            return Ok(entry_of(url, &meta));
        }
        let request = self.web.head(url.to_string()).header(header::ACCEPT_ENCODING, "identity");
        let response =
            request.send().await.map_err(|error| trouble(url, &error, Purpose::Opening))?;
        let response = refused(url, response, Purpose::Opening)?;
        let Some(size) = number(response.headers(), header::CONTENT_LENGTH) else {
            return Err(Trouble::Never(Error::Source(format!(
                "{url} cannot be used: its server does not say how long it is (Content-Length)"
            ))));
        };
        let modified = version_of_headers(response.headers());
        Ok(Entry { path: PathBuf::from(url.to_string()), size, modified })
    }

    /// Asks for a range of an object, or for all of it.
    pub(crate) async fn ask(
        &self,
        url: &Url,
        range: Option<Range<u64>>,
    ) -> Result<Answer, Trouble> {
        if !url.scheme().is_web() {
            let options =
                GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
            let given = self.store(url)?.get_opts(&key_of(url)?, options).await;
            let given = given.map_err(|error| trouble(url, &error, Purpose::Reading))?;
            let (total, version) = (Some(given.meta.size), version_of_meta(&given.meta));
            let body = Body::Cloud(given.into_stream());
            return Ok(Answer { total, version, from_start: false, body });
        }
        let mut request = self.web.get(url.to_string()).header(header::ACCEPT_ENCODING, "identity");
        if let Some(range) = &range {
            request =
                request.header(header::RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        let response =
            request.send().await.map_err(|error| trouble(url, &error, Purpose::Reading))?;
        let response = refused(url, response, Purpose::Reading)?;
        let headers = response.headers();
        let coding = headers.get(header::CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != "identity") {
            return Err(Trouble::Never(Error::Source(format!(
                "{url} cannot be read: its server packs it on the way (Content-Encoding)"
            ))));
        }
        let total = total(&response, range)?;
        let version = version_of_headers(headers);
        let from_start = response.status() != reqwest::StatusCode::PARTIAL_CONTENT;
        Ok(Answer { total, version, from_start, body: Body::Web(response) })
    }
}

/// Bytes of the whole object, if the answer of a web server holds the range that was asked for, or
/// everything.
fn total(response: &reqwest::Response, range: Option<Range<u64>>) -> Result<Option<u64>, Trouble> {
    let headers = response.headers();
    let (Some(range), true) = (range, response.status() == reqwest::StatusCode::PARTIAL_CONTENT)
    else {
        return Ok(number(headers, header::CONTENT_LENGTH));
    };
    let given = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let (begin, end, total) = given
        .and_then(content_range)
        .ok_or_else(|| Trouble::later("the server does not say which bytes it gives"))?;
    // An object that has become shorter gives fewer: its length tells.
    match begin == range.start && (end == range.end || total == Some(end)) {
        true => Ok(total),
        false => Err(Trouble::later(format!(
            "the server gives bytes {begin} to {end} instead of {} to {}",
            range.start, range.end
        ))),
    }
}

/// `bytes 0-9/100`: the first byte, the one behind the last, and all there are.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last.checked_add(1)?, total))
}

fn number(headers: &HeaderMap, name: header::HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// An answer of a web server, if it is one.
fn refused(
    url: &Url,
    response: reqwest::Response,
    purpose: Purpose,
) -> Result<reqwest::Response, Trouble> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let pause = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let refusal = Refusal::Status {
        status: status.as_u16(),
        code: status.canonical_reason().unwrap_or_default().to_owned(),
        region: None,
        pause: pause.and_then(seconds),
    };
    Err(meaning(url, &refusal, purpose))
}

/// What the failure of a request means.
pub(crate) fn trouble(url: &Url, error: &(dyn StdError + 'static), purpose: Purpose) -> Trouble {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref::<Refusal>() {
            return meaning(url, refusal, purpose);
        }
        if let Some(object_store::path::Error::EmptySegment { path }) = error.downcast_ref() {
            return Trouble::Never(Error::Source(format!(
                "{url} holds {path:?}, whose name has an empty part (//): no path can name it"
            )));
        }
        if error.is::<object_store::path::Error>() {
            return Trouble::Never(Error::Source(format!(
                "{url} holds an object whose name has . or .. or an unprintable letter in it: no path \
                 can name it"
            )));
        }
        // An error of the system may carry another in its middle.
        let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(refusal) = inside.and_then(|inside| inside.downcast_ref::<Refusal>()) {
            return meaning(url, refusal, purpose);
        }
        cause = error.source();
    }
    let why = deepest(error);
    if why.contains("invalid peer certificate") {
        return Trouble::Never(Error::Source(format!(
            "{url} cannot be trusted: {why}; SSL_CERT_FILE names certificates to trust beside the \
             system's"
        )));
    }
    if why.contains("lookup address") {
        let error = std::io::Error::new(std::io::ErrorKind::NotFound, format!("its host: {why}"));
        return Trouble::Hardly { why: Error::unavailable(url.to_string(), error) };
    }
    Trouble::later(why)
}

/// The innermost cause: those around it repeat URLs, which may hold a signature.
fn deepest(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    match error.downcast_ref::<reqwest::Error>() {
        Some(error) if error.is_timeout() => "the server is silent".to_owned(),
        Some(_) => "the connection failed".to_owned(),
        None if error.is::<object_store::Error>() => "the answer makes no sense".to_owned(),
        None => error.to_string(),
    }
}

/// What a refusal means, in words that help.
fn meaning(url: &Url, refusal: &Refusal, purpose: Purpose) -> Trouble {
    let never = |why: String| Trouble::Never(Error::Source(format!("cannot read {url}: {why}")));
    let (status, code, region, pause) = match refusal {
        Refusal::Status { status, code, region, pause } => (*status, &code[..], region, *pause),
        Refusal::Barred(why) => return never(why.clone()),
        Refusal::NoCredentials(why) => {
            return Trouble::Hardly { why: Error::Source(no_credentials(url, why)) };
        }
    };
    let told = format!("{status} {code}").trim_end().to_owned();
    match (status, code) {
        (_, "ExpiredToken" | "TokenRefreshRequired" | "ExpiredAuthenticationToken") => {
            never(format!("its credentials have expired ({told}); renew them"))
        }
        (400, "RequestTimeout") => Trouble::Later { why: told, pause },
        (301, _) | (307, "TemporaryRedirect") | (400, "AuthorizationHeaderMalformed") => {
            let where_to = match region {
                Some(region) => format!("set AWS_REGION={region}"),
                None => "set AWS_REGION to the region of its bucket".to_owned(),
            };
            never(format!("its bucket lies in another region ({told}); {where_to}"))
        }
        (404, "NoSuchBucket" | "ContainerNotFound") => {
            never(format!("there is no bucket {} ({told})", url.host()))
        }
        (404 | 410, _) => Trouble::Never(match purpose {
            Purpose::Opening => {
                Error::Source(format!("cannot open {url}: there is no such object"))
            }
            Purpose::Reading => bad(url, "the object has vanished since it was listed"),
        }),
        (412 | 416, _) => Trouble::Never(bad(url, "the object has changed since it was listed")),
        (401, _)
        | (403, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AuthenticationFailed") => {
            never(format!("its credentials are not accepted ({told}); {}", credentials(url)))
        }
        (403, "RequestTimeTooSkewed") => never(format!("this machine's clock is wrong ({told})")),
        (403, _) => never(format!(
            "it is forbidden ({told}): these credentials may not read it, or there is no such object \
             and they may not list its bucket"
        )),
        (408 | 425 | 429, _) | (500.., _) if status != 501 && status != 505 => {
            Trouble::Later { why: told, pause }
        }
        _ => never(format!("the server refuses it ({told})")),
    }
}

fn no_credentials(url: &Url, why: &str) -> String {
    format!("cannot read {url}: there are no credentials, and {why}; {}", credentials(url))
}

fn credentials(url: &Url) -> &'static str {
    use feedline_core::Scheme::{Az, Gs, Http, Https, S3};
    match url.scheme() {
        S3 => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for what \
             everybody may read"
        }
        Gs => "set GOOGLE_APPLICATION_CREDENTIALS to the file with an account's key",
        Az => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        Http | Https => "web servers are asked without any",
    }
}

/// An object that cannot be used as it is: the policy for bad records applies.
pub(crate) fn bad(url: &Url, reason: &str) -> Error {
    let (origin, reason) = (url.to_string(), reason.to_owned());
    Error::Record { origin, index: 0, step: "read".into(), reason }
}

/// The URL of a path that was found to be one.
pub(crate) fn url_of(path: &Path) -> Result<Url> {
    Url::of(path).unwrap_or_else(|| {
        Err(Error::Internal(format!("{} is no URL and was asked for as one", path.display())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_do_not_depend_on_quotes() {
        assert_eq!(version_of("\"abc\""), version_of("abc"));
        assert_eq!(version_of("W/\"abc\""), version_of("abc"));
        assert_ne!(version_of("abd"), version_of("abc"));
        assert!(version_of("") > 0);
    }

    #[test]
    fn ranges_are_read_or_refused() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0, 10, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5, 6, None)));
        for wrong in ["", "bytes", "bytes 9-0/10", "bytes */10", "items 0-9/10", "bytes 0-9/x"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
        assert_eq!(content_range("bytes 0-18446744073709551615/1"), None);
    }

    #[test]
    fn refusals_say_what_would_be_right() {
        let url = Url::parse("s3://bucket/x").unwrap();
        let said = |status, code: &str, region: Option<&str>| {
            let (code, region) = (code.to_owned(), region.map(str::to_owned));
            let refusal = Refusal::Status { status, code, region, pause: None };
            match meaning(&url, &refusal, Purpose::Reading) {
                Trouble::Never(error) | Trouble::Hardly { why: error } => error.to_string(),
                Trouble::Later { why, .. } => format!("later: {why}"),
            }
        };
        for (status, code, region, words) in [
            (403, "ExpiredToken", None, "expired"),
            (400, "ExpiredToken", None, "renew"),
            (301, "PermanentRedirect", Some("eu-west-1"), "AWS_REGION=eu-west-1"),
            (400, "AuthorizationHeaderMalformed", None, "AWS_REGION"),
            (404, "NoSuchBucket", None, "no bucket bucket"),
            (404, "NoSuchKey", None, "vanished"),
            (416, "InvalidRange", None, "changed"),
            (401, "", None, "AWS_ACCESS_KEY_ID"),
            (403, "SignatureDoesNotMatch", None, "not accepted"),
            (403, "AccessDenied", None, "forbidden"),
            (403, "RequestTimeTooSkewed", None, "clock"),
            (503, "SlowDown", None, "later: 503 SlowDown"),
            (500, "", None, "later: 500"),
            (429, "", None, "later: 429"),
            (501, "", None, "refuses"),
        ] {
            let text = said(status, code, region);
            assert!(text.contains(words), "{status} {code}: {text}");
        }
        let none = meaning(&url, &Refusal::NoCredentials("why".into()), Purpose::Opening);
        assert!(
            matches!(none, Trouble::Hardly { why } if why.to_string().contains("AWS_SKIP_SIG"))
        );
    }
}
