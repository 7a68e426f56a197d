"""The targets of what decides who a client is reach their subjects, and find a mistake that is put there."""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Final

import pytest

from tests.fuzzing.running import corpus, new_input
from tests.fuzzing.targets import RUNNABLE, TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable

NEW_INPUTS: Final = 500
"""Inputs that are tried beside the corpus, always the same ones."""


class MistakeError(Exception):
    """An exception that no subject declares."""


def raises(*_: object, **__: object) -> None:
    raise MistakeError


def accepts(*_: object) -> bool:
    return True


MISTAKES: Final[tuple[tuple[str, str, Callable[..., object]], ...]] = (
    ("authorization", "proxy.wire.authorization.denied_rows:DeniedRows._write_errors", raises),
    ("authorization", "proxy.wire.authorization.denied_rows:DeniedRows._left_of", lambda _, rows: rows),
    ("authorization", "proxy.wire.authorization.denied_rows:DeniedRows._appending", raises),
    ("authorization", "proxy.wire.authorization.visible_rows:Viewer.may_describe", raises),
    ("proxy_header", "proxy.wire.proxy_protocol:_read_addresses", raises),
    ("proxy_header", "proxy.wire.proxy_protocol:_check_tlvs", raises),
    ("proxy_header", "proxy.wire.proxy_protocol:_check_checksum", raises),
    ("server_names", "proxy.network.broker_names:BrokerNames.node_id_of", raises),
    ("certificates", "proxy.network.tls.subjects.principals:_attribute", raises),
    ("certificates", "proxy.network.tls.subjects.principals:_Rule.apply", raises),
    ("certificates", "proxy.network.tls.subjects.principals:_bounded", lambda name, _: name + "x" * 2000),
    ("mapping_rules", "proxy.network.tls.subjects.pattern_syntax:_Parser._class", raises),
    ("mapping_rules", "proxy.network.tls.subjects.pattern_syntax:_Parser._quantified", raises),
    ("mapping_rules", "proxy.network.tls.subjects.mapping_patterns:Pattern._run", raises),
    ("oauth_messages", "plugins.sasl_oauth.verification:TokenVerifier._check_signature", raises),
    ("oauth_messages", "plugins.sasl_oauth.verification:TokenVerifier._check_signature", accepts),
    ("oauth_tokens", "plugins.sasl_oauth.claims:_check_times", raises),
    ("oauth_tokens", "plugins.sasl_oauth.claims:_principal", raises),
    ("oauth_answers", "plugins.sasl_oauth.key_set:_import", raises),
    ("oauth_answers", "plugins.sasl_oauth.access_tokens:_lifetime_s", raises),
    ("native_requests", "proxy.wire.walks.produce:ProduceWalk._read_batch", raises),
    ("native_requests", "proxy.wire.walks.produce:ProduceWalk._read_string_length", lambda _, __, at, ___: (0, at)),
    ("native_replies", "proxy.wire.walks.fetch:FetchWalk._read_last_tag", raises),
    ("sasl_servers", "proxy.sasl.scram_server:ScramServer._proves", raises),
    ("sasl_servers", "proxy.sasl.scram_server:ScramServer._proves", accepts),
    ("sasl_servers", "plugins.sasl_users.exchanges:read_plain_message", raises),
    ("sasl_clients", "proxy.sasl.scram_client:ScramClient.final", raises),
    ("sasl_clients", "proxy.sasl.scram_client:ScramClient.check", accepts),
)


def finds_mistake(name: str) -> bool:
    """Return whether an input of the corpus, or a new one, fails."""
    known = list(corpus(name).values())
    rng = random.Random(name)  # noqa: S311
    for content in [*known, *(new_input(rng, known) for _ in range(NEW_INPUTS))]:
        try:
            TARGETS[name](content)
        except (MistakeError, AssertionError):
            return True
    return False


@pytest.mark.parametrize(("name", "place", "mistake"), [each for each in MISTAKES if each[0] in RUNNABLE])
def test_mistakes_are_found(
    monkeypatch: pytest.MonkeyPatch, name: str, place: str, mistake: Callable[..., object]
) -> None:
    module, _, function = place.partition(":")
    owner, _, attribute = function.rpartition(".")
    subject = import_module(f"headrace.{module}")
    monkeypatch.setattr(getattr(subject, owner) if owner else subject, attribute, mistake)
    assert finds_mistake(name), f"no input shows a mistake in {place}"


@pytest.mark.parametrize("name", sorted({name for name, _, _ in MISTAKES} & RUNNABLE.keys()))
def test_without_a_mistake_none_is_found(name: str) -> None:
    assert not finds_mistake(name)
