"""The last act: the usage records of the run through the pipeline, as anybody would do it by hand, to an HTML report.

    python -m examples.demo.usage_act FOLDER OUTPUT

plays it alone, for a folder that a proxy has written to. The jobs run one after the other in one process, so that Spark
starts once.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.processes.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.demo.screen import Screen

OUTPUT: Final = Path(".cache") / "demo"
"""Below where the demo is run; the lake and the report stay there, and are made anew by the next run."""
REPORT: Final = "report.html"
TIMEOUT_S: Final = 300.0
WRITTEN_TIMEOUT_S: Final = 15.0
LAST_SECOND_S: Final = 2.5
"""After the last request: its second has to end, and its records to be written."""
POLL_S: Final = 0.1


def jobs(folder: Path, output: Path) -> Iterator[list[str]]:
    """What is run, as `headrace pipeline` takes it."""
    lake, proposed = str(output / "lake"), str(output / "recommended.toml")
    yield ["ingest", "--lake", lake, "--from-files", str(folder)]
    yield ["recommend", "--lake", lake, "--by", "client-id", "--least-seconds", "10", "--toml", proposed]
    yield ["what-if", "--lake", lake, "--quotas", proposed]
    yield ["report", "--lake", lake, "--output", str(output / REPORT)]


def play(screen: Screen, folder: Path) -> bool:
    """Run it in a process of its own, and say where the report is. `False` when it failed."""
    from headrace.pipeline.errors import NoJavaError
    from headrace.pipeline.lake.session import check_java

    screen.say("The proxy has recorded who used what, second by second. What the pipeline makes of it, on Spark:")
    try:
        check_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH", os.defpath))
    except NoJavaError as error:
        screen.say(f"This act is left out: {error}.")
        return True
    _wait_written(folder)
    with screen.step("the usage goes through the pipeline", done="the usage went through the pipeline"):
        done = run_program([sys.executable, "-m", __name__, str(folder), str(OUTPUT)], timeout_s=TIMEOUT_S)
    screen.lines(done.stdout.strip())
    if done.returncode != 0:
        screen.say(f"The pipeline failed: {done.stderr.strip()}", style="red")
        return False
    screen.say()
    screen.lines(f"The report: {(OUTPUT / REPORT).resolve()}")
    screen.say()
    return True


def _wait_written(folder: Path) -> None:
    """Until no file is being written, at the earliest when the last second is over."""
    began_s = time.monotonic()
    while True:
        waited_s = time.monotonic() - began_s
        if waited_s > WRITTEN_TIMEOUT_S or (waited_s > LAST_SECOND_S and not list(folder.glob(".*.part"))):
            return
        time.sleep(POLL_S)


def main(folder: Path, output: Path) -> None:
    """Run all jobs; the first that fails ends it, with its own words and status."""
    import shutil

    from headrace.pipeline.cli import pipeline

    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    for job in jobs(folder, output):
        print(f"$ headrace pipeline {shlex.join(job)}", flush=True)
        sys.stderr = sys.stdout
        pipeline.main(job, prog_name="headrace pipeline", standalone_mode=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
