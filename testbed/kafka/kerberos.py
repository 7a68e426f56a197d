"""A Kerberos key distribution center on a free loopback port: Apache Kerby, started by Hadoop's MiniKdc.

Called by tests. The center ends with this process.

    with KeyDistributionCenter("kafka/localhost", "alice") as kdc:
        Listener(name="KERBEROS", protocol="SASL_PLAINTEXT", sasl={"GSSAPI": kdc.jaas("kafka/localhost")})
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

from testbed.kafka.artifacts import LOGGING, resolve
from testbed.kafka.java import find_java
from testbed.kafka.launch import QUIET_OPTIONS, STARTING_OPTIONS
from testbed.kafka.tools import RunningTool
from testbed.processes.supervised import make_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KDC: Final = "org.apache.hadoop:hadoop-minikdc:3.4.1"
MAIN_CLASS: Final = "org.apache.hadoop.minikdc.MiniKdc"
REALM: Final = "EXAMPLE.COM"
"""MiniKdc's default."""
SERVING: Final = "Standalone MiniKdc Running"
HEAP_MB: Final = 128


class KeyDistributionCenter:
    """A center of the realm `REALM` with these principals, each as ``name`` or ``service/host``; a context manager.

    `krb5_conf` is the file for Java's system property ``java.security.krb5.conf``. Raises subclasses of `TestbedError`.
    """

    def __init__(self, *principals: str) -> None:
        self._directory = make_directory("kdc-")
        folder = self._directory.path
        self._keys = folder / "principals.keytab"
        self.krb5_conf: Path = folder / "krb5.conf"
        settings = folder / "minikdc.properties"
        settings.touch()
        self._center = RunningTool(_command([str(folder), str(settings), str(self._keys), *principals]))
        try:
            self._center.wait_for_output(SERVING)
        except BaseException:
            self.close()
            raise

    def jaas(self, principal: str) -> str:
        """Return the JAAS text with which a broker or a Java client is this principal."""
        return (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true refreshKrb5Config=true"
            f' keyTab="{self._keys}" principal="{principal}@{REALM}";'
        )

    def close(self) -> None:
        """End the center and remove its files."""
        self._center.close()
        self._directory.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(arguments: Sequence[str]) -> list[str]:
    class_path = os.pathsep.join(str(jar) for jar in resolve(KDC, LOGGING))
    options = [f"-Xmx{HEAP_MB}m", *QUIET_OPTIONS, *STARTING_OPTIONS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return [str(find_java().executable), *options, "-cp", class_path, MAIN_CLASS, *arguments]
