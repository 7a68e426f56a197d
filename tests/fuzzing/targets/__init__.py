"""The targets: functions that take the bytes of an input, and raise nothing for any of them.

A target catches the exceptions that its subject documents; every other exception, and every property that does not
hold, is a finding. `TARGETS` has them by name, which is also the name of the corpus file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.data_plane.native import is_installed
from tests.fuzzing.targets.admin import admin_http
from tests.fuzzing.targets.authorization import authorization
from tests.fuzzing.targets.configuration import (
    budget_file,
    cost_file,
    document,
    environment,
    price_sheet,
    quota_tables,
)
from tests.fuzzing.targets.frames import reply_heads, request_heads, scan_frames
from tests.fuzzing.targets.messages import (
    codec,
    lookups,
    mutations,
    offered_versions,
    refusals,
    rewriting,
    tokens,
)
from tests.fuzzing.targets.native import native_replies, native_requests
from tests.fuzzing.targets.oauth import answers, messages
from tests.fuzzing.targets.oauth import tokens as oauth_tokens
from tests.fuzzing.targets.opening import certificates, mapping_rules, proxy_header, server_names
from tests.fuzzing.targets.quota_commands import quota_arguments, quota_files
from tests.fuzzing.targets.quotas import alterations, quota_filters
from tests.fuzzing.targets.records import trace_lines, usage_rows, why
from tests.fuzzing.targets.relays import logins, relays
from tests.fuzzing.targets.sasl import names, observers
from tests.fuzzing.targets.sasl_exchanges import clients, servers
from tests.fuzzing.targets.walks import produce_reply_tail, walk_fetch, walk_fetched_topics, walk_produce

if TYPE_CHECKING:
    from collections.abc import Callable

    Target = Callable[[bytes], None]

TARGETS: Final[dict[str, Target]] = {
    "frames": scan_frames,
    "request_heads": request_heads,
    "reply_heads": reply_heads,
    "produce_walk": walk_produce,
    "fetch_walk": walk_fetch,
    "fetched_topics_walk": walk_fetched_topics,
    "produce_reply": produce_reply_tail,
    "codec": codec,
    "rewriting": rewriting,
    "offered_versions": offered_versions,
    "mutations": mutations,
    "lookups": lookups,
    "refusals": refusals,
    "tokens": tokens,
    "authorization": authorization,
    "alterations": alterations,
    "quota_filters": quota_filters,
    "quota_arguments": quota_arguments,
    "quota_files": quota_files,
    "sasl_names": names,
    "sasl_observers": observers,
    "proxy_header": proxy_header,
    "server_names": server_names,
    "certificates": certificates,
    "mapping_rules": mapping_rules,
    "oauth_messages": messages,
    "oauth_tokens": oauth_tokens,
    "oauth_answers": answers,
    "sasl_servers": servers,
    "sasl_clients": clients,
    "native_requests": native_requests,
    "native_replies": native_replies,
    "relays": relays,
    "logins": logins,
    "configuration": document,
    "environment": environment,
    "cost_file": cost_file,
    "price_sheet": price_sheet,
    "budget_file": budget_file,
    "quota_tables": quota_tables,
    "admin_http": admin_http,
    "usage_rows": usage_rows,
    "trace_lines": trace_lines,
    "why": why,
}

NATIVE: Final = frozenset({"native_requests", "native_replies"})
"""Targets that need the native data plane."""

RUNNABLE: Final = {name: target for name, target in TARGETS.items() if name not in NATIVE or is_installed()}
"""The targets that can run here."""
