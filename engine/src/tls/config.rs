//! What listeners and upstreams permit, and the certificates that they show.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use crate::tls::verifier::{AuthorityRow, Verifier};

/// Number of session tickets after each full handshake of TLS 1.3. One is enough for a client to resume its session.
const TICKETS: usize = 1;

/// The most tickets of one broker that are kept.
const KEPT_SESSIONS: usize = 8;

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const NEWEST: &[&SupportedProtocolVersion] = &[&TLS13];

thread_local! {
    /// The host name that the client of the latest handshake of this thread asks for, and whether it is refused.
    static ASKED: RefCell<Asked> = RefCell::default();
}

/// The host name that a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub name: Option<String>,
    pub is_refused: bool,
}

/// Returns what was asked for in this thread since the last call, and forgets it.
pub fn take_asked() -> Asked {
    ASKED.with(RefCell::take)
}

/// Whether a host name is one of this listener.
pub type AcceptsName = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The certificate of a listener, for the host names that it accepts.
struct Resolver {
    identity: Arc<CertifiedKey>,
    accepts_name: AcceptsName,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Resolver")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_owned);
        let is_refused = name.as_ref().is_some_and(|name| !(self.accepts_name)(name));
        ASKED.with(|asked| asked.replace(Asked { name, is_refused }));
        (!is_refused).then(|| Arc::clone(&self.identity))
    }
}

/// A certificate chain and its key (PKCS#8), as DER.
pub type Identity = (Vec<Vec<u8>>, Vec<u8>);

/// The cipher suites, by IANA's names and in the order of preference, and whether TLS 1.2 is permitted.
pub struct Allowed<'a> {
    pub suites: &'a [String],
    pub tls12: bool,
}

impl Allowed<'_> {
    fn provider(&self) -> Result<Arc<CryptoProvider>, String> {
        let mut provider = ring::default_provider();
        let mut chosen = Vec::new();
        for name in self.suites {
            let found = provider
                .cipher_suites
                .iter()
                .find(|each| format!("{:?}", each.suite()).replace("TLS13_", "TLS_") == *name);
            chosen.push(*found.ok_or_else(|| format!("rustls does not have the cipher suite {name}"))?);
        }
        provider.cipher_suites = chosen;
        Ok(Arc::new(provider))
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.tls12 { BOTH } else { NEWEST }
    }
}

fn certified(identity: Identity, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let (chain, key) = identity;
    let chain = chain.into_iter().map(CertificateDer::from).collect();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    CertifiedKey::from_der(chain, key, provider).map_err(|error| format!("rustls cannot use the private key: {error}"))
}

/// Creates the configuration of a listener. `clients` has the authorities of clients and whether a certificate is
/// required; without it, none is requested.
pub fn server(
    identity: Identity,
    allowed: &Allowed<'_>,
    clients: Option<(Vec<AuthorityRow>, bool)>,
    accepts_name: AcceptsName,
) -> Result<Arc<ServerConfig>, String> {
    let provider = allowed.provider()?;
    let identity = Arc::new(certified(identity, &provider)?);
    let algorithms = provider.signature_verification_algorithms;
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(allowed.versions())
        .map_err(|error| error.to_string())?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some((authorities, is_required)) => {
            let verifier = Verifier::new(authorities, algorithms, is_required, false)?;
            builder.with_client_cert_verifier(Arc::new(verifier))
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(Resolver { identity, accepts_name }));
    config.ignore_client_order = true;
    config.send_tls13_tickets = TICKETS;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
    Ok(Arc::new(config))
}

/// Creates the configuration of connections to brokers.
pub fn client(
    identity: Option<Identity>,
    allowed: &Allowed<'_>,
    authorities: Vec<AuthorityRow>,
    verifies_names: bool,
) -> Result<Arc<ClientConfig>, String> {
    let provider = allowed.provider()?;
    let algorithms = provider.signature_verification_algorithms;
    let verifier = Verifier::new(authorities, algorithms, true, verifies_names)?;
    let certified = identity.map(|identity| certified(identity, &provider)).transpose()?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(allowed.versions())
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(match certified {
        None => builder.with_no_client_auth(),
        Some(certified) => builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified))),
    }))
}

/// The sessions with one broker, to resume.
pub type Sessions = Arc<ClientSessionMemoryCache>;

#[must_use]
pub fn new_sessions() -> Sessions {
    Arc::new(ClientSessionMemoryCache::new(KEPT_SESSIONS))
}

/// Returns the configuration of one connection, which resumes one of `sessions`, and the name of the broker.
pub fn for_broker(
    config: &Arc<ClientConfig>,
    host: String,
    sessions: &Sessions,
) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let name = ServerName::try_from(host).map_err(|_| String::from("it is not a valid host name"))?;
    let mut config = ClientConfig::clone(config);
    config.resumption = Resumption::store(Arc::clone(sessions) as _);
    Ok((Arc::new(config), name))
}
