//! `feedline certs`: certificates for trying things out.

use crate::Usage;
use crate::output::Output;
use anyhow::Result;
use feedline_wire::certs::{Made, make_development_ca};
use std::path::PathBuf;

/// Options of `certs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to make them in
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A host name or address by which servers are reached; may be given several times. This host's
    /// own name, localhost and the loopback addresses are always there
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut names: Vec<&str> = args.name.iter().map(String::as_str).collect();
    for name in [own.as_str(), "localhost", "127.0.0.1", "::1"] {
        if !names.contains(&name) && !name.is_empty() {
            names.push(name);
        }
    }
    let Made { server, client } = make_development_ca(&args.folder, &names).map_err(Usage)?;
    let identity = client.identity.unwrap_or_default();
    if output.json {
        return output.document(&serde_json::json!({
            "names": names,
            "ca": client.authority,
            "tls_certificate": server.certificate,
            "tls_key": server.key,
            "certificate": identity.0,
            "certificate_key": identity.1,
        }));
    }
    output.text(&format!(
        "an authority, a certificate for servers called {}, and one for clients:\n  \
         servers  --tls-certificate {} --tls-key {}\n  \
         clients  --ca {}\n  \
         if servers ask with --tls-clients {}\n  \
         clients  --certificate {} --certificate-key {}\n\
         Keep {} to yourself: whoever has it can pretend to be any server.\n",
        names.join(", "),
        server.certificate.display(),
        server.key.display(),
        client.authority.display(),
        client.authority.display(),
        identity.0.display(),
        identity.1.display(),
        args.folder.join("ca.key").display(),
    ))
}
