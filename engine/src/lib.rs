//! Headrace's native data plane: it relays the connections of accepted clients in threads of its own, without the
//! interpreter's lock, as long as no decision is needed. `docs/architecture.md` describes the whole proxy.
//!
//! - `python`: the extension module `headrace._engine`
//! - `engine`: the threads
//! - `connection`: one connection
//! - `completions`: sums and a sample of completed requests
//! - `sockets`: reading, writing and splicing
//! - `heads`, `walks`, `fields`: Kafka's protocol
//! - `meters`: credit and charges
//! - `costs`: what requests have cost lately, and how many may be in flight
//! - `table`: the APIs that are relayed
//! - `tls`: TLS, by rustls

pub mod completions;
pub mod connection;
pub mod costs;
pub mod engine;
pub mod fields;
pub mod heads;
pub mod meters;
#[cfg(feature = "extension-module")]
pub mod python;
pub mod sockets;
pub mod table;
pub mod tls;
pub mod walks;
