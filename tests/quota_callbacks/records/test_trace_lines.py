"""The error messages for invalid lines of a trace."""

from __future__ import annotations

import json
import time

import pytest

from headrace.quota_callbacks.records.trace_lines import MAX_LINE_BYTES, BadLineError, parse
from tests.proxy.replay.replay_traces import (
    GOOD,
    PAIR,
    Entry,
    alter,
    error_of,
    run,
    text,
    window,
)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "empty; expected one JSON object"),
        ("{", "not JSON (Expecting property name enclosed in double quotes at column 2); expected one JSON object"),
        (json.dumps(GOOD) + json.dumps(GOOD), "not JSON (Extra data at column"),
        ("[1, 2]", "[1, 2] is not an object; expected one JSON object"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"t": ' + "1" * 5000 + "}", "not JSON that can be read"),
        ('{"t": NaN}', "NaN, which is not JSON; expected finite numbers"),
        ('{"x": [-Infinity]}', "-Infinity, which is not JSON; expected finite numbers"),
        ('{"t": 1, "u": 1, "t": 1}', 'duplicate name "t"; expected each name once'),
        ('{"t": 1, "x": {"a": 1, "a": 1}}', 'duplicate name "a"; expected each name once'),
        (window(), "a second window line; expected one only, as the first line"),
        ({"t": 5}, "no op; expected one of produce, fetch, request, controller_mutation, producer_id"),
        ({**GOOD, "op": "Produce"}, 'op is "Produce"; expected one of produce, '),
        ({**GOOD, "op": ["produce"]}, 'op is ["produce"]; expected one of produce, '),
        ({**GOOD, "alter": {}}, 'both "alter" and "op"; expected either a quota change or an event per line'),
        ({**GOOD, "t": 4}, "t is 4, after a line with 5; expected times that do not go back"),
        (alter(4, {"user": "u"}), "t is 4, after a line with 5; expected times that do not go back"),
        ({**GOOD, "t": 5.5}, "t is 5.5; expected a time in whole milliseconds, 0 or more"),
        ({**GOOD, "t": "5"}, 't is "5"; expected a time in whole milliseconds, 0 or more'),
        ({**GOOD, "t": True}, "t is true; expected a time in whole milliseconds, 0 or more"),
        ({**GOOD, "t": 2**63}, "t is 9223372036854775808; expected a time in whole milliseconds, 0 or more"),
        ({"op": "produce"}, "no t; expected a time in whole milliseconds, 0 or more"),
        ({"t": 5, "op": "produce"}, "no user; expected a string"),
        ({"t": 5, "op": "produce", "user": "u"}, "no client_id; expected a string"),
        ({**GOOD, "user": None}, "user is null; expected a string"),
        ({**GOOD, "client_id": 7}, "client_id is 7; expected a string"),
        ({**GOOD, "user": "\ud800"}, 'user is "\\ud800"; expected text without lone surrogates'),
        ({"t": 5, "op": "fetch", "user": "u", "client_id": "c"}, "no amount; expected bytes, a number from 0 to 922"),
        ({**GOOD, "amount": -1}, "amount is -1; expected bytes, a number from 0 to 9223372036854775807"),
        ({**GOOD, "amount": None}, "amount is null; expected bytes, a number from"),
        ({**GOOD, "amount": True}, "amount is true; expected bytes, a number from"),
        ({**GOOD, "amount": 1e19}, "amount is 1e+19; expected bytes, a number from"),
        (json.dumps({**GOOD, "amount": 0}).replace("0}", "1e999}"), "amount is a number that is too large; expected"),
        (
            {**GOOD, "op": "request", "amount": "4"},
            'amount is "4"; expected milliseconds of thread time, a number',
        ),
        ({**GOOD, "op": "producer_id", "amount": 1.0}, "amount is 1.0; expected a producer id, a whole number of 64"),
        ({**GOOD, "op": "producer_id", "amount": 2**63}, "amount is 9223372036854775808; expected a producer id"),
        ({**GOOD, "op": "controller_mutation"}, "no strict; expected true or false"),
        ({**GOOD, "op": "controller_mutation", "strict": 1}, "strict is 1; expected true or false"),
        (
            json.dumps({**GOOD, "accepted": 1, "x": 0}).replace("0}", "1e999}"),
            "contains a number that is too large; exp",
        ),
        ({"t": 5, "alter": [1]}, "alter is [1]; expected an object"),
        ({"alter": alter(5, {"user": "u"})["alter"]}, "no t; expected a time in whole milliseconds, 0 or more"),
        ({"t": 5, "alter": {"set": {}}}, "no alter.entity; expected an object"),
        ({"t": 5, "alter": {"entity": {"user": "u"}}}, 'alter has neither "set" nor "remove"; expected at least one'),
        (
            {"t": 5, "alter": {"entity": {"user": "u"}, "sets": {}}},
            'unknown member "alter.sets"; expected entity, set, remove',
        ),
        (alter(5, {}), "alter.entity is {}; expected a user, a client-id, or both"),
        (alter(5, {"user": ""}), 'alter.entity.user is ""; expected a name, or null for the default entity'),
        (alter(5, {"client-id": 5}), "alter.entity.client-id is 5; expected a name, or null for the default entity"),
        (alter(5, {"client_id": "c"}), "alter.entity.client_id is an unknown entity type; expected user or client-id"),
        (alter(5, {"ip": "::1"}), "alter.entity.ip is an unknown entity type; expected user or client-id"),
        (alter(5, {"user": "\udfff"}), 'alter.entity.user is "\\udfff"; expected text without lone surrogates'),
        (alter(5, {"user": "u"}, byte_rate=1), 'alter.set names "byte_rate"; expected one of producer_byte_rate, '),
        (alter(5, {"user": "u"}, producer_byte_rate=None), "alter.set.producer_byte_rate is null; expected a number"),
        (alter(5, {"user": "u"}, producer_byte_rate=True), "alter.set.producer_byte_rate is true; expected a number"),
        (alter(5, {"user": "u"}, producer_byte_rate="1"), 'alter.set.producer_byte_rate is "1"; expected a number'),
        (
            alter(5, {"user": "u"}, producer_byte_rate=0),
            "alter.set.producer_byte_rate is 0: Quota producer_byte_rate must be greater than 0",
        ),
        (
            alter(5, {"user": "u"}, request_percentage=-2),
            "alter.set.request_percentage is -2: Quota request_percentage must be greater than 0",
        ),
        (
            alter(5, {"user": "u"}, producer_byte_rate=2.245),
            "alter.set.producer_byte_rate is 2.245: producer_byte_rate cannot be a fractional value.",
        ),
        (
            alter(5, {"user": "u"}, producer_byte_rate=3.7e19),
            "alter.set.producer_byte_rate is 3.7e+19: Proposed value for producer_byte_rate is too large for a LONG.",
        ),
        (alter(5, {"user": "u"}, request_percentage=10**400), "alter.set.request_percentage is 1000"),
        (
            alter(5, PAIR, producer_ids_rate=1),
            "alter.set.producer_ids_rate is 1: producer_ids_rate is for user only, not for user=<default>, client-id=",
        ),
        (
            alter(5, {"client-id": "c"}, ["producer_ids_rate"]),
            "alter.remove: producer_ids_rate is for user only, not for client-id=c",
        ),
        (
            {"t": 5, "alter": {"entity": {"user": "u"}, "remove": "request_percentage"}},
            'alter.remove is "request_percentage"; expected a list of quota keys',
        ),
        (alter(5, {"user": "u"}, ["x"]), 'alter.remove names "x"; expected one of producer_byte_rate, '),
        (
            alter(5, {"user": "u"}, ["request_percentage"] * 2),
            'alter.remove is ["request_percentage", "request_percentage"]; expected each key once',
        ),
        (
            alter(5, {"user": "u"}, ["request_percentage"], request_percentage=1),
            "alter both sets and removes request_percentage; expected one of them",
        ),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(bad: Entry | str, message: str) -> None:
    error = error_of(window(), GOOD, bad, GOOD)
    assert error.startswith(f"line 3: {message}")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (GOOD, 'the first line has no "window"; expected a line such as {"window": '),
        ({"window": {"samples": 1, "seconds": 1}}, "no controller_window; expected an object"),
        ({**window(), "window": 11}, "window is 11; expected an object"),
        (window(0), "window.samples is 0; expected a whole number from 1 to 2147483647"),
        (window(1, 1.5), "window.seconds is 1.5; expected a whole number from 1 to"),  # type: ignore[arg-type]
        ({**window(), "controller_window": {"samples": 1}}, "no controller_window.seconds; expected a whole number"),
        (window(producer_ids_window={}), 'unknown member "producer_ids_window"; expected window, controller_window, '),
        (window(producer_id_window={}), "no producer_id_window.samples; expected a whole number"),
        (
            {**window(), "window": {"samples": 1, "seconds": 1, "x": 1}},
            'unknown member "window.x"; expected samples, seconds',
        ),
    ],
)
def test_the_first_line_must_be_the_window_line(first: Entry, message: str) -> None:
    assert error_of(first, GOOD).startswith(f"line 1: {message}")


def test_an_empty_trace_is_an_error() -> None:
    assert error_of() == "line 1: the trace is empty; expected a window line"


def test_what_is_not_utf_8_is_an_error() -> None:
    result = run(text(window()).encode() + b'{"t": "\xff"}\n')
    assert (result.exit_code, result.stdout) == (1, "")
    assert "line 2: not UTF-8 (byte 8); expected one JSON object" in result.stderr


def test_the_cap_of_a_line() -> None:
    line = json.dumps({**GOOD, "x": ""})
    fits = line.replace('""', '"' + "x" * (MAX_LINE_BYTES - len(line) - 1) + '"')
    assert run(text(window(), fits)).exit_code == 0
    error = error_of(window(), fits.replace("xx", "xxx", 1))
    assert error == f"line 2: too long; expected at most {MAX_LINE_BYTES} bytes"


def test_a_line_with_many_names_is_refused_at_once() -> None:
    """This takes 40 ms; comparing every name with every other took 90 s."""
    names = ",".join(f'"{number:x}":0' for number in range(60_000))
    began_s = time.thread_time()
    with pytest.raises(BadLineError, match='duplicate name "ea5f"'):
        parse(f'{{{names},"ea5f":1}}')
    assert time.thread_time() - began_s < 10
