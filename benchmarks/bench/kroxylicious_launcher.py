"""Runs Kroxylicious in this process; `benchmarks.bench.peers` starts it as a separate program.

    python -m benchmarks.bench.kroxylicious_launcher CONFIG_YAML JVM_LIBRARY JAR...

The runtime jar has no main class, and a JRE cannot compile one; so JPype starts a JVM here, and calls of the runtime's
own classes do what `io.kroxylicious.app.Kroxylicious` does. Prints one line when it listens, then blocks. The Python
interpreter then uses about 17 MB of resident memory and no CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

READY_LINE = "kroxylicious listens"
JVM_OPTIONS = (
    # Only warnings are logged, to standard error. The collector and the compilers are the JVM's defaults.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # Leaves SIGTERM to Python, which ends at once.
    "-Xrs",
)


def main(config_file: str, jvm_library: str, jars: list[str]) -> None:
    """Start Kroxylicious and block until it ends."""
    import jpype

    jpype.startJVM(jvm_library, *JVM_OPTIONS, classpath=jars, convertStrings=True, interrupt=False)
    parser = jpype.JClass("io.kroxylicious.proxy.config.ConfigParser")()
    configuration = parser.parseConfiguration(Path(config_file).read_text(encoding="utf-8"))
    features = jpype.JClass("io.kroxylicious.proxy.internal.config.Features").defaultFeatures()
    proxy = jpype.JClass("io.kroxylicious.proxy.KafkaProxy")(parser, configuration, features)
    proxy.startup()
    print(READY_LINE, flush=True)
    proxy.block()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
