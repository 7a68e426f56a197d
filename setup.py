"""Build the wheel. Where there is a C compiler, the modules on the path of every request are compiled by mypyc.

Compiled and interpreted modules behave the same. Without a compiler, or with ``HEADRACE_PURE=1``, the wheel is pure
Python. An editable install is always pure Python, so that changes to the sources take effect.
"""

import sys

# First: pip runs this file, and would install and run mypy, before it reads which versions of Python are supported.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"headrace needs Python 3.11 or newer; this is Python {sys.version.split()[0]}")

import logging
import os
import re
from contextlib import suppress
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

COMPILER = "mypy==2.4.1"
"""The distribution that contains mypyc."""

FILES_URL = "https://github.com/headrace/headrace/blob/main/"
"""Address of the repository's files, for links of the description on a package index."""

COMPILED = [
    "src/headrace/proxy/connection/client_connection.py",
    "src/headrace/proxy/connection/collected_replies.py",
    "src/headrace/proxy/connection/enforcement.py",
    "src/headrace/proxy/connection/relay.py",
    "src/headrace/proxy/connection/reply_edits.py",
    "src/headrace/proxy/connection/reply_relay.py",
    "src/headrace/proxy/connection/request_forwarding.py",
    "src/headrace/proxy/connection/request_relay.py",
    "src/headrace/proxy/connection/state/connection_state.py",
    "src/headrace/proxy/connection/state/in_flight.py",
    "src/headrace/proxy/connection/state/muting.py",
    "src/headrace/proxy/connection/state/reply_actions.py",
    "src/headrace/proxy/connection/state/shared_state.py",
    "src/headrace/proxy/connection/state/thread_time.py",
    "src/headrace/proxy/counters.py",
    "src/headrace/proxy/hooks/calls/hook_calls.py",
    "src/headrace/proxy/hooks/combined_verdicts.py",
    "src/headrace/proxy/hooks/enforcement_switch.py",
    "src/headrace/proxy/hooks/slow_calls.py",
    "src/headrace/proxy/network/poller.py",
    "src/headrace/proxy/network/sockets.py",
    "src/headrace/proxy/network/splicing.py",
    "src/headrace/proxy/network/tls/tls_socket.py",
    "src/headrace/proxy/wire/apis.py",
    "src/headrace/proxy/wire/frames.py",
    "src/headrace/proxy/wire/heads.py",
    "src/headrace/proxy/wire/messages/tagged_fields.py",
    "src/headrace/proxy/wire/walks/body.py",
    "src/headrace/proxy/wire/walks/fetch.py",
    "src/headrace/proxy/wire/walks/fetched_topics.py",
    "src/headrace/proxy/wire/walks/produce.py",
    "src/headrace/proxy/wire/walks/produce_reply.py",
    "src/headrace/quota_callbacks/buckets/client_quotas.py",
    "src/headrace/quota_callbacks/buckets/kinds.py",
    "src/headrace/quota_callbacks/buckets/quota_bucket.py",
    "src/headrace/quota_callbacks/buckets/quota_scope.py",
    "src/headrace/quota_callbacks/buckets/sampled_rate.py",
    "src/headrace/quota_callbacks/buckets/shared/buckets.py",
    "src/headrace/quota_callbacks/buckets/shared/debts.py",
    "src/headrace/quota_callbacks/buckets/shared/layout.py",
    "src/headrace/quota_callbacks/buckets/shared/producer_ids.py",
    "src/headrace/quota_callbacks/buckets/shared/rates.py",
    "src/headrace/quota_callbacks/buckets/throttle_times.py",
    "src/headrace/quota_callbacks/buckets/timeline.py",
    "src/headrace/quota_callbacks/buckets/token_bucket.py",
    "src/headrace/quota_callbacks/builtin/bucket_callback.py",
    "src/headrace/quota_callbacks/builtin/byte_rate.py",
    "src/headrace/quota_callbacks/builtin/controller_mutation.py",
    "src/headrace/quota_callbacks/builtin/producer_ids.py",
    "src/headrace/quota_callbacks/builtin/request_costs.py",
    "src/headrace/quota_callbacks/builtin/request_percentage.py",
    "src/headrace/quota_callbacks/builtin/reservations.py",
    "src/headrace/quota_callbacks/requests.py",
]


def description() -> str:
    """Return the text of README.md with its relative links made absolute."""
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({FILES_URL}", Path("README.md").read_text(encoding="utf-8"))


def is_pure() -> bool:
    """Return whether nothing is to be compiled."""
    return "editable_wheel" in sys.argv or bool(os.environ.get("HEADRACE_PURE"))


def build_requirements() -> list[str]:
    """Return what building requires beyond setuptools.

    The command ``egg_info`` is how setuptools' build backend asks for it. Other commands get an empty list, so that
    setuptools does not try to install anything itself.
    """
    return [COMPILER] if "egg_info" in sys.argv and not is_pure() else []


def extensions() -> list[Extension]:
    """Return the extension modules: one library with all compiled code, and a small module for each Python module."""
    if is_pure() or not {"bdist_wheel", "build", "build_ext"} & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        logging.getLogger(__name__).warning("building a pure Python wheel, since mypyc is not available: %s", error)
        return []
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify([*options, *COMPILED], opt_level="2", debug_level="0")


class AllOrNone(build_ext):
    """Build all extension modules or none: they import each other. With none, the wheel is pure Python."""

    def run(self) -> None:
        """Build the extension modules, and remove them all when one fails."""
        try:
            super().run()
        except (BaseError, CompileError, LinkError, OSError) as error:
            logging.getLogger(__name__).warning("building a pure Python wheel, since compiling failed: %s", error)
            for extension in self.extensions:
                with suppress(FileNotFoundError):
                    Path(self.get_ext_fullpath(extension.name)).unlink()
            self.extensions = []


if __name__ == "__main__":
    setup(
        long_description=description(),
        long_description_content_type="text/markdown",
        ext_modules=extensions(),
        setup_requires=build_requirements(),
        cmdclass={"build_ext": AllOrNone},
    )
