//! The extension module: what the control plane calls (`headrace.proxy.data_plane`). Its stub,
//! `src/headrace/_engine.pyi`, documents it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::{PyKeyError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::completions::{Collected, Reply, Sample, Sums, Wanted};
use crate::connection::{Connection, Exchange, Fault, Progress, Reason, Rest, Terms};
use crate::engine::Engine;
use crate::meters::{Charge, Meters, SeenIds};
use crate::sockets::{Socket, TAIL_BYTES};
use crate::table::{Kind, Row, Table};
use crate::tls::python::{PyTlsConfig, PyTlsSession, PyTlsSessions};

type ExchangeRow = (i16, i16, i32, i16, u32, i64, i64, bool, bool);

/// `(reply_ns, size, header_bytes, thread_ns)`
type ReplyRow = (i64, u32, u32, i64);

/// `(api_key, second, requests, request_bytes, reply_bytes, thread_ns, broker_ns, latencies)`
type SumsRow = (i16, i64, u64, u64, u64, i64, i64, Vec<u64>);

/// `(draw, request, reply, completed_ns)`
type SampleRow = (f64, ExchangeRow, ReplyRow, i64);

type CollectedRows = (Vec<SumsRow>, Vec<SampleRow>);

/// `(api_key, version, kind, header_version, flexible_reply, throttle_at, base_ms, per_kib_ms)`
type ApiRow = (u16, u16, u8, u8, bool, i32, f64, f64);

#[pyclass(module = "headrace._engine", name = "SeenIds", frozen)]
struct PySeenIds(Arc<SeenIds>);

#[pymethods]
impl PySeenIds {
    #[new]
    fn new() -> Self {
        PySeenIds(Arc::default())
    }

    fn add(&self, producer_id: i64, until_ms: i64) {
        self.0.add(producer_id, until_ms);
    }

    fn close(&self) {
        self.0.close();
    }
}

#[pyclass(module = "headrace._engine", name = "Progress", frozen)]
struct PyProgress {
    id: u64,
    progress: Arc<Progress>,
}

fn value(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[pymethods]
impl PyProgress {
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Bytes received from and sent to the client, and received from and sent to the broker; those of them that were
    /// spliced.
    #[getter]
    fn bytes(&self) -> (u64, u64, u64, u64, u64) {
        let of = &self.progress;
        (
            value(&of.received_from_client),
            value(&of.sent_to_client),
            value(&of.received_from_broker),
            value(&of.sent_to_broker),
            value(&of.spliced),
        )
    }

    #[getter]
    fn active_ns(&self) -> i64 {
        self.progress.active_ns.load(Ordering::Relaxed)
    }

    #[getter]
    fn in_flight(&self) -> u64 {
        value(&self.progress.in_flight)
    }

    #[getter]
    fn requests(&self) -> u64 {
        value(&self.progress.requests)
    }

    #[getter]
    fn is_arriving(&self) -> bool {
        value(&self.progress.arriving) != 0
    }

    #[getter]
    fn held(&self) -> u64 {
        value(&self.progress.held)
    }

    #[getter]
    fn is_blocked(&self) -> bool {
        value(&self.progress.blocked) != 0
    }

    #[getter]
    fn hints(&self) -> u64 {
        value(&self.progress.hints)
    }
}

#[pyclass(module = "headrace._engine", name = "Rest", frozen, get_all)]
struct PyRest {
    id: u64,
    reason: &'static str,
    /// `(side, errno)`; the errno is 0 for fields that violate their schema.
    fault: Option<(&'static str, i32)>,
    request_tail: Py<PyBytes>,
    reply_tail: Py<PyBytes>,
    request_left: usize,
    reply_left: usize,
    reply_lost: bool,
    in_flight: Vec<ExchangeRow>,
    begun_reply: Option<ReplyRow>,
    completed: CollectedRows,
    asks_arrival: bool,
    producer_ids: Vec<i64>,
    thread_ns: i64,
}

fn exchange_row(of: &Exchange) -> ExchangeRow {
    (
        of.api_key,
        of.version,
        of.correlation_id,
        of.acks,
        of.request_bytes,
        of.received_ns,
        of.forwarded_ns,
        of.arrived,
        of.alone,
    )
}

fn reply_row(of: Reply) -> ReplyRow {
    (of.reply_ns, of.size, of.header_bytes, of.thread_ns)
}

fn collected_rows(of: Collected) -> CollectedRows {
    let sums = |of: Sums| {
        (of.api_key, of.second, of.requests, of.request_bytes, of.reply_bytes, of.thread_ns, of.broker_ns, of.latencies)
    };
    let sample = |of: Sample| (of.draw, exchange_row(&of.exchange), reply_row(of.reply), of.completed_ns);
    (of.sums.into_iter().map(sums).collect(), of.samples.into_iter().map(sample).collect())
}

fn rest_of(py: Python<'_>, id: u64, rest: Rest) -> PyRest {
    let reason = match rest.reason {
        Reason::Request => "request",
        Reason::Reply => "reply",
        Reason::Credit => "credit",
        Reason::End => "end",
        Reason::Recalled => "recalled",
    };
    let fault = rest.fault.map(|fault| match fault {
        Fault::Client(error) => ("client", error.raw_os_error()),
        Fault::Broker(error) => ("upstream", error.raw_os_error()),
        Fault::Request => ("client", 0),
        Fault::Rows => ("rows", 0),
        Fault::Reply => ("upstream", 0),
        Fault::Internal => ("proxy", 0),
    });
    PyRest {
        id,
        reason,
        fault,
        request_tail: PyBytes::new(py, &rest.request_tail).unbind(),
        reply_tail: PyBytes::new(py, &rest.reply_tail).unbind(),
        request_left: rest.request_left,
        reply_left: rest.reply_left,
        reply_lost: rest.reply_lost,
        in_flight: rest.in_flight.iter().map(exchange_row).collect(),
        begun_reply: rest.begun_reply.map(reply_row),
        completed: collected_rows(rest.completed),
        asks_arrival: rest.asks_arrival,
        producer_ids: rest.producer_ids,
        thread_ns: rest.thread_ns,
    }
}

/// Borrows a descriptor of the control plane for as long as the connection is relayed.
fn borrow(fd: RawFd) -> PyResult<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("{fd} is not a file descriptor")));
    }
    // SAFETY: The control plane owns the socket. It closes it only after the connection has returned (`returned`), or
    // after `take_back` has returned, which waits until the thread has dropped the connection; and `stop` ends the
    // threads before it returns. So the descriptor is open while it is used.
    #[allow(unsafe_code)]
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

