"""How sections become keys, on small sections."""

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from headrace.config.keys import Key, Section, keys
from headrace.quota_callbacks.options import TRUE_OR_FALSE, faults_of, whole
from headrace.quota_callbacks.units import duration


class Inner(Section):
    """Two keys."""

    size_s: Annotated[int, whole(1, 9), Key("Why.", restart=True)] = 1
    needed: Annotated[bool, TRUE_OR_FALSE, Key("Why.")]


class Far(Section):
    """A section whose only key is a section."""

    off: Inner


class Outer(Section):
    """A section that contains another one twice, at different depths."""

    one: Inner
    far: Far
    wait_s: Annotated[float | None, duration("1s", "9s"), Key("Why.")] = None
    more: Annotated[list[int], Key("Why.")] = Field(default_factory=lambda: [7])


def test_keys_have_their_place_in_the_file_and_in_the_values() -> None:
    assert [(leaf.key, leaf.attributes, leaf.required, leaf.default) for leaf in keys(Outer)] == [
        ("one.size", ("one", "size_s"), False, 1),
        ("one.needed", ("one", "needed"), True, None),
        ("far.off.size", ("far", "off", "size_s"), False, 1),
        ("far.off.needed", ("far", "off", "needed"), True, None),
        ("wait", ("wait_s",), False, None),
        ("more", ("more",), False, [7]),
    ]
    assert keys(Outer) is keys(Outer), "leaves are compared by identity"
    assert [leaf.about.restart for leaf in keys(Outer)[:2]] == [True, False]


def test_a_table_that_is_read_can_be_written_again() -> None:
    table = {"one": {"needed": True, "size": 1}, "far": {"off": {"size": 5, "needed": False}}, "wait": 2, "more": [1]}
    outer = Outer.model_validate(table)
    assert [leaf.value_of(outer) for leaf in keys(Outer)] == [1, True, 5, False, 2.0, [1]]
    assert [leaf.file_value_in(outer) for leaf in keys(Outer)] == [1, True, 5, False, "2s", [1]]


def test_all_that_is_wrong_is_found_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"one": {"needed": 3, "size_s": 2}, "far": 4, "wait": 10})
    faults = faults_of(caught.value, Outer, ("a", 0))
    assert [(fault.path[2:], fault.rule.partition(";")[0]) for fault in faults] == [
        (("one", "needed"), "expected true or false"),
        (("one", "size_s"), "unknown key"),
        (("far",), "expected a table: [a[0].far] and keys below it"),
        (("wait",), f"expected {keys(Outer)[4].expected}"),
    ]
    assert faults[1].rule == "unknown key; did you mean a[0].one.size?"
