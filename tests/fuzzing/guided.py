"""Coverage-guided fuzzing with atheris: ``python -m tests.fuzzing.guided PROCESSES OPTIONS_JSON TARGET ...``.

The modules are imported and instrumented once, which takes half a minute; each target then runs in a fork, PROCESSES of
them at the same time, with libFuzzer's options. A fork does not end at a finding: each kind of finding is written once
to `FOUND`, and fuzzing goes on. The name of each target is printed when its fork has ended, with its status; what
libFuzzer has printed is then in `LOGS`. Called by `tests.fuzzing.__main__`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import atheris

with atheris.instrument_imports(include=["headrace", "tests.fuzzing"]):
    from tests.fuzzing.running import CACHE, FOUND, LOGS, checks, longest_input, run_input
    from tests.fuzzing.targets import TARGETS


def main() -> None:
    """Fuzz all targets."""
    processes, options, names = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    running: dict[int, str] = {}
    while names or running:
        if names and len(running) < processes:
            name = names.pop(0)
            if child := os.fork():
                running[child] = name
            else:
                fuzz(name, options)
        else:
            ended, status = os.wait()
            print(running.pop(ended), os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def fuzz(name: str, options: dict[str, int]) -> None:
    """Fuzz a target until libFuzzer's limits are reached, and end the process."""
    with (LOGS / name).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    target = TARGETS[name]
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
                (FOUND / f"{name}-{len(known)}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")

    settings = [f"-{option}={value}" for option, value in {**options, "max_len": longest_input(name)}.items()]
    folders = [str(CACHE / "kept" / name), str(CACHE / "seeds" / name)]
    atheris.Setup([sys.argv[0], *folders, *settings, f"-artifact_prefix={FOUND}/{name}-"], run)
    with checks():
        atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    main()
