//! Tokens: who may do what until when, signed with a key that the operator made.
//!
//! ```text
//!  feedline1.<what it says, in hexadecimal>.<keyed BLAKE3 hash of that, 256 bits>
//! ```
//!
//! A key file has one key a line. The first signs, all of them verify: to change keys, put the new one
//! first, and remove the old one when its tokens have expired.

use crate::secret::Secret;
use crate::watched::Watched;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What tokens call a service that has no other name.
pub const AUDIENCE: &str = "feedline";

const TOKEN: &str = "feedline1.";
const KEY: &str = "feedline-key ";
/// No token is longer, and no key file.
const LONGEST_TOKEN: usize = 4096;
const LONGEST_KEY_FILE: u64 = 4096;

/// What somebody is to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Trains.
    Client,
    /// Computes.
    Worker,
    /// Looks after it.
    Operator,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Client, Self::Worker, Self::Operator];
}

impl fmt::Display for Role {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Client => "client",
            Self::Worker => "worker",
            Self::Operator => "operator",
        })
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|role| role.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is no role: client, worker and operator are"))
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// What its bearer is.
    pub role: Role,
    /// The service that it is for.
    pub audience: String,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
    /// Its bearer may only touch jobs whose names begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<String>,
}

impl Token {
    /// A token that lasts from now on.
    #[must_use]
    pub fn new(role: Role, audience: &str, lasts: Duration) -> Self {
        let expires = seconds(SystemTime::now()).saturating_add(lasts.as_secs());
        Self { role, audience: audience.to_owned(), expires, jobs: None }
    }

    /// Whether its bearer may touch the job of this name.
    #[must_use]
    pub fn covers(&self, job: &str) -> bool {
        self.jobs.as_deref().is_none_or(|prefix| job.starts_with(prefix))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Why a token is not accepted. What it says is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is none, or was signed with another key, or changed since.
    #[error("the token is not valid: it was not signed with a key of this service")]
    Invalid,
    /// Its time is over.
    #[error("the token has expired: get a new one from the operator")]
    Expired,
    /// It is for another service.
    #[error("the token is for another service: this one is called {0:?}")]
    Audience(String),
}

/// Signs and verifies tokens.
#[derive(Clone, Debug)]
pub struct Key(Secret<Vec<[u8; 32]>>);

impl Key {
    /// Makes a key file that only its owner can read.
    ///
    /// # Errors
    ///
    /// If there is such a file, or it cannot be made.
    pub fn make(path: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                format!("{} is there already: a key is not overwritten", path.display())
            }
            _ => format!("cannot make the key {}: {error}", path.display()),
        };
        let mut secret = [0; 32];
        let mut filled = 0;
        while filled < secret.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            let some = rustix::rand::getrandom(&mut secret[filled..], flags);
            filled += some.map_err(|error| failed(error.into()))?;
        }
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let line = format!("{KEY}{}\n", hexadecimal(&secret));
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(failed)?;
        Ok(Self(Secret::new(vec![secret])))
    }

    /// Reads a key file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is none, or others than its owner may read it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let place = path.display();
        let failed = |error: std::io::Error| format!("cannot read the key {place}: {error}");
        let file = File::open(path).map_err(failed)?;
        let data = file.metadata().map_err(failed)?;
        if data.mode() & 0o077 != 0 {
            return Err(format!("others may read the key {place}: chmod 600 it"));
        }
        let mut text = String::new();
        file.take(LONGEST_KEY_FILE + 1).read_to_string(&mut text).map_err(failed)?;
        let wrong =
            || format!("{place} is no key file: each line is `{}` and 64 digits", KEY.trim_end());
        if text.len() as u64 > LONGEST_KEY_FILE {
            return Err(wrong());
        }
        let key = |line: &str| {
            let digits = line.strip_prefix(KEY)?;
            <[u8; 32]>::try_from(bytes(digits.trim_end())?).ok()
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let keys: Option<Vec<[u8; 32]>> = lines.map(key).collect();
        match keys.filter(|keys| !keys.is_empty()) {
            Some(keys) => Ok(Self(Secret::new(keys))),
            None => Err(wrong()),
        }
    }

    /// Signs a token.
    #[must_use]
    pub fn sign(&self, token: &Token) -> Secret<String> {
        let said = said(token);
        let hash = blake3::keyed_hash(&self.0.expose()[0], said.as_bytes());
        Secret::new(format!("{TOKEN}{said}.{}", hash.to_hex()))
    }

    /// What a token says, if it was signed with this key, is meant for `audience`, and lasts.
    ///
    /// # Errors
    ///
    /// If it is not accepted.
    pub fn verify(&self, text: &str, audience: &str, now: SystemTime) -> Result<Token, TokenError> {
        let token = self.signed(text).ok_or(TokenError::Invalid)?;
        if token.audience != audience {
            return Err(TokenError::Audience(audience.to_owned()));
        }
        match seconds(now) < token.expires {
            true => Ok(token),
            false => Err(TokenError::Expired),
        }
    }

    fn signed(&self, text: &str) -> Option<Token> {
        let text = text.strip_prefix(TOKEN).filter(|text| text.len() <= LONGEST_TOKEN)?;
        let (said, hash) = text.split_once('.')?;
        let hash = blake3::Hash::from_hex(hash).ok()?;
        // Hashes are compared in constant time, and all keys are tried whatever comes out.
        let matches = |key| blake3::keyed_hash(key, said.as_bytes()) == hash;
        let found = self.0.expose().iter().fold(false, |found, key| matches(key) | found);
        let token = if found { bytes(said)? } else { return None };
        read(&token)
    }
}

