"""The base class of sections, the description of keys, and the list of all keys.

Used by `quotas` and `schema`, which declare keys, and by `overrides`, `loading` and `reload`, which iterate over them.
A key is a field of a `Section`. The annotations for values are in `values` and `headrace.quota_callbacks.options`:

    class Shutdown(Section):
        drain_timeout_s: Annotated[float, duration("0s", "1d"), Key("How long ...", flag="--drain-timeout")] = 30.0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ConfigDict
from pydantic_core import PydanticUndefined

from headrace.quota_callbacks.options import Table, expected_of, leaves
from headrace.quota_callbacks.value_texts import dotted

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.fields import FieldInfo
    from pydantic_core import CoreSchema

    from headrace.quota_callbacks.options import JsonSchema


def _file_name(attribute: str) -> str:
    """Return the key of an attribute: without the unit, which is part of the value in the file."""
    return attribute.removesuffix("_s")


class Section(Table):
    """A table of the configuration file."""

    model_config = ConfigDict(alias_generator=_file_name)


@dataclass(frozen=True, slots=True)
class Key:
    """The description of a key or section, whether a change needs a restart, and the flag that sets it."""

    doc: str
    restart: bool = False
    flag: str | None = None

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Return the JSON Schema with the description."""
        return handler(schema) | {"description": self.doc}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A key that is not a section: its path in the file, and the attributes that lead to its value."""

    path: tuple[str, ...]
    attributes: tuple[str, ...]
    field: FieldInfo
    about: Key

    @property
    def key(self) -> str:
        """The dotted key, as in error messages and flags."""
        return dotted(self.path)

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.field.is_required()

    @property
    def expected(self) -> str:
        """The description of valid values, as a noun."""
        return expected_of(self.field)

    @property
    def default(self) -> object:
        """The typed default; None for required keys, and for those that are unset or derived by default."""
        default = self.field.get_default(call_default_factory=True)
        return None if default is PydanticUndefined else default

    def value_of(self, section: Section) -> object:
        """Return the key's typed value."""
        value: object = section
        for attribute in self.attributes:
            value = getattr(value, attribute)
        return value

    def file_value_in(self, section: Section) -> object:
        """Return the key's value in the form of the file; None if it is not set."""
        value: object = section.model_dump(mode="json", by_alias=True, exclude_none=True)
        for step in self.path:
            value = value.get(step) if isinstance(value, dict) else None
        return value


@cache
def keys(section: type[Section]) -> tuple[Leaf, ...]:
    """Return all keys of a section and its subsections, in the order of the file."""
    return tuple(
        Leaf(
            path=path,
            attributes=attributes,
            field=field,
            about=next(each for each in field.metadata if isinstance(each, Key)),
        )
        for path, attributes, field in leaves(section)
    )
