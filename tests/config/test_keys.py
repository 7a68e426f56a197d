"""How classes become keys, on small classes."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from config.keys import Reading, Reload, Section, Setting, build, key_tree, leaves, read_table, section_docs, value_of
from config.kinds import NOTHING, Boolean, Whole
from config.schema import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Two keys."""

    size_s: Annotated[int, Setting("size.seconds", Whole(1, 9), "Why.", Reload.RESTART)] = 1
    needed: Annotated[bool, Setting("needed", Boolean(), "Why.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """The same section twice, at different depths."""

    one: Annotated[Inner, Section("one", "The one.")]
    other: Annotated[Inner, Section("far.off", "The other.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clashing:
    """A key below a key."""

    one: Annotated[bool, Setting("one", Boolean(), "Why.")] = True
    two: Annotated[bool, Setting("one.two", Boolean(), "Why.")] = True


def test_keys_have_their_place_in_the_file_and_in_the_values() -> None:
    assert [(leaf.key, leaf.attributes, leaf.default) for leaf in leaves(Outer)] == [
        ("one.size.seconds", ("one", "size_s"), 1),
        ("one.needed", ("one", "needed"), NOTHING),
        ("far.off.size.seconds", ("other", "size_s"), 1),
        ("far.off.needed", ("other", "needed"), NOTHING),
    ]
    assert leaves(Outer) is leaves(Outer), "leaves are compared by identity"
    assert section_docs(Outer) == {("one",): "The one.", ("far", "off"): "The other."}
    assert list(key_tree(Outer)) == ["one", "far"]


def test_a_table_is_read_and_built() -> None:
    reading = read_table(Outer, {"one": {"needed": True}, "far": {"off": {"size": {"seconds": 5}, "needed": False}}})
    assert not reading.faults
    built = build(Outer, reading.values)
    assert built == Outer(one=Inner(needed=True), other=Inner(size_s=5, needed=False))
    assert [value_of(built, leaf) for leaf in leaves(Outer)] == [1, True, 5, False]


def test_what_is_bad_is_not_missing() -> None:
    reading = read_table(Outer, {"one": {"needed": 3}, "far": 4})
    assert [fault.path for fault in reading.faults] == [("one", "needed"), ("far",)]
    assert reading.missing(Outer) == []
    assert [leaf.key for leaf in Reading().missing(Outer)] == ["one.needed", "far.off.needed"]
    with pytest.raises(TypeError, match="needed"):
        build(Outer, {})


def test_a_key_below_a_key_is_our_mistake() -> None:
    with pytest.raises(TypeError, match=r"^one\.two stands below the key one$"):
        key_tree(Clashing)


def test_a_default_is_the_defaults_of_the_class() -> None:
    for leaf in leaves(Config):
        if leaf.default is not NOTHING and leaf.default is not None:
            assert leaf.setting.kind.read(leaf.setting.kind.to_toml(leaf.default)) == leaf.default