/// Lets in those who bear a token of a role, signed with a key that is read again when its file
/// changes. Clones share what was read.
#[derive(Clone, Debug)]
pub struct Guard {
    key: Arc<Watched<Key>>,
    audience: String,
}

impl Guard {
    /// Reads a key's file; tokens must be for `audience`.
    ///
    /// # Errors
    ///
    /// As [`Key::read`].
    pub fn open(key: &Path, audience: &str) -> Result<Self, String> {
        let key = Arc::new(Watched::new(key, Key::read)?);
        Ok(Self { key, audience: audience.to_owned() })
    }

    /// What a token says, if it is accepted now.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub fn check(&self, text: &str) -> Result<Token, TokenError> {
        self.key.get().verify(text, &self.audience, SystemTime::now())
    }
}

/// What a token says: its parts, one a line, in hexadecimal.
fn said(token: &Token) -> String {
    let Token { role, audience, expires, jobs } = token;
    let jobs = jobs.as_deref().map(|jobs| hexadecimal(jobs.as_bytes()));
    let audience = hexadecimal(audience.as_bytes());
    hexadecimal(format!("{role}\n{expires}\n{audience}\n{}", jobs.unwrap_or("*".into())).as_bytes())
}

fn read(said: &[u8]) -> Option<Token> {
    let mut lines = std::str::from_utf8(said).ok()?.split('\n');
    let text = |digits: &str| String::from_utf8(bytes(digits)?).ok();
    let role = lines.next()?.parse().ok()?;
    let expires = lines.next()?.parse().ok()?;
    let audience = text(lines.next()?)?;
    let jobs = match lines.next()? {
        "*" => None,
        jobs => Some(text(jobs)?),
    };
    lines.next().is_none().then_some(Token { role, audience, expires, jobs })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
        .collect()
}

/// A bearer's token in a file, read again when it changes. Clones share what was read.
#[derive(Clone, Debug)]
pub struct TokenFile(Arc<Watched<Secret<String>>>);

impl TokenFile {
    /// Reads a token's file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is none.
    pub fn open(path: &Path) -> Result<Self, String> {
        Ok(Self(Arc::new(Watched::new(path, read_file)?)))
    }

    /// What the file says now.
    #[must_use]
    pub fn get(&self) -> Arc<Secret<String>> {
        self.0.get()
    }
}

