//! TLS 1.3 on both ends, from files in PEM form that are read again when they change.

use crate::watched::Watched;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a server needs to be trusted, and to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Its certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authority that clients' certificates are signed by; without one, none are asked for.
    pub clients: Option<PathBuf>,
}

/// What a client needs to trust a server, and to be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// The authority that the server's certificate is signed by.
    pub authority: PathBuf,
    /// The client's own certificate and key, if the server asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host's.
    pub name: Option<String>,
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found =
        read.map_err(|error| format!("cannot read the certificate {}: {error}", path.display()))?;
    match found.is_empty() {
        true => Err(format!("{} holds no certificate", path.display())),
        false => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    // The reason might show a part of it.
    PrivateKeyDer::from_pem_file(path)
        .map_err(|_| format!("cannot read a private key from {}", path.display()))
}

fn authority(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store
            .add(certificate)
            .map_err(|error| format!("{} is no authority: {error}", path.display()))?;
    }
    Ok(Arc::new(store))
}

/// What a server shows of itself, and whom it asks for the same. Clones share what was read.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Watched<ServerConfig>>);

impl Identity {
    /// What the files say now.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.get()
    }
}

/// Whom a client trusts, and what it shows of itself. Clones share what was read.
#[derive(Clone, Debug)]
pub struct Trust {
    files: Arc<Watched<ClientConfig>>,
    name: Option<String>,
}

impl Trust {
    /// What the files say now.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.files.get()
    }

    /// The name that the certificate of a server at this host must have.
    ///
    /// # Errors
    ///
    /// If no certificate could have it.
    pub fn name_of(&self, host: &str) -> Result<ServerName<'static>, String> {
        let name = self.name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is no name of a server"))
    }
}

impl ServerTls {
    /// Reads the files now, and again when one changes; `protocols` are those spoken inside.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or key and certificate do not fit.
    pub fn identity(&self, protocols: &'static [&'static str]) -> Result<Identity, String> {
        let Self { certificate, key, clients } = self;
        let paths = [Some(certificate), Some(key), clients.as_ref()];
        let paths = paths.into_iter().flatten().cloned().collect();
        let files = self.clone();
        Ok(Identity(Arc::new(Watched::together(paths, move || files.config(protocols))?)))
    }

    fn config(&self, protocols: &[&str]) -> Result<ServerConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(authority(path)?, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
            }
        };
        let chain = certificates(&self.certificate)?;
        let mut config = builder
            .with_single_cert(chain, private_key(&self.key)?)
            .map_err(|error| format!("{} cannot be served: {error}", self.certificate.display()))?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(config)
    }
}

impl ClientTls {
    /// Reads the files now, and again when one changes; `protocols` are those spoken inside.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or key and certificate do not fit.
    pub fn trust(&self, protocols: &'static [&'static str]) -> Result<Trust, String> {
        let Self { authority, identity, name } = self;
        let own = identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        let paths = std::iter::once(authority).chain(own).cloned().collect();
        let files = self.clone();
        let files = Arc::new(Watched::together(paths, move || files.config(protocols))?);
        Ok(Trust { files, name: name.clone() })
    }

    fn config(&self, protocols: &[&str]) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = authority(&self.authority)?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .with_webpki_verifier(verifier.map_err(|error| error.to_string())?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| format!("{} cannot be shown: {error}", certificate.display()))?,
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_missing_or_wrong_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let made = crate::certs::make_development_ca(folder.path(), &["localhost"]).unwrap();
        let server = made.server.clone();
        server.config(&["h2"]).unwrap();
        made.client.config(&["h2"]).unwrap();
        let missing = folder.path().join("missing");
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "nonsense").unwrap();
        for wrong in [missing, empty, server.key.clone()] {
            let broken = ServerTls { certificate: wrong.clone(), ..server.clone() };
            let error = broken.config(&[]).unwrap_err();
            assert!(error.contains(&wrong.display().to_string()), "{error}");
            let broken = ClientTls { authority: wrong.clone(), ..made.client.clone() };
            assert!(broken.config(&[]).unwrap_err().contains(&wrong.display().to_string()));
        }
        let swapped = ServerTls { key: made.client.identity.unwrap().1, ..server };
        assert!(swapped.config(&[]).is_err(), "another's key does not fit");
    }

    #[test]
    fn certificates_are_read_again_and_half_a_change_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        let made = crate::certs::make_development_ca(&one, &["localhost"]).unwrap();
        let next = crate::certs::make_development_ca(&two, &["localhost"]).unwrap();
        let identity = made.server.identity(&["h2"]).unwrap();
        let first = identity.config();
        let pause = std::time::Duration::from_millis(300);
        std::fs::copy(&next.server.certificate, &made.server.certificate).unwrap();
        std::thread::sleep(pause);
        assert!(Arc::ptr_eq(&first, &identity.config()), "the key does not fit yet");
        std::fs::copy(&next.server.key, &made.server.key).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Arc::ptr_eq(&first, &identity.config()) {
            assert!(std::time::Instant::now() < end, "the new certificate was never read");
            std::thread::sleep(pause);
        }
    }

    #[test]
    fn a_server_is_trusted_under_its_hosts_name_or_the_one_that_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let made = crate::certs::make_development_ca(folder.path(), &["localhost"]).unwrap();
        let trust = made.client.trust(&[]).unwrap();
        for host in ["worker-3.example", "10.0.0.3", "::1"] {
            assert_eq!(trust.name_of(host).unwrap().to_str(), host);
        }
        assert!(trust.name_of("no name").unwrap_err().contains("no name"));
        let named = ClientTls { name: Some("feed.example".into()), ..made.client };
        assert_eq!(named.trust(&[]).unwrap().name_of("10.0.0.3").unwrap().to_str(), "feed.example");
    }
}