#[pyclass(module = "headrace._engine", name = "Engine")]
struct PyEngine {
    engine: Engine,
    meters: Meters,
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (threads, apis, *, latency_bounds_ns, sample_ratio))]
    fn new(
        threads: usize,
        apis: Vec<ApiRow>,
        latency_bounds_ns: Option<Vec<i64>>,
        sample_ratio: f64,
    ) -> PyResult<Self> {
        if threads == 0 {
            return Err(PyValueError::new_err("an engine needs at least 1 thread"));
        }
        let mut table = Table::default();
        for (api_key, version, kind, header_version, flexible_reply, throttle_at, base_ms, per_kib_ms) in apis {
            let kind = match kind {
                0 => Kind::Plain,
                1 => Kind::Produce,
                2 => Kind::Fetch,
                3 => Kind::FetchWithHints,
                _ => return Err(PyValueError::new_err(format!("{kind} is not a kind of API"))),
            };
            let throttle_at = usize::try_from(throttle_at).ok();
            table.insert(
                api_key,
                version,
                Row { kind, header_version, flexible_reply, throttle_at, base_ms, per_kib_ms },
            );
        }
        let sums = latency_bounds_ns.is_some();
        let wanted = Wanted { sums, latency_bounds_ns: latency_bounds_ns.unwrap_or_default(), sample_ratio };
        let engine = Engine::start(threads, table, &wanted).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(PyEngine { engine, meters: Meters::default() })
    }

    fn fileno(&self) -> RawFd {
        self.engine.wake().as_raw_fd()
    }

    #[pyo3(signature = (client, broker, *, client_id, in_flight, request_tail, produced, fetched,
        request_time, producer_ids, measures_time, fetch_bytes, fetches_alone, most_in_flight, longest_frame, most_rows,
        until_ns = None, client_tls = None, broker_tls = None))]
    #[allow(clippy::too_many_arguments)]
    fn relay(
        &mut self,
        client: RawFd,
        broker: RawFd,
        client_id: &[u8],
        in_flight: Vec<ExchangeRow>,
        request_tail: &[u8],
        produced: Option<u64>,
        fetched: Option<u64>,
        request_time: Option<u64>,
        producer_ids: Option<&Bound<'_, PySeenIds>>,
        measures_time: bool,
        fetch_bytes: i32,
        fetches_alone: bool,
        most_in_flight: usize,
        longest_frame: u32,
        most_rows: usize,
        until_ns: Option<i64>,
        client_tls: Option<&Bound<'_, PyTlsSession>>,
        broker_tls: Option<&Bound<'_, PyTlsSession>>,
    ) -> PyResult<PyProgress> {
        if request_tail.len() > TAIL_BYTES {
            return Err(PyValueError::new_err(format!("a tail of {} bytes is too long", request_tail.len())));
        }
        if fetched.is_some() && fetched == request_time {
            return Err(PyValueError::new_err("a reply cannot be charged to one meter twice"));
        }
        let meter = |id: Option<u64>| match id {
            None => Ok(None),
            Some(id) => match self.meters.get(id) {
                Some(meter) => Ok(Some(Arc::clone(meter))),
                None => Err(PyKeyError::new_err(format!("no meter {id}"))),
            },
        };
        let terms = Terms {
            client_id: client_id.into(),
            produced: meter(produced)?,
            fetched: meter(fetched)?,
            request_time: meter(request_time)?,
            producer_ids: producer_ids.map(|ids| Arc::clone(&ids.get().0)),
            measures_time,
            fetch_bytes,
            fetches_alone,
            most_in_flight,
            longest_frame,
            most_rows,
            until_ns: until_ns.unwrap_or(i64::MAX),
        };
        let in_flight = in_flight
            .into_iter()
            .map(
                |(api_key, version, correlation_id, acks, request_bytes, received_ns, forwarded_ns, arrived, alone)| {
                    Exchange {
                        api_key,
                        version,
                        correlation_id,
                        acks,
                        request_bytes,
                        received_ns,
                        forwarded_ns,
                        arrived,
                        alone,
                    }
                },
            )
            .collect();
        let session = |tls: Option<&Bound<'_, PyTlsSession>>| tls.map(|tls| Arc::clone(&tls.get().0));
        let sockets =
            (Socket::new(borrow(client)?, session(client_tls)), Socket::new(borrow(broker)?, session(broker_tls)));
        let connection = Connection::new(sockets.0, sockets.1, terms, in_flight, request_tail.to_vec());
        let progress = Arc::clone(&connection.progress);
        let id =
            self.engine.relay(connection).ok_or_else(|| PyRuntimeError::new_err("no thread of the engine runs"))?;
        Ok(PyProgress { id, progress })
    }

    fn recall(&self, connection: u64) {
        self.engine.recall(connection);
    }

    fn take_back(&mut self, py: Python<'_>, connection: u64) -> Option<PyRest> {
        let taking = self.engine.take_back(connection)?;
        let rest = py.detach(|| taking.wait())?;
        Some(rest_of(py, connection, rest))
    }

    fn returned(&mut self, py: Python<'_>) -> Vec<PyRest> {
        self.engine.returned().into_iter().map(|(id, rest)| rest_of(py, id, rest)).collect()
    }

    fn collect(&mut self) -> u64 {
        self.engine.collect()
    }

    fn collections(&self) -> u64 {
        self.engine.collections()
    }

    fn completed(&self) -> Vec<(u64, CollectedRows)> {
        self.engine.completed().into_iter().map(|(id, of)| (id, collected_rows(of))).collect()
    }

    fn create_meter(&mut self) -> u64 {
        self.meters.create()
    }

    fn remove_meter(&mut self, meter: u64) {
        self.meters.remove(meter);
    }

    fn charged(&self) -> Vec<u64> {
        self.meters.charged()
    }

    fn take_charges(&self, meter: u64) -> Vec<Charge> {
        self.meters.get(meter).map(|meter| meter.take_charges()).unwrap_or_default()
    }

    fn withdraw(&self, meter: u64) -> Vec<Charge> {
        self.meters.get(meter).map(|meter| meter.withdraw()).unwrap_or_default()
    }

    fn grant(&self, meter: u64, credit: i64) {
        if let Some(meter) = self.meters.get(meter) {
            meter.grant(credit);
        }
    }

    fn requests(&self) -> Vec<u64> {
        self.engine.requests.iter().map(value).collect()
    }

    fn held(&self) -> u64 {
        value(&self.engine.held)
    }

    fn limit_pipes(&self, most: usize) {
        self.engine.pipes.most.store(most, Ordering::Relaxed);
    }

    fn beats(&self) -> Vec<Option<u64>> {
        self.engine.beats()
    }

    fn stop(&mut self, py: Python<'_>) {
        py.detach(|| self.engine.stop());
    }
}

#[pymodule]
#[pyo3(name = "_engine")]
fn engine_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyEngine>()?;
    module.add_class::<PyProgress>()?;
    module.add_class::<PyRest>()?;
    module.add_class::<PySeenIds>()?;
    module.add_class::<PyTlsConfig>()?;
    module.add_class::<PyTlsSession>()?;
    module.add_class::<PyTlsSessions>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
