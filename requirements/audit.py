"""Whether published advisories name one of the versions in ``dev.txt``: ``python -m requirements.audit``.

What is found is a finding and not a failure: an advisory may concern code that Headrace does not use. pip-audit needs
an advisory service. Without an answer it reports "no known vulnerabilities", so that this module counts the answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

PINS: Final = Path(__file__).with_name("dev.txt")
TIMEOUT_S: Final = 600


def main() -> None:
    """Run pip-audit, and print what it found or why it is not known."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--requirement", str(PINS)]
    options = ["--format", "json", "--progress-spinner", "off"]
    try:
        result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        output, errors = result.stdout, result.stderr
    except subprocess.TimeoutExpired:
        output, errors = "", f"no answer within {TIMEOUT_S} s"
    sys.stdout.write(report(output, errors))


def report(output: str, errors: str) -> str:
    """Return the lines to print, given what pip-audit has written to standard output and standard error."""
    try:
        found: list[dict[str, Any]] = list(json.loads(output)["dependencies"])
    except (ValueError, KeyError, TypeError):
        last = errors.strip().splitlines()[-1:] or ["it printed nothing"]
        return f"audit: NOT DONE, pip-audit did not get an answer from the advisory service: {last[0]}\n"
    asked = [each for each in found if "vulns" in each]
    if not asked:
        return f"audit: NOT DONE, the advisory service answered about none of {len(found)} distributions\n"
    lines = [
        f"audit: {each['name']} {each['version']}: {advisory['id']}, fixed in {_versions(advisory)}\n"
        for each in asked
        for advisory in each["vulns"]
    ]
    lines.append(f"audit: {len(lines)} advisories about {len(asked)} distributions\n")
    if left_out := [each["name"] for each in found if "vulns" not in each]:
        lines.append(f"audit: NOT DONE for {len(left_out)} distributions: {', '.join(left_out)}\n")
    return "".join(lines)


def _versions(advisory: dict[str, Any]) -> str:
    return ", ".join(advisory.get("fix_versions", ())) or "no version"


if __name__ == "__main__":
    main()
