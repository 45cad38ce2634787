//! Certificates for development: an authority, a server's and a client's, made here and now.

use crate::tls::{ClientTls, ServerTls};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::ServerName;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// For servers, with clients' certificates asked for.
    pub server: ServerTls,
    /// For clients, with a certificate of their own.
    pub client: ClientTls,
}

/// Makes an authority, and certificates for a server of these names and for a client, in a folder.
/// Names may be host names and IP addresses. Good for trying things out: nobody renews them.
///
/// # Errors
///
/// If a name cannot be in a certificate, a file is there already, or cannot be made.
pub fn make_development_ca(folder: &Path, names: &[&str]) -> Result<Made, String> {
    for name in names {
        // Nobody could ever ask for it.
        if ServerName::try_from(*name).is_err() {
            return Err(format!(
                "{name:?} cannot be in a certificate: a host name or an address can"
            ));
        }
    }
    let failed = |error: rcgen::Error| format!("cannot make certificates for {names:?}: {error}");
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let key = || KeyPair::generate().map_err(failed);
    let authority_key = key()?;
    let mut params = CertificateParams::new(vec![]).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, "Feedline development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = params.self_signed(&authority_key).map_err(failed)?;
    let issuer = Issuer::from_params(&params, &authority_key);

    let signed = |common: &str, names: &[&str], purpose| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, common);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let key = key()?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok::<_, String>((certificate.pem(), key.serialize_pem()))
    };
    let server = signed("feedline", names, ExtendedKeyUsagePurpose::ServerAuth)?;
    let client = signed("feedline client", &[], ExtendedKeyUsagePurpose::ClientAuth)?;
    let write = |name: &str, text: &str| write(&folder.join(name), text);
    let authority = write("ca.pem", &authority.pem())?;
    write("ca.key", &authority_key.serialize_pem())?;
    Ok(Made {
        server: ServerTls {
            certificate: write("server.pem", &server.0)?,
            key: write("server.key", &server.1)?,
            clients: Some(authority.clone()),
        },
        client: ClientTls {
            authority,
            identity: Some((write("client.pem", &client.0)?, write("client.key", &client.1)?)),
            name: None,
        },
    })
}

/// Keys are for their owner alone; nothing is overwritten.
fn write(path: &Path, text: &str) -> Result<PathBuf, String> {
    let key = path.extension().is_some_and(|end| end == "key");
    let mode = if key { 0o600 } else { 0o644 };
    File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn certificates_are_made_once_and_keys_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let made = make_development_ca(folder.path(), &["localhost", "127.0.0.1", "::1"]).unwrap();
        let mode = std::fs::metadata(&made.server.key).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = make_development_ca(folder.path(), &["localhost"]).unwrap_err();
        assert!(error.contains("ca.pem"), "{error}");
        for wrong in ["näme", "no name", "", "host:80"] {
            let error =
                make_development_ca(&folder.path().join("other"), &["ok", wrong]).unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
