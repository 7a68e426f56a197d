"""Build the wheel, with the native data plane where cargo is installed.

The native data plane, ``headrace._engine``, is built from ``engine/``, in an editable install, too. Where it cannot be
built it is left out, with one line that gives the reason, and all connections are relayed in Python. With
``HEADRACE_PURE=1`` it is not built.
"""

import logging
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from setuptools import setup
from setuptools.errors import BaseError, CompileError

BUILDS = {"bdist_wheel", "build", "build_ext", "build_rust", "editable_wheel"}
"""The commands that build extension modules."""

FILES_URL = "https://github.com/headrace/headrace/blob/main/"
"""Address of the repository's files, for links of the description on a package index."""

ENGINE = "_engine.abi3.so"
"""The file of the native data plane, which uses only the stable ABI."""


def description() -> str:
    """Return the text of README.md with its relative links made absolute."""
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({FILES_URL}", Path("README.md").read_text(encoding="utf-8"))


def is_editable() -> bool:
    """Return whether this is an editable install."""
    return "editable_wheel" in sys.argv


def engine() -> dict[str, Any]:
    """Return the arguments of ``setup`` that build the native data plane, if it is to be built and can be.

    The wheel is then for Python 3.11 and all newer versions, by the stable ABI.
    """
    if not BUILDS & set(sys.argv):
        return {}
    if os.environ.get("HEADRACE_PURE"):
        return leave_out_engine("HEADRACE_PURE is set")
    if shutil.which("cargo") is None:
        return leave_out_engine("cargo is not installed")
    try:
        from setuptools_rust import RustExtension, build_rust
    except ImportError as error:
        return leave_out_engine(error)

    class OptionalEngine(build_rust):
        """Build the native data plane if that is possible."""

        def run(self) -> None:
            try:
                super().run()
            except (BaseError, CompileError, OSError, SubprocessError) as error:
                leave_out_engine(error)
                for extension in self.extensions:  # that of an earlier build
                    Path(self.get_dylib_ext_path(extension, extension.name)).unlink(missing_ok=True)

        def get_dylib_ext_path(self, ext: RustExtension, target_fname: str) -> str:
            """Return the path of the module, whose name is the same in all wheels and installs."""
            return str(Path(super().get_dylib_ext_path(ext, target_fname)).with_name(ENGINE))

    extension = RustExtension("headrace._engine", "engine/Cargo.toml", cargo_manifest_args=["--locked"], debug=False)
    return {
        "rust_extensions": [extension],
        "cmdclass": {"build_rust": OptionalEngine},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }


def leave_out_engine(reason: object) -> dict[str, Any]:
    """Report why there is no native data plane, and remove that of an earlier editable install."""
    first = next(iter(str(reason).splitlines()), "")
    logging.getLogger(__name__).warning("no native data plane, connections are relayed in Python: %s", first)
    if is_editable():
        Path("src/headrace", ENGINE).unlink(missing_ok=True)
    return {}


def main() -> None:
    """Run the command."""
    setup(long_description=description(), long_description_content_type="text/markdown", **engine())


if __name__ == "__main__":
    main()
