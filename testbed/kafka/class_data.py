"""Archives of loaded classes (class data sharing), with which a broker starts in half the CPU time.

Called by the cluster and the tools. The archive of a Kafka version and a Java build is created once and cached, by
running a broker until it serves and shutting it down cleanly, which takes about five seconds. Archives are optional: a
failure to create one is logged only, and the JVM ignores one that does not fit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from testbed.errors import TestbedError
from testbed.kafka.artifacts import broker_jars, cache_directory
from testbed.kafka.java import find_java
from testbed.kafka.launch import STARTING_OPTIONS, java_command
from testbed.kafka.probe import ask
from testbed.kafka.properties import Node, Topology, render, server_properties
from testbed.kafka.storage import bootstrap_checkpoint, format_directory, kafka_uuid
from testbed.processes.locks import exclusive
from testbed.processes.ports import reserve_ports
from testbed.processes.programs import java_environment
from testbed.processes.supervised import SupervisedDirectory, SupervisedProgram, make_directory, start_program

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

# Five seconds on an idle machine, half a minute on one with a load of twenty.
TRAINING_TIMEOUT_S = 120.0
POLL_S = 0.02


def class_data_archive(version: str) -> Path | None:
    """Return the archive for brokers and tools of Kafka `version`; create it if it is not cached.

    None if this Java cannot create one. Raises the errors of `find_java` and `broker_jars`.
    """
    java = find_java()
    jars = [str(jar) for jar in broker_jars(version)]
    key = hashlib.sha256("\n".join([str(java.home), java.build, *jars]).encode()).hexdigest()[:16]
    archive = cache_directory() / "class-data" / f"{version}-{key}.jsa"
    if not archive.is_file():
        with exclusive(archive.with_suffix(".lock"), timeout_s=2 * TRAINING_TIMEOUT_S):
            if not archive.is_file():
                _make_archive(archive, version)
    return archive if archive.is_file() and archive.stat().st_size else None


def _make_archive(archive: Path, version: str) -> None:
    """Create the archive, or an empty file if Java does not create one, so that this is tried only once.

    After a failure, such as a broker too slow for the time-out, no file is created, and the next caller tries again.
    """
    draft = archive.with_suffix(f".{os.getpid()}.draft")
    _log.info("creating the class data archive of Kafka %s, once, so that brokers start faster", version)
    try:
        _train(draft, version)
    except TestbedError as error:
        _log.warning("cannot create the class data archive of Kafka %s: %s", version, error)
        draft.unlink(missing_ok=True)
        return
    draft.touch()
    draft.replace(archive)


def _train(archive: Path, version: str) -> None:
    """Run a broker until it serves and shut it down: the JVM then writes the classes it has loaded to `archive`."""
    work = make_directory("headrace-training-")
    deadline = time.monotonic() + TRAINING_TIMEOUT_S
    try:
        with reserve_ports(2) as ports:
            broker = _start_broker(work, archive, version, ports.first)
            while ask("127.0.0.1", ports.first) is None and broker.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
            broker.send_signal(signal.SIGTERM)
            broker.wait(max(0.0, deadline - time.monotonic()))
    finally:
        work.remove()


def _start_broker(work: SupervisedDirectory, archive: Path, version: str, port: int) -> SupervisedProgram:
    node = Node(node_id=0, roles=("broker", "controller"), ports={"PLAINTEXT": port, "CONTROLLER": port + 1})
    topology = Topology(version=version, brokers=1, voters={0: port + 1})
    checkpoint = bootstrap_checkpoint(version, features={}, scram_users={})
    format_directory(work.path / "log", cluster_id=kafka_uuid(), node_id=0, checkpoint=checkpoint)
    properties = work.path / "server.properties"
    properties.write_text(render(server_properties(topology, node, work.path / "log")), encoding="utf-8")
    command = java_command(
        version,
        "kafka.Kafka",
        [str(properties)],
        heap_mb=256,
        options=(*STARTING_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}"),
    )
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return start_program(
            command,
            environment=java_environment(),
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            directory=work,
        )
    finally:
        os.close(nothing)
