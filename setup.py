"""Builds the wheel. Where a C compiler is at hand, the modules on the path of every request are compiled by mypyc.

They are the same modules either way: without a compiler, or with ``HEADRACE_PURE=1``, the wheel is pure Python, and an
editable install always is, so that what is edited is what runs.
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
    "proxy/client_connection.py",
    "proxy/connection_state.py",
    "proxy/counters.py",
    "proxy/enforcement.py",
    "proxy/hook_calls.py",
    "proxy/house.py",
    "proxy/in_flight.py",
    "proxy/judgements.py",
    "proxy/judging.py",
    "proxy/muting.py",
    "proxy/poller.py",
    "proxy/reply_edits.py",
    "proxy/relay.py",
    "proxy/reply_actions.py",
    "proxy/reply_relay.py",
    "proxy/request_relay.py",
    "proxy/sockets.py",
    "proxy/splicing.py",
    "proxy/thread_time.py",
    "proxy/wire/apis.py",
    "proxy/wire/body_walk.py",
    "proxy/wire/fetch_walk.py",
    "proxy/wire/frames.py",
    "proxy/wire/heads.py",
    "proxy/wire/produce_tail.py",
    "proxy/wire/produce_walk.py",
    "proxy/wire/tagged_fields.py",
    "quota_callbacks/buckets.py",
    "quota_callbacks/byte_rate.py",
    "quota_callbacks/client_quotas.py",
    "quota_callbacks/controller_mutation.py",
    "quota_callbacks/producer_ids.py",
    "quota_callbacks/quota_bucket.py",
    "quota_callbacks/request_costs.py",
    "quota_callbacks/request_percentage.py",
    "quota_callbacks/requests.py",
    "quota_callbacks/reservations.py",
    "quota_callbacks/sampled_rate.py",
    "quota_callbacks/shared_debts.py",
    "quota_callbacks/shared_ids.py",
    "quota_callbacks/shared_layout.py",
    "quota_callbacks/shared_rates.py",
    "quota_callbacks/shared_usage.py",
    "quota_callbacks/throttle_times.py",
    "quota_callbacks/timeline.py",
    "quota_callbacks/token_bucket.py",
]


def extensions() -> list[Extension]:
    """What is to be compiled: a library that has all of it, and a small module in front of it for each of ours."""
    if "editable_wheel" in sys.argv or os.environ.get("HEADRACE_PURE"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        logging.getLogger(__name__).warning("a pure Python wheel, without mypyc: %s", error)
        return []
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify([*options, *COMPILED], opt_level="2", debug_level="0")


class AllOrNone(build_ext):
    """Compiled modules need each other: where one cannot be built, none is kept, and the wheel is pure Python."""

    def run(self) -> None:
        """Build them."""
        try:
            super().run()
        except (BaseError, CompileError, LinkError, OSError) as error:
            logging.getLogger(__name__).warning("a pure Python wheel, since compiling failed: %s", error)
            for extension in self.extensions:
                with suppress(FileNotFoundError):
                    Path(self.get_ext_fullpath(extension.name)).unlink()
            self.extensions = []


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": AllOrNone})
