"""Coverage-guided fuzzing of one target with atheris, in a process: ``python -m tests.fuzzing.guided TARGET``.

The further arguments are libFuzzer's. The process does not end at a finding: each kind of finding is written once to
the folder that ``FUZZ_FOUND`` names, and fuzzing goes on. Called by `tests.fuzzing.__main__`.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import atheris


def main() -> None:
    """Fuzz until libFuzzer's limits are reached."""
    with atheris.instrument_imports(include=["headrace", "tests.fuzzing"]):
        from tests.fuzzing.running import checks, run_input
        from tests.fuzzing.targets import TARGETS
    name = sys.argv.pop(1)
    target = TARGETS[name]
    found = Path(os.environ["FUZZ_FOUND"])
    known: set[tuple[str, str, int | None]] = set()

    def run(data: bytes) -> None:
        try:
            run_input(target, data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 -- whatever it is, it is a finding
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = type(error).__name__, place.filename, place.lineno
            if kind not in known:
                known.add(kind)
                text = f"{data.hex()}\n{''.join(traceback.format_exception(error))}"
                (found / f"{name}-{len(known)}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")

    atheris.Setup(sys.argv, run)
    with checks():
        atheris.Fuzz()


if __name__ == "__main__":
    main()
