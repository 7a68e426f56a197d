//! TLS by rustls: with clients and with brokers, in the control plane and while a connection is relayed natively.
//!
//! - `session`: the state of one connection
//! - `config`: versions, cipher suites and certificates of listeners and upstreams
//! - `verifier`: whether the certificate of a peer is accepted
//! - `failure`: failures, named as by OpenSSL
//! - `python`: the classes of the extension module
//! - `limits`: limits on records without data, and on messages that TLS has to answer

pub mod config;
pub mod failure;
pub mod limits;
#[cfg(feature = "extension-module")]
pub mod python;
pub mod session;
pub mod verifier;
