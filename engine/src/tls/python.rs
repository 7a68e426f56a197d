//! The classes of the extension module for TLS. Its stub, `src/headrace/_engine.pyi`, documents them.

use std::sync::{Arc, Mutex};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustls::{ClientConfig, ServerConfig};

use crate::meters::lock;
use crate::tls::config::{self, Allowed, Identity, Sessions};
use crate::tls::failure::Failure;
use crate::tls::limits::Excess;
use crate::tls::session::Session;
use crate::tls::verifier::AuthorityRow;

enum Config {
    Server(Arc<ServerConfig>),
    Client(Arc<ClientConfig>),
}

#[pyclass(module = "headrace._engine", name = "TlsConfig", frozen)]
pub struct PyTlsConfig(Config);

#[pymethods]
#[allow(clippy::needless_pass_by_value, reason = "arguments of Python")]
impl PyTlsConfig {
    #[staticmethod]
    #[pyo3(signature = (identity, *, suites, tls12, authorities, is_required, accepts_name))]
    fn server(
        identity: Identity,
        suites: Vec<String>,
        tls12: bool,
        authorities: Option<Vec<AuthorityRow>>,
        is_required: bool,
        accepts_name: Py<PyAny>,
    ) -> PyResult<Self> {
        let accepts = move |name: &str| {
            Python::attach(|py| accepts_name.call1(py, (name,)).and_then(|found| found.is_truthy(py)).unwrap_or(false))
        };
        let allowed = Allowed { suites: &suites, tls12 };
        let clients = authorities.map(|authorities| (authorities, is_required));
        let config = config::server(identity, &allowed, clients, Box::new(accepts)).map_err(PyValueError::new_err)?;
        Ok(PyTlsConfig(Config::Server(config)))
    }

    #[staticmethod]
    #[pyo3(signature = (identity, *, suites, tls12, authorities, verify_names))]
    fn client(
        identity: Option<Identity>,
        suites: Vec<String>,
        tls12: bool,
        authorities: Vec<AuthorityRow>,
        verify_names: bool,
    ) -> PyResult<Self> {
        let allowed = Allowed { suites: &suites, tls12 };
        let config = config::client(identity, &allowed, authorities, verify_names).map_err(PyValueError::new_err)?;
        Ok(PyTlsConfig(Config::Client(config)))
    }

    fn accept(&self) -> PyResult<PyTlsSession> {
        let Config::Server(config) = &self.0 else {
            return Err(PyTypeError::new_err("this is not the configuration of a server"));
        };
        let session = Session::accept(Arc::clone(config)).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTlsSession(Arc::new(Mutex::new(session))))
    }

    fn connect(&self, host: String, sessions: &Bound<'_, PyTlsSessions>) -> PyResult<PyTlsSession> {
        let Config::Client(config) = &self.0 else {
            return Err(PyTypeError::new_err("this is not the configuration of a client"));
        };
        let (config, name) = config::for_broker(config, host, &sessions.get().0).map_err(PyValueError::new_err)?;
        let session = Session::connect(config, name).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTlsSession(Arc::new(Mutex::new(session))))
    }
}

#[pyclass(module = "headrace._engine", name = "TlsSessions", frozen)]
pub struct PyTlsSessions(Sessions);

#[pymethods]
impl PyTlsSessions {
    #[new]
    fn new() -> Self {
        PyTlsSessions(config::new_sessions())
    }
}

#[pyclass(module = "headrace._engine", name = "TlsSession", frozen)]
pub struct PyTlsSession(pub Arc<Mutex<Session>>);

#[pymethods]
#[allow(clippy::needless_pass_by_value, reason = "arguments of Python")]
impl PyTlsSession {
    /// Adds bytes of the peer; returns at most `most` bytes of data.
    fn decrypt<'py>(&self, py: Python<'py>, received: PyBuffer<u8>, most: usize) -> PyResult<Bound<'py, PyBytes>> {
        let received = received.to_vec(py)?;
        let mut data = vec![0; most];
        let count = lock(&self.0).feed(&received, &mut data);
        Ok(PyBytes::new(py, &data[..count]))
    }

    /// Returns the bytes to send, with those of `data` at the end.
    fn encrypt<'py>(&self, py: Python<'py>, data: PyBuffer<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let data = data.to_vec(py)?;
        let mut session = lock(&self.0);
        session.encrypt(&data);
        Ok(PyBytes::new(py, &session.take_outgoing()))
    }

    fn end(&self) {
        lock(&self.0).end();
    }

    fn take_outgoing<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &lock(&self.0).take_outgoing())
    }

    #[getter]
    fn is_handshaking(&self) -> bool {
        lock(&self.0).is_handshaking()
    }

    #[getter]
    fn is_resumed(&self) -> bool {
        lock(&self.0).is_resumed()
    }

    #[getter]
    fn has_ended(&self) -> bool {
        lock(&self.0).has_ended()
    }

    #[getter]
    fn has_unread(&self) -> bool {
        lock(&self.0).has_unread()
    }

    #[getter]
    fn held(&self) -> usize {
        lock(&self.0).held()
    }

    #[getter]
    fn asked_name(&self) -> Option<String> {
        lock(&self.0).asked_name().map(str::to_owned)
    }

    #[getter]
    fn protocol(&self) -> Option<(String, String)> {
        lock(&self.0).protocol()
    }

    #[getter]
    fn peer_certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        lock(&self.0).peer_certificate().map(|der| PyBytes::new(py, der))
    }

    #[getter]
    fn failure(&self) -> Option<(&'static str, String)> {
        lock(&self.0).failure().map(|failure| match failure {
            Failure::Reason(reason) => ("reason", reason.clone()),
            Failure::Certificate(reason) => ("certificate", reason.clone()),
            Failure::Excess(Excess::Empty) => ("limit", String::from("empty")),
            Failure::Excess(Excess::Answers) => ("limit", String::from("answers")),
            Failure::Excess(Excess::Unread) => ("limit", String::from("unread")),
        })
    }
}
