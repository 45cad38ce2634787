//! The options by which the parts of a service know each other: those of whoever serves, and of
//! whoever asks.

use super::failed;
use crate::Usage;
use anyhow::{Result, bail};
use feedline_rpc::http::HttpOptions;
use feedline_rpc::{Remote, RemoteOptions};
use feedline_wire::control::Failure;
use feedline_wire::stream::ClientOptions;
use feedline_wire::tls::{ClientTls, ServerTls};
use feedline_wire::token::{AUDIENCE, Guard, TokenFile};
use std::path::PathBuf;

/// What a server asks of those who come, and shows them.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Trust, of those who come")]
pub(crate) struct Serving {
    /// Ask for tokens that are signed with the key in this file
    #[arg(long, value_name = "FILE", env = "FEEDLINE_KEY_FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What tokens call this service
    #[arg(long, value_name = "NAME", default_value = AUDIENCE, env = "FEEDLINE_AUDIENCE")]
    pub(crate) audience: String,
    /// Serve over TLS, with this certificate
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "FEEDLINE_TLS_CERTIFICATE")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key
    #[arg(long, value_name = "FILE", requires = "tls_certificate", env = "FEEDLINE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Ask for certificates that are signed by this authority as well
    #[arg(long, value_name = "FILE", requires = "tls_certificate", env = "FEEDLINE_TLS_CLIENTS")]
    tls_clients: Option<PathBuf>,
    /// Serve other hosts without encryption and without tokens
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl Serving {
    pub(crate) fn tls(&self) -> Option<ServerTls> {
        let (certificate, key) = (self.tls_certificate.clone()?, self.tls_key.clone()?);
        Some(ServerTls { certificate, key, clients: self.tls_clients.clone() })
    }

    pub(crate) fn guard(&self) -> Result<Option<Guard>> {
        let guard = self.key.as_ref().map(|key| Guard::open(key, &self.audience));
        Ok(guard.transpose().map_err(Usage)?)
    }

    /// Other hosts are served in secret, or by name.
    pub(crate) fn check(&self, option: &str, address: &str, is_local: bool) -> Result<()> {
        let missing: Vec<&str> = [
            (self.key.is_none(), "--key FILE (feedline token --new-key FILE makes one)"),
            (
                self.tls_certificate.is_none(),
                "--tls-certificate FILE --tls-key FILE (feedline certs DIR --name HOST makes both)",
            ),
        ]
        .into_iter()
        .filter_map(|(missing, option)| missing.then_some(option))
        .collect();
        if is_local || self.insecure || missing.is_empty() {
            return Ok(());
        }
        bail!(Usage(format!(
            "{option} {address}: other hosts could reach it, and nothing would keep them out or what is \
             sent from being read; add {}, listen at 127.0.0.1, or say --insecure if this network is \
             yours alone",
            missing.join(" and ")
        )))
    }

    /// How pages are served.
    pub(crate) fn pages(&self, names: &[String]) -> Result<HttpOptions> {
        Ok(HttpOptions {
            names: names.to_vec(),
            guard: self.guard()?,
            tls: self.tls(),
            insecure: self.insecure,
        })
    }
}

/// What is shown to a dispatcher, and how it is trusted.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Trust, of the dispatcher")]
pub(crate) struct Asking {
    /// The file of the token to bear; it is read again when it changes
    #[arg(long, value_name = "FILE", env = "FEEDLINE_TOKEN_FILE")]
    token: Option<PathBuf>,
    /// Speak TLS, and trust certificates of the authority in this file
    #[arg(long, value_name = "FILE", env = "FEEDLINE_CA")]
    ca: Option<PathBuf>,
    /// The certificate to show, if one is asked for
    #[arg(
        long,
        value_name = "FILE",
        requires = "ca",
        requires = "certificate_key",
        env = "FEEDLINE_CERTIFICATE"
    )]
    certificate: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "certificate", env = "FEEDLINE_CERTIFICATE_KEY")]
    certificate_key: Option<PathBuf>,
    /// The name in the dispatcher's certificate, if it is not its host's
    #[arg(long, value_name = "NAME", requires = "ca", env = "FEEDLINE_SERVER_NAME")]
    server_name: Option<String>,
}

impl Asking {
    fn tls(&self) -> Option<ClientTls> {
        let identity = self.certificate.clone().zip(self.certificate_key.clone());
        let name = self.server_name.clone();
        self.ca.clone().map(|authority| ClientTls { authority, identity, name })
    }

    /// A dispatcher at an address. Nothing is sent yet.
    pub(crate) fn connect(&self, url: &str, insecure: bool) -> Result<Remote> {
        let (token, tls) = (self.token.clone(), self.tls());
        match Remote::with(&RemoteOptions { token, tls, insecure, ..RemoteOptions::new(url) }) {
            Ok(remote) => Ok(remote),
            Err(Failure::Invalid(reason)) => bail!(Usage(reason)),
            Err(failure) => Err(failed(failure)),
        }
    }

    /// How workers are reached.
    pub(crate) fn stream(&self) -> Result<ClientOptions> {
        let token = self.token.as_deref().map(TokenFile::open).transpose().map_err(Usage)?;
        let tls = self.tls().map(|tls| tls.trust(&[])).transpose().map_err(Usage)?;
        Ok(ClientOptions { token, tls, ..ClientOptions::default() })
    }
}
