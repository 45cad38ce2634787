//! URLs and names with braces.

use crate::runner::came_to;
use feedline_core::{Url, expand, place, redacted};
use std::path::PathBuf;

/// A URL that is read is printed as it was read, holds itself, and leads nowhere else.
pub fn url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = redacted(text);
    let Ok(url) = Url::parse(text) else { return };
    came_to("it is a URL");
    let again = Url::parse(&url.to_string()).expect("what was printed can be read");
    assert_eq!(again, url);
    assert!(url.holds(&url) && url.as_folder().is_folder());
    let inside = url.key().trim_end_matches('/').split('/');
    assert!(url.key().is_empty() || inside.clone().all(|part| !["", ".", ".."].contains(&part)));
    assert!(!url.scheme().is_web() || !url.to_string().contains(['@', '?', '#', '\\', ' ']));
    // What a plan holds is the plain spelling, and that is no other place.
    if !text.contains('{') {
        let placed = place(PathBuf::from(text)).expect("a URL is a place");
        assert_eq!(placed, PathBuf::from(url.to_string()));
    }
}

/// URLs of all kinds, right and wrong.
pub fn url_corpus() -> Vec<Vec<u8>> {
    [
        "s3://bucket/train/a b.jpg",
        "gs://my_bucket.x/",
        "az://container",
        "https://host.example:8443/a/b%20c",
        "http://127.0.0.1:80/x",
        "http://[::ffff:10.0.0.1]:9000/x/y",
        "https://user:secret@host/x?y#z",
        "https://host/../%2e%2e/x//y\\z",
        "file:///data/x",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

/// A name with braces stands for as many names as it says, or is refused.
pub fn braces(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // The numbers of longer ones may stand for more than this test has memory for.
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let commas = text.bytes().filter(|byte| *byte == b',').count();
    if digits > 3 || commas > 8 {
        return;
    }
    let Ok(names) = expand(text) else { return };
    came_to("it stands for names");
    assert!(!names.is_empty());
    assert!(names.len() > 1 || names[0] == text || text.contains(['.', ',']));
}

/// Names with braces.
pub fn braces_corpus() -> Vec<Vec<u8>> {
    ["x-{8..11}.bin", "{a,b}/{0..3}", "{}{a}{1..", "{{a,b},c}", "plain"]
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect()
}
