"""Builds the wheel. If a C compiler is available, the modules on the request path are compiled with mypyc.

The modules are the same either way. Without a compiler, or with ``HEADRACE_PURE=1``, the wheel is pure Python; an
editable install is always pure Python, so that edits take effect.
"""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

COMPILED = [
    "src/headrace/proxy/connection/client_connection.py",
    "src/headrace/proxy/connection/enforcement.py",
    "src/headrace/proxy/connection/in_flight.py",
    "src/headrace/proxy/connection/muting.py",
    "src/headrace/proxy/connection/relay.py",
    "src/headrace/proxy/connection/reply_actions.py",
    "src/headrace/proxy/connection/reply_edits.py",
    "src/headrace/proxy/connection/reply_relay.py",
    "src/headrace/proxy/connection/request_relay.py",
    "src/headrace/proxy/connection/shared_state.py",
    "src/headrace/proxy/connection/state.py",
    "src/headrace/proxy/connection/thread_time.py",
    "src/headrace/proxy/counters.py",
    "src/headrace/proxy/hooks/calls.py",
    "src/headrace/proxy/hooks/combined_verdicts.py",
    "src/headrace/proxy/hooks/enforcement_switch.py",
    "src/headrace/proxy/network/poller.py",
    "src/headrace/proxy/network/sockets.py",
    "src/headrace/proxy/network/splicing.py",
    "src/headrace/proxy/wire/apis.py",
    "src/headrace/proxy/wire/frames.py",
    "src/headrace/proxy/wire/heads.py",
    "src/headrace/proxy/wire/messages/tagged_fields.py",
    "src/headrace/proxy/wire/walks/body.py",
    "src/headrace/proxy/wire/walks/fetch.py",
    "src/headrace/proxy/wire/walks/produce.py",
    "src/headrace/proxy/wire/walks/produce_reply.py",
    "src/headrace/quota_callbacks/buckets/client_quotas.py",
    "src/headrace/quota_callbacks/buckets/kinds.py",
    "src/headrace/quota_callbacks/buckets/quota_bucket.py",
    "src/headrace/quota_callbacks/buckets/sampled_rate.py",
    "src/headrace/quota_callbacks/buckets/shared/debts.py",
    "src/headrace/quota_callbacks/buckets/shared/layout.py",
    "src/headrace/quota_callbacks/buckets/shared/producer_ids.py",
    "src/headrace/quota_callbacks/buckets/shared/rates.py",
    "src/headrace/quota_callbacks/buckets/shared/buckets.py",
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


def extensions() -> list[Extension]:
    """Return the extensions that mypyc makes of `COMPILED`: one shared library, and a small module for each entry."""
    if "editable_wheel" in sys.argv or os.environ.get("HEADRACE_PURE"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        logging.getLogger(__name__).warning("building a pure Python wheel, since mypyc is not available: %s", error)
        return []
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify([*options, *COMPILED], opt_level="2", debug_level="0")


class AllOrNone(build_ext):
    """Builds all extensions or none: they depend on each other, so if one cannot be built, the wheel is pure Python."""

    def run(self) -> None:
        """Build the extensions; if one fails, remove those that were built."""
        try:
            super().run()
        except (BaseError, CompileError, LinkError, OSError) as error:
            logging.getLogger(__name__).warning("building a pure Python wheel, since compiling failed: %s", error)
            for extension in self.extensions:
                with suppress(FileNotFoundError):
                    Path(self.get_ext_fullpath(extension.name)).unlink()
            self.extensions = []


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": AllOrNone})
