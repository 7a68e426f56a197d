"""The host names of brokers: each id has one name, which is read back in every form that clients send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.tables.broker_hosts import HIGHEST_NODE_ID
from headrace.proxy.network.broker_names import BrokerNames
from testbed.kafka.jvm import start_jvm

PATTERN = "broker-$(node_id).kafka.example.com"
PATTERNS = (
    *(PATTERN, "b$(node_id)", "$(node_id).kafka", "$(node_id)-b.kafka.example.com.", "kafka.$(node_id)b.example.com"),
    *("a.b.x$(node_id)", "Broker1$(node_id)2.Example.COM", "xn--grn-joa$(node_id).example"),
)


@given(st.sampled_from(PATTERNS), st.integers(0, HIGHEST_NODE_ID))
def test_the_name_of_each_id_is_read_back(pattern: str, node_id: int) -> None:
    names = BrokerNames(pattern)
    host = names.host_of(node_id)
    assert host == pattern.lower().removesuffix(".").replace("$(node_id)", str(node_id))
    for sent in (host, host.upper(), host.title(), f"{host}."):
        assert names.node_id_of(sent) == node_id


def test_other_names_have_no_id() -> None:
    names = BrokerNames(PATTERN)
    others = (
        *("", ".", "kafka.example.com", "broker-.kafka.example.com", "broker-a.kafka.example.com"),
        *("broker-01.kafka.example.com", "broker-00.kafka.example.com", "broker-+1.kafka.example.com"),
        *("broker--1.kafka.example.com", "broker-1 .kafka.example.com", "broker-1.kafka.example.com.."),
        *(" broker-1.kafka.example.com", "broker-1.kafka.example.com\n", "broker-1.kafka.example.com\0"),
        *("broker-1xkafka.example.com", "broker-1.kafka.example.com.evil", "xbroker-1.kafka.example.com"),
        *("broker-1.kafka.example", "broker-٣.kafka.example.com", "bro\N{KELVIN SIGN}er-1.kafka.example.com"),
        *("broker-²1.kafka.example.com", "broker-1_0.kafka.example.com", "broker-0x1.kafka.example.com"),
        *(f"broker-{HIGHEST_NODE_ID + 1}.kafka.example.com", "broker-9999999999.kafka.example.com"),
        f"broker-{'1' * 5000}.kafka.example.com",
    )
    assert [name for name in others if names.node_id_of(name) is not None] == []
    assert names.node_id_of(f"broker-{HIGHEST_NODE_ID}.kafka.example.com") == HIGHEST_NODE_ID


@given(st.text() | st.text(st.sampled_from("broker-0123.")))
def test_any_name_that_has_an_id_is_that_of_the_id(name: str) -> None:
    names = BrokerNames("broker-$(node_id).r")
    node_id = names.node_id_of(name)
    if node_id is not None:
        assert names.host_of(node_id) == name.lower().removesuffix(".")


def test_ids_that_are_not_node_ids() -> None:
    for node_id in (-1, HIGHEST_NODE_ID + 1):
        with pytest.raises(ValueError, match=f"{node_id} is not a node id"):
            BrokerNames(PATTERN).host_of(node_id)


REFUSED = {
    "": r"\$\(node_id\) must be in it exactly once",
    "broker.kafka.example.com": r"\$\(node_id\) must be in it exactly once",
    "$(node_id).$(node_id).example.com": r"\$\(node_id\) must be in it exactly once",
    "broker-$(NODE_ID).example.com": r"\$\(node_id\) must be in it exactly once",
    "broker-$(node_id).exämple.com": "must be ASCII",
    "bro\N{KELVIN SIGN}er-$(node_id).example.com": "must be ASCII",
    "-$(node_id).example.com": "'-0' is not a label",
    "$(node_id)-.example.com": "'0-' is not a label",
    "b_$(node_id).example.com": "'b_0' is not a label",
    "b $(node_id).example.com": "'b 0' is not a label",
    "b*$(node_id).example.com": r"'b\*0' is not a label",
    "b$(node_id)..example.com": "'' is not a label",
    ".b$(node_id).example.com": "'' is not a label",
    "b$(node_id).example.com..": "'' is not a label",
    "b$(node_id).example.com:9093": "'com:9093' is not a label",
    "b$(node_id).example.com\n": r"'com\\n' is not a label",
    "https://b$(node_id).example.com": "'https://b0' is not a label",
    "$(node_id)": "gives '0', which ends with a number, as only IP addresses do",
    "10.0.0.$(node_id)": "gives '10.0.0.0', which ends with a number",
    "b$(node_id).10": "ends with a number",
    "b" * 54 + "$(node_id).example.com": "a label of 64 characters, 'b+2147483647'; the most is 63",
    "b" * 63 + ".$(node_id)": "ends with a number",
    "$(node_id)." + "b." * 121 + "b": "gives names of up to 254 characters; the most is 253",
}


def test_invalid_patterns_are_refused_with_their_reason() -> None:
    for pattern, reason in REFUSED.items():
        with pytest.raises(ValueError, match=reason):
            BrokerNames(pattern)
    assert len(BrokerNames("$(node_id)." + "b." * 120 + "bb").host_of(HIGHEST_NODE_ID)) == 253
    assert len(BrokerNames("b" * 53 + "$(node_id).c").host_of(HIGHEST_NODE_ID)) == 65


def test_java_sends_each_name_as_sni() -> None:
    sni = start_jvm().JClass("javax.net.ssl.SNIHostName")
    for pattern in PATTERNS:
        names = BrokerNames(pattern)
        for node_id in (0, 1001, HIGHEST_NODE_ID):
            assert names.node_id_of(str(sni(names.host_of(node_id)).getAsciiName())) == node_id


def test_names_show_their_pattern() -> None:
    assert repr(BrokerNames("B$(node_id).Example.")) == "BrokerNames('b$(node_id).example')"
