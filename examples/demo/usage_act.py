"""Runs the pipeline on the usage records of the run, with ``headrace pipeline run``, and writes an HTML report.

    python -m examples.demo.usage_act FOLDER OUTPUT

runs it alone, for a folder that a proxy has written to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.processes.programs import run_program

if TYPE_CHECKING:
    from examples.demo.screen import Screen

OUTPUT: Final = Path(".cache") / "demo"
"""Folder below the working directory for the lake and the report, which the next run replaces."""
REPORT: Final = "report.html"
TIMEOUT_S: Final = 300.0
WRITTEN_TIMEOUT_S: Final = 15.0
LAST_SECOND_S: Final = 2.5
"""Time after the last request until its second has ended and its records are written."""
POLL_S: Final = 0.1


PLAN: Final = """\
lake = {lake}
[ingest]
from-files = {folder}
[recommend]
by = "client-id"
least-seconds = 10
toml = {proposed}
[what-if]
quotas = {proposed}
[report]
output = {report}
"""


def play(screen: Screen, folder: Path) -> bool:
    """Run the jobs in a separate process, and print the path of the report. Return `False` if they fail."""
    from headrace.pipeline.errors import NoJavaError
    from headrace.pipeline.lake.session import check_java

    screen.write("The proxy has recorded the usage of each client for each second. The pipeline analyses it on Spark:")
    try:
        check_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH", os.defpath))
    except NoJavaError as error:
        screen.write(f"The pipeline is skipped: {error}.")
        return True
    _wait_written(folder)
    with screen.step("running the pipeline on the usage records", done="the pipeline has processed the usage records"):
        done = run_program([sys.executable, "-m", __name__, str(folder), str(OUTPUT)], timeout_s=TIMEOUT_S)
    screen.lines(done.stdout.strip())
    if done.returncode != 0:
        screen.write(f"The pipeline failed: {done.stderr.strip()}", style="red")
        return False
    screen.write()
    screen.lines(f"The report: {(OUTPUT / REPORT).resolve()}")
    screen.write()
    return True


def _wait_written(folder: Path) -> None:
    """Wait until no file is being written, and at least until the last second has ended."""
    began_s = time.monotonic()
    while True:
        waited_s = time.monotonic() - began_s
        if waited_s > WRITTEN_TIMEOUT_S or (waited_s > LAST_SECOND_S and not list(folder.glob(".*.part"))):
            return
        time.sleep(POLL_S)


def main(folder: Path, output: Path) -> None:
    """Write the plan and run it; the first job that fails ends the process, with its own error and status."""
    import shutil

    from headrace.pipeline.cli import pipeline

    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    files = {"lake": "lake", "proposed": "recommended.toml", "report": REPORT}
    paths = {name: output / file for name, file in files.items()} | {"folder": folder}
    plan = output / "plan.toml"
    plan.write_text(PLAN.format(**{name: json.dumps(str(path)) for name, path in paths.items()}), encoding="utf-8")
    print(plan.read_text(encoding="utf-8"))
    print(f"$ headrace pipeline run {plan}", flush=True)
    sys.stderr = sys.stdout
    pipeline.main(["run", str(plan)], prog_name="headrace pipeline", standalone_mode=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
