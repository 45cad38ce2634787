//! TLS 1.3 on both ends, from files in PEM form.

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
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

impl ServerTls {
    /// What rustls needs; `protocols` are those spoken inside, such as `h2`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or key and certificate do not fit.
    pub fn config(&self, protocols: &[&str]) -> Result<Arc<ServerConfig>, String> {
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
        Ok(Arc::new(config))
    }
}

impl ClientTls {
    /// What rustls needs; `protocols` are those spoken inside, such as `h2`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or key and certificate do not fit.
    pub fn config(&self, protocols: &[&str]) -> Result<Arc<ClientConfig>, String> {
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
        Ok(Arc::new(config))
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
}
