//! TLS by rustls: with clients and with brokers, in the control plane and while a connection is relayed natively.
//!
//! - `session`: the state of one connection
//! - `config`: what listeners and upstreams permit and show
//! - `verifier`: whether the certificate of a peer is accepted
//! - `failure`: why a connection has failed, in the words of OpenSSL
//! - `python`: the classes of the extension module
//! - `limits`: what a peer may make this side compute without sending data

pub mod config;
pub mod failure;
pub mod limits;
#[cfg(feature = "extension-module")]
pub mod python;
pub mod session;
pub mod verifier;
