//! Where a dispatcher is: `feedline://host:port`, or a socket in the file system.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a dispatcher is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `feedline://host:port`; the host may be a name, or a number such as `10.0.0.3` or `[::1]`.
    Tcp {
        /// The host, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// `feedline+unix:///path/to/socket`, on this host.
    Unix(PathBuf),
}

/// A text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a dispatcher: {reason}; right would be feedline://host:port or \
     feedline+unix:///path"
)]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |reason| AddressError { text: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("feedline+unix://") {
            return match path.starts_with('/') && path.len() > 1 && !path.contains('\0') {
                true => Ok(Self::Unix(path.into())),
                false => Err(wrong("the path is not absolute")),
            };
        }
        let place = match text.split_once("://") {
            Some(("feedline", place)) => place,
            Some(_) => return Err(wrong("the scheme is another")),
            None => text,
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = place.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
        let host = match host.strip_prefix('[') {
            Some(host) => {
                let host = host.strip_suffix(']').ok_or_else(|| wrong("a bracket is missing"))?;
                let numeric = host.split('%').next().unwrap_or_default();
                numeric
                    .parse::<std::net::Ipv6Addr>()
                    .map_err(|_| wrong("what is in brackets is no IPv6 address"))?;
                host
            }
            None if host.contains(':') => return Err(wrong("IPv6 addresses stand in brackets")),
            None => host,
        };
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-._:%".contains(letter);
        if host.is_empty() || !host.chars().all(allowed) {
            return Err(wrong("the host is missing or no name"));
        }
        let port = port.parse().map_err(|_| wrong("the port is no number below 65536"))?;
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl Address {
    /// Whether it can only be reached from this host. A name other than `localhost` may be anything.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host == "localhost"
                    || host.parse::<std::net::IpAddr>().is_ok_and(|host| host.is_loopback())
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => {
                write!(to, "feedline://[{host}]:{port}")
            }
            Self::Tcp { host, port } => write!(to, "feedline://{host}:{port}"),
            Self::Unix(path) => write!(to, "feedline+unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let texts = [
            "feedline://host:1",
            "feedline://10.0.0.3:65535",
            "feedline://[::1]:41234",
            "feedline://[fe80::1%eth0]:1",
            "feedline+unix:///run/feed line.sock",
        ];
        for text in texts {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let short: Address = "localhost:7".parse().unwrap();
        assert_eq!(short.to_string(), "feedline://localhost:7");
    }

    #[test]
    fn loopback_and_sockets_are_local() {
        for (text, local) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("feedline+unix:///s", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("127.evil.example:1", false),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().is_local(), local, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_says_what_would_be_right() {
        let texts = [
            "",
            "host",
            "feedline://",
            "feedline://host",
            "feedline://host:",
            "feedline://host:99999",
            "feedline://:80",
            "feedline://::1:80",
            "feedline://[::1:80",
            "feedline://[nonsense]:80",
            "http://host:80",
            "feedline://a b:80",
            "feedline://user@host:80",
            "feedline+unix://relative",
            "feedline+unix:///",
        ];
        for text in texts {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("feedline://host:port"), "{error}");
        }
    }
}
