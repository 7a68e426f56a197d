"""Downloads the testbed's requirements in a separate process, so that Ctrl-C can end a download at once.

Prints the current stage, and the text of an error. `preparing` runs it and reads its output.
"""

from __future__ import annotations

import sys
from enum import Enum

from testbed.errors import TestbedError
from testbed.kafka.artifacts import DEFAULT_BROKER_VERSION, broker_jars
from testbed.kafka.class_data import class_data_archive
from testbed.kafka.java import find_java
from testbed.kafka.storage import bootstrap_checkpoint


class Stage(Enum):
    """A stage of the preparation; the value is the line that announces it."""

    JAVA = "stage: java"
    JARS = "stage: jars"
    CLASSES = "stage: classes"


def main() -> int:
    """Return the exit status."""
    try:
        print(Stage.JAVA.value, flush=True)
        find_java()
        print(Stage.JARS.value, flush=True)
        broker_jars(DEFAULT_BROKER_VERSION)
        print(Stage.CLASSES.value, flush=True)
        class_data_archive(DEFAULT_BROKER_VERSION)
        bootstrap_checkpoint(DEFAULT_BROKER_VERSION, features={}, scram_users={})
    except TestbedError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
