"""The software bill of materials (SBOM) of a release, as CycloneDX 1.6: ``python -m requirements.sbom dist``.

Lists what the wheel requires with the extras that users install, in the versions of the environment that this runs in,
which are those of ``dev.txt``. Each component has the hashes of all files that were published for its version. The same
inputs give the same file. The crates of the native data plane come from ``engine/Cargo.lock``, with the hash of each.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS: Final = ("oauth", "tracing", "metrics-otlp", "usage", "usage-parquet", "quota-topic", "pipeline")
PINS: Final = Path(__file__).with_name("dev.txt")
CRATES: Final = Path(__file__).parents[1] / "engine" / "Cargo.lock"
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")

Json = dict[str, Any]


def main() -> None:
    """Write the SBOM into the folder of the release, which has the sdist."""
    folder = Path(sys.argv[1])
    own = distribution("headrace")
    target = folder / f"headrace-{own.version}.cdx.json"
    text = json.dumps(sbom(own, sorted(folder.glob("*.tar.gz"))), indent=2)
    target.write_text(f"{text}\n", encoding="utf-8")


def sbom(own: Distribution, files: list[Path]) -> Json:
    """Return the SBOM of a distribution and its ``files``."""
    graph: dict[str, set[str]] = {}
    found: dict[str, Distribution] = {}
    _collect(own, EXTRAS, graph, found)
    hashes = pinned_hashes()
    own_name = canonicalize_name(own.name)
    components = [
        _component(found[name], hashes.get(name, ()), "library") for name in sorted(found) if name != own_name
    ]
    product = _component(own, [sha256(file.read_bytes()).hexdigest() for file in files], "application")
    crates, of_crates = _crates()
    dependencies: list[Json] = [
        {"ref": _reference(found[name]), "dependsOn": sorted(_reference(found[each]) for each in graph[name])}
        for name in sorted(graph)
    ]
    of_product = next(each for each in dependencies if each["ref"] == product["bom-ref"])
    of_product["dependsOn"] += of_crates.pop("headrace-engine")
    dependencies += [{"ref": reference, "dependsOn": required} for reference, required in of_crates.items()]
    content: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": [*components, *crates],
        "dependencies": dependencies,
    }
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))}"
    return content


def pinned_hashes() -> dict[str, list[str]]:
    """Return the hashes in ``dev.txt``, by the normalized name of the distribution."""
    hashes: dict[str, list[str]] = {}
    name = ""
    for line in PINS.read_text(encoding="utf-8").splitlines():
        if match := _PIN.match(line):
            name = canonicalize_name(match[1])
            hashes[name] = []
        hashes.setdefault(name, []).extend(_HASH.findall(line))
    return hashes


def _collect(
    own: Distribution, extras: tuple[str, ...], graph: dict[str, set[str]], found: dict[str, Distribution]
) -> None:
    """Add a distribution and what it requires, with everything that this requires, to the graph."""
    name = canonicalize_name(own.name)
    found[name] = own
    requires = graph.setdefault(name, set())
    for line in own.requires or ():
        requirement = Requirement(line)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        required = canonicalize_name(requirement.name)
        if required == name:
            continue
        try:
            other = distribution(required)
        except PackageNotFoundError:
            sys.exit(
                f"{requirement.name}, which {own.name} requires, is not installed: run make, which installs dev.txt"
            )
        known = required in graph
        requires.add(required)
        if not known or requirement.extras:
            _collect(other, tuple(requirement.extras), graph, found)


def _crates() -> tuple[list[Json], dict[str, list[str]]]:
    """Return the components of the crates, and the references of what each requires, by its own reference.

    The second one also has the engine itself, which is a part of the product: under its name.
    """
    packages = tomllib.loads(CRATES.read_text(encoding="utf-8"))["package"]
    by_name: dict[str, str] = {}
    for each in packages:  # a dependency has a version beside its name if there are several
        reference = f"pkg:cargo/{each['name']}@{each['version']}"
        by_name |= {each["name"]: reference, f"{each['name']} {each['version']}": reference}
    components: list[Json] = []
    requires: dict[str, list[str]] = {}
    for each in packages:
        reference = by_name[f"{each['name']} {each['version']}"] if "checksum" in each else each["name"]
        requires[reference] = [by_name[name] for name in each.get("dependencies", ())]
        if "checksum" in each:
            hashes = [{"alg": "SHA-256", "content": each["checksum"]}]
            named = {"name": each["name"], "version": each["version"], "purl": reference, "hashes": hashes}
            components.append({"type": "library", "bom-ref": reference, **named})
    return components, requires


def _component(own: Distribution, hashes: list[str] | tuple[()], kind: str) -> Json:
    component: Json = {
        "type": kind,
        "bom-ref": _reference(own),
        "name": canonicalize_name(own.name),
        "version": own.version,
        "purl": _reference(own),
    }
    if expression := own.metadata.json.get("license_expression"):
        component["licenses"] = [{"expression": expression}]
    if hashes:
        component["hashes"] = [{"alg": "SHA-256", "content": each} for each in sorted(hashes)]
    return component


def _reference(own: Distribution) -> str:
    """Return the package URL."""
    return f"pkg:pypi/{canonicalize_name(own.name)}@{own.version}"


if __name__ == "__main__":
    main()
