"""Whether published advisories name one of the versions in ``dev.txt``: ``python -m requirements.audit``.

The status is 1 for an advisory that is not in ``judged_advisories.toml``, where the reason stands why it does not
concern Headrace, and for one in that file that no version has any more. pip-audit needs an advisory service. Without an
answer it reports "no known vulnerabilities", so this module counts the answers: without all of them the status is 1,
too, unless ``AUDIT_OFFLINE=1`` states that this machine has no such service.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PINS: Final = Path(__file__).with_name("dev.txt")
JUDGED: Final = Path(__file__).with_name("judged_advisories.toml")
OFFLINE: Final = "AUDIT_OFFLINE"
"""The environment variable; its value 1 accepts that there is no answer."""
TIMEOUT_S: Final = 600


class Audit(NamedTuple):
    """What an audit found."""

    lines: list[str]
    is_bad: bool = False
    """Whether there is an advisory that was not judged, or a judged one that is gone."""
    is_done: bool = True
    """Whether the service has answered about every distribution."""


def main() -> int:
    """Run pip-audit, print what it found or why it is not known, and return the exit status."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--requirement", str(PINS)]
    options = ["--format", "json", "--progress-spinner", "off"]
    try:
        result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        output, errors = result.stdout, result.stderr
    except subprocess.TimeoutExpired:
        output, errors = "", f"no answer within {TIMEOUT_S} s"
    audit = audited(output, errors, tomllib.loads(JUDGED.read_text(encoding="utf-8")))
    for line in audit.lines:
        sys.stdout.write(f"audit: {line}\n")
    return status(audit, offline=os.environ.get(OFFLINE) == "1")


def status(audit: Audit, *, offline: bool) -> int:
    """Return the exit status; print what allows an audit that was not done, if that is the only problem."""
    if audit.is_bad:
        return 1
    if not audit.is_done and not offline:
        sys.stdout.write(f"audit: set {OFFLINE}=1 on a machine without an advisory service\n")
        return 1
    return 0


def audited(output: str, errors: str, judged: Mapping[str, str]) -> Audit:
    """Return the result, given what pip-audit has written to standard output and standard error.

    ``judged`` has the reasons why advisories do not matter, by their ids.
    """
    try:
        found: list[dict[str, Any]] = list(json.loads(output)["dependencies"])
    except (ValueError, KeyError, TypeError):
        last = errors.strip().splitlines()[-1:] or ["it printed nothing"]
        return _not_done(f"pip-audit did not get an answer from the advisory service: {last[0]}")
    asked = [each for each in found if "vulns" in each]
    if not asked:
        return _not_done(f"the advisory service answered about none of {len(found)} distributions")
    advisories = [(each, advisory) for each in asked for advisory in each["vulns"]]
    known = {name: judged[name] for name in judged if any(name in _names(advisory) for _, advisory in advisories)}
    lines = [_line(each, advisory, known) for each, advisory in advisories]
    lines.append(f"{len(advisories)} advisories about {len(asked)} distributions")
    is_bad = any(not _names(advisory) & known.keys() for _, advisory in advisories)
    left_out = [each["name"] for each in found if "vulns" not in each]
    if left_out:
        lines.append(f"NOT DONE for {len(left_out)} distributions: {', '.join(left_out)}")
    elif gone := sorted(judged.keys() - known.keys()):
        lines.append(f"{JUDGED.name} has advisories that concern no version; remove them: {', '.join(gone)}")
        is_bad = True
    return Audit(lines, is_bad=is_bad, is_done=not left_out)


def _not_done(reason: str) -> Audit:
    return Audit([f"NOT DONE, {reason}"], is_done=False)


def _names(advisory: dict[str, Any]) -> set[str]:
    """Return the ids of an advisory: a vulnerability can have several."""
    return {advisory["id"], *advisory.get("aliases", ())}


def _line(distribution: dict[str, Any], advisory: dict[str, Any], known: Mapping[str, str]) -> str:
    versions = ", ".join(advisory.get("fix_versions", ())) or "no version"
    reasons = [known[name] for name in sorted(_names(advisory) & known.keys())]
    judgement = f"judged: {reasons[0]}" if reasons else f"not judged: update it, or give a reason in {JUDGED.name}"
    return f"{distribution['name']} {distribution['version']}: {advisory['id']}, fixed in {versions}; {judgement}"


if __name__ == "__main__":
    sys.exit(main())