/// Reads a token from a file, as its bearer.
///
/// # Errors
///
/// If it cannot be read, or is none.
pub fn read_file(path: &Path) -> Result<Secret<String>, String> {
    let place = path.display();
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST_TOKEN as u64 + 100).read_to_string(&mut text))
        .map_err(|error| format!("cannot read the token {place}: {error}"))?;
    let text = text.trim();
    let ordinary = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    match text.starts_with(TOKEN) && ordinary && text.len() <= LONGEST_TOKEN {
        true => Ok(Secret::new(text.to_owned())),
        false => Err(format!("{place} is no token: it should begin with {TOKEN}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HOUR: Duration = Duration::from_secs(3600);

    fn key() -> (tempfile::TempDir, Key) {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::make(&folder.path().join("key")).unwrap();
        (folder, key)
    }

    #[test]
    fn a_token_says_what_was_signed() {
        let (folder, key) = key();
        let again = Key::read(&folder.path().join("key")).unwrap();
        let now = SystemTime::now();
        for role in Role::ALL {
            for jobs in [None, Some("team/\n".to_owned()), Some(String::new())] {
                let token = Token { jobs, ..Token::new(role, "süd", HOUR) };
                let text = key.sign(&token);
                assert_eq!(again.verify(text.expose(), "süd", now), Ok(token.clone()));
                let wrong = again.verify(text.expose(), "nord", now);
                assert_eq!(wrong, Err(TokenError::Audience("nord".into())));
                let late = again.verify(text.expose(), "süd", now + HOUR * 2);
                assert_eq!(late, Err(TokenError::Expired));
            }
        }
    }

    #[test]
    fn what_was_not_signed_is_not_believed() {
        let ((_one, key), (_two, other)) = (key(), key());
        let now = SystemTime::now();
        let text = key.sign(&Token::new(Role::Client, "a", HOUR)).expose().clone();
        assert_eq!(other.verify(&text, "a", now), Err(TokenError::Invalid));
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'7' { b'8' } else { b'7' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(key.verify(&changed, "a", now), Err(TokenError::Invalid), "letter {at}");
            assert!(key.verify(&text[..at], "a", now).is_err());
        }
        for garbage in ["", "feedline1.", "feedline1..", "feedline1.zz.zz", &"x".repeat(100_000)] {
            assert_eq!(key.verify(garbage, "a", now), Err(TokenError::Invalid));
        }
    }

    #[test]
    fn keys_can_be_changed_without_a_gap() {
        let ((old_folder, old), (new_folder, new)) = (key(), key());
        let read = |folder: &tempfile::TempDir| {
            std::fs::read_to_string(folder.path().join("key")).unwrap()
        };
        let both = old_folder.path().join("both");
        std::fs::write(&both, read(&new_folder) + &read(&old_folder)).unwrap();
        std::fs::set_permissions(&both, std::fs::Permissions::from_mode(0o600)).unwrap();
        let both = Key::read(&both).unwrap();
        let token = Token::new(Role::Worker, "a", HOUR);
        let now = SystemTime::now();
        assert!(both.verify(old.sign(&token).expose(), "a", now).is_ok());
        assert!(new.verify(both.sign(&token).expose(), "a", now).is_ok(), "the first one signs");
    }

    #[test]
    fn key_files_that_are_wrong_or_open_to_others_are_refused() {
        let (folder, _) = key();
        let path = folder.path().join("key");
        let error = Key::make(&path).unwrap_err();
        assert!(error.contains("not overwritten"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Key::read(&path).unwrap_err().contains("chmod 600"));
        for text in ["", "feedline-key 00", "nonsense", &"feedline-key 0".repeat(9000)] {
            let path = folder.path().join("wrong");
            let _ = std::fs::remove_file(&path);
            let mut file =
                File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert!(Key::read(&path).unwrap_err().contains("is no key file"));
            assert!(read_file(&path).unwrap_err().contains("is no token"));
        }
    }

    #[test]
    fn keys_and_tokens_are_not_shown() {
        let (folder, key) = key();
        let digits = std::fs::read_to_string(folder.path().join("key")).unwrap();
        let digits = digits.trim().strip_prefix(KEY).unwrap();
        let token = key.sign(&Token::new(Role::Client, "a", HOUR));
        let shown = format!("{key:?} {token:?} {token}");
        assert!(!shown.contains(digits) && !shown.contains(token.expose()), "{shown}");
    }

    #[test]
    fn a_token_may_cover_some_jobs_only() {
        let token = Token { jobs: Some("team/".into()), ..Token::new(Role::Client, "a", HOUR) };
        assert!(token.covers("team/job") && !token.covers("teams") && !token.covers("other/team/"));
        assert!(Token::new(Role::Client, "a", HOUR).covers("anything"));
    }
}
