"""A JVM inside this process with several versions of Kafka's classes: the oracle of the wire tests.

Called by tests only. A process can start only one JVM, and only once, so it runs until the process ends. Every Kafka
version has its own class loader, whose parent is the Java platform's; objects of one version cannot be used with
classes of another.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Literal

from testbed.errors import JvmError
from testbed.kafka.artifacts import broker_jars, client_jars
from testbed.kafka.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Jars = Literal["clients", "broker"]

# Enough memory for three versions' classes and for messages of test size.
JVM_OPTIONS = (
    "-Xmx512m",
    # The JVM protects the pages below this much of the main thread's stack. The default, 1 MiB, is less than the C
    # recursion of Python 3.12 and newer may use, for example in json, and the process would end by SIGSEGV.
    "-Xss8m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Leaves SIGINT and SIGTERM to Python; otherwise the JVM ends the whole process at the first one.
    "-Xrs",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)

PROTOCOL = "org.apache.kafka.common.protocol"
MESSAGES = "org.apache.kafka.common.message"

_starting = threading.Lock()


class KafkaClasses:
    """The classes of one Kafka version. Created by `kafka_classes`; may be used from any thread."""

    __slots__ = ("_jpype", "_loader", "version")

    def __init__(self, version: str, jars: Sequence[Path]) -> None:
        self._jpype = start_jvm()
        self.version = version
        java = self._jpype.java
        urls = [java.io.File(str(jar)).toURI().toURL() for jar in jars]
        platform = java.lang.ClassLoader.getPlatformClassLoader()
        self._loader: Any = java.net.URLClassLoader(urls, platform)

    def cls(self, name: str) -> Any:
        """Return the class `name` as a JPype class; the name of a nested class is "Outer$Inner".

        Raises JvmError when this version has no such class.
        """
        try:
            return self._jpype.JClass(name, loader=self._loader)
        except (self._jpype.java.lang.ClassNotFoundException, TypeError) as error:
            raise JvmError(f"Kafka {self.version} has no class {name}") from error

    def encode(self, message: Any, version: int) -> bytes:
        """Return the encoding of a generated message (an `org.apache.kafka.common.message` object), without header.

        Raises the Java exception (UnsupportedVersionException) for fields that `version` of the message cannot carry.
        """
        cache = self.cls(f"{PROTOCOL}.ObjectSerializationCache")()
        buffer = self._jpype.java.nio.ByteBuffer.allocate(message.size(cache, version))
        message.write(self.cls(f"{PROTOCOL}.ByteBufferAccessor")(buffer), cache, version)
        return bytes(buffer.array())

    def decode(self, name: str, data: bytes, version: int) -> Any:
        """Return the message of class `name` ("MetadataResponseData") that is decoded from `data`.

        Raises JvmError if bytes are left over, and the Java exception if `data` cannot be decoded.
        """
        buffer = self._jpype.java.nio.ByteBuffer.wrap(data)
        message = self.cls(f"{MESSAGES}.{name}")(self.cls(f"{PROTOCOL}.ByteBufferAccessor")(buffer), version)
        if buffer.hasRemaining():
            raise JvmError(f"{buffer.remaining()} bytes are left behind a {name} of version {version}")
        return message


def kafka_classes(version: str, jars: Jars = "clients") -> KafkaClasses:
    """Return the classes of kafka-clients `version` ("3.9.1", "4.3.1", "4.4.0"), cached per process.

    `jars="broker"` includes the brokers' and tools' classes ("3.9.1", "4.3.1"). Starts the JVM if necessary. Raises
    UnknownVersionError, ArtifactsUnavailableError, JavaNotFoundError or JvmError.
    """
    return _kafka_classes(version, jars)


@functools.cache
def _kafka_classes(version: str, jars: Jars) -> KafkaClasses:
    return KafkaClasses(version, client_jars(version) if jars == "clients" else broker_jars(version))


def start_jvm() -> Any:
    """Start this process's JVM if it is not running, and return the module jpype.

    Java strings are converted to `str`. Raises JavaNotFoundError, or JvmError when the package jpype1
    is missing or the JVM does not start.
    """
    try:
        import jpype
    except ImportError as error:
        raise JvmError("the package jpype1 is missing; make installs it") from error
    with _starting:
        if not jpype.isJVMStarted():
            java = find_java()
            # Java 22 and newer warn about each library that loads native code, JPype's own among them.
            native_access = ("--enable-native-access=ALL-UNNAMED",) if java.version >= 22 else ()
            try:
                jpype.startJVM(
                    *JVM_OPTIONS,
                    *native_access,
                    jvmpath=str(java.jvm_library),
                    convertStrings=True,
                    interrupt=False,
                )
            except (OSError, RuntimeError) as error:
                raise JvmError(f"the JVM {java.jvm_library} does not start: {error}") from error
    return jpype


def java_bytes(value: bytes) -> Any:
    """Return ``value`` as an array of Java."""
    jpype = start_jvm()
    return jpype.JArray(jpype.JByte)(value)
