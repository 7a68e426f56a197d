"""Formats the log directories of brokers.

Called by the cluster. `kafka-storage format` writes two files: meta.properties, with the ids of the cluster and the
node, and bootstrap.checkpoint, whose records (feature levels, SCRAM credentials) are the same for all nodes. So Kafka's
own tool runs once for each set of those records, its checkpoint is cached, and a directory is formatted by copying it;
this saves half a second for each node at every start of a cluster.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import uuid
from typing import TYPE_CHECKING

from testbed.errors import ClusterError
from testbed.kafka.artifacts import cache_directory
from testbed.kafka.launch import java_command
from testbed.processes.locks import exclusive
from testbed.processes.programs import run_program
from testbed.processes.supervised import make_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STORAGE_TOOL = "kafka.tools.StorageTool"
CHECKPOINT = "bootstrap.checkpoint"
# The tool takes half a second here.
FORMAT_TIMEOUT_S = 60.0
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def kafka_uuid() -> str:
    """Return a new random id in Kafka's base64 format: 16 bytes in 22 characters, not beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def format_directory(directory: Path, *, cluster_id: str, node_id: int, checkpoint: Path) -> None:
    """Create `directory` as the formatted log directory of a node, with the records of `checkpoint`."""
    directory.mkdir(parents=True)
    shutil.copyfile(checkpoint, directory / CHECKPOINT)
    (directory / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={kafka_uuid()}\n", encoding="ascii"
    )


def bootstrap_checkpoint(version: str, *, features: Mapping[str, int], scram_users: Mapping[str, str]) -> Path:
    """Return a checkpoint with Kafka `version`'s production features, except for the levels in `features`.

    `scram_users` maps names to passwords, for all of `SCRAM_MECHANISMS`. Takes milliseconds if the checkpoint is
    cached, otherwise about a second. Raises ClusterError with the tool's message if it rejects a feature.
    """
    arguments = [word for name, level in sorted(features.items()) for word in ("--feature", f"{name}={level}")]
    for name, password in sorted(scram_users.items()):
        for mechanism in SCRAM_MECHANISMS:
            arguments += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
    key = hashlib.sha256(json.dumps([version, arguments]).encode()).hexdigest()[:16]
    checkpoint = cache_directory() / "storage" / f"{version}-{key}.checkpoint"
    if not checkpoint.is_file():
        with exclusive(checkpoint.with_suffix(".lock"), timeout_s=FORMAT_TIMEOUT_S):
            if not checkpoint.is_file():
                _make_checkpoint(checkpoint, version, arguments)
    return checkpoint


def _make_checkpoint(checkpoint: Path, version: str, arguments: list[str]) -> None:
    """Run Kafka's tool on a temporary directory, and keep the checkpoint that it writes."""
    work = make_directory("headrace-format-")
    try:
        properties = work.path / "server.properties"
        properties.write_text(
            "process.roles=broker,controller\nnode.id=0\ncontroller.quorum.voters=0@127.0.0.1:1\n"
            "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={work.path / 'log'}\n",
            encoding="utf-8",
        )
        command = java_command(
            version,
            STORAGE_TOOL,
            ["format", "--cluster-id", kafka_uuid(), "--config", str(properties), *arguments],
            heap_mb=128,
        )
        result = run_program(command, timeout_s=FORMAT_TIMEOUT_S)
        if result.returncode != 0:
            raise ClusterError(f"cannot format storage for Kafka {version}: {(result.stderr or result.stdout).strip()}")
        draft = checkpoint.with_suffix(f".{os.getpid()}.draft")
        shutil.copyfile(work.path / "log" / CHECKPOINT, draft)
        draft.replace(checkpoint)
    finally:
        work.remove()
