"""The command line and the environment of a JVM that runs one of Kafka's programs from the jars.

Called by the cluster, the tools and the modules that prepare both. Options are chosen for programs that run for seconds
to minutes, several at a time, on two cores.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from testbed.kafka.artifacts import broker_jars
from testbed.kafka.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STARTING_OPTIONS = (
    # One collector thread and only the quick compiler: halves the CPU time of a start, and reduces the peak speed.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)
# For long measurements: the JVM's defaults, which take a minute to warm up.
THROUGHPUT_OPTIONS = ("-XX:+UseG1GC",)
QUIET_OPTIONS = (
    "-Djava.awt.headless=true",
    # The JVM prints warnings, for instance about an unusable class data archive, to the program's standard output.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    # log4j-core is among Kafka 4's jars, is not used for logging, and warns that it has no configuration.
    "-Dlog4j2.statusLoggerLevel=OFF",
    "-Dlog4j.statusLogger.level=OFF",
)


def java_command(
    version: str,
    main_class: str,
    arguments: Sequence[str] = (),
    *,
    heap_mb: int,
    options: Sequence[str] = STARTING_OPTIONS,
    log_level: str = "off",
    class_data: Path | None = None,
) -> list[str]:
    """Return the command that runs `main_class` of Kafka `version` with at most `heap_mb` MiB of heap.

    `log_level` is what Kafka logs to standard error: "off", "error", "warn", "info" or "debug". `class_data` is an
    archive of `testbed.kafka.class_data`. Raises JavaNotFoundError, UnknownVersionError or ArtifactsUnavailableError.
    """
    return [
        str(find_java().executable),
        f"-Xmx{heap_mb}m",
        *QUIET_OPTIONS,
        *([f"-XX:SharedArchiveFile={class_data}"] if class_data else []),
        *(f"-D{key}={value}" for key, value in _logging_properties(log_level).items()),
        *options,
        "-cp",
        os.pathsep.join(str(jar) for jar in broker_jars(version)),
        main_class,
        *arguments,
    ]


def _logging_properties(level: str) -> Mapping[str, str]:
    """Return the settings of slf4j-simple, with which `testbed.kafka.artifacts` replaces Kafka's log4j."""
    prefix = "org.slf4j.simpleLogger"
    settings = {
        f"{prefix}.defaultLogLevel": level,
        f"{prefix}.showDateTime": "true",
        f"{prefix}.dateTimeFormat": "HH:mm:ss.SSS",
    }
    if level == "info":
        # Several hundred lines at every start, which are in server.properties already.
        settings[f"{prefix}.log.org.apache.kafka.common.config"] = "warn"
    return settings
