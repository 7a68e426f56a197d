"""What the tables of `schema` are made of: sections, what is said of each key, and the list of all keys.

Called by `quotas` and `schema`, which declare keys, and by whoever goes through all of them (`overrides`, `loading`,
`reload`). A key is a field of a `Section`; the kinds of values are in `values` and `headrace.quota_callbacks.options`:

    class Shutdown(Section):
        drain_timeout_s: Annotated[float, duration("0s", "1d"), Key("How long ...", flag="--drain-timeout")] = 30.0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ConfigDict
from pydantic_core import PydanticUndefined

from headrace.quota_callbacks.options import Table, dotted, expected_of, leaves

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.fields import FieldInfo
    from pydantic_core import CoreSchema

    from headrace.quota_callbacks.options import JsonSchema


def _file_name(attribute: str) -> str:
    """Spell an attribute as the file does: ``idle_timeout`` has its unit in its value."""
    return attribute.removesuffix("_s")


class Section(Table):
    """A table of the configuration file."""

    model_config = ConfigDict(alias_generator=_file_name)


@dataclass(frozen=True, slots=True)
class Key:
    """What is said of a key or a section: a line for people, whether a change needs a restart, and its flag."""

    doc: str
    restart: bool = False
    flag: str | None = None

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Give editors the line for people."""
        return handler(schema) | {"description": self.doc}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A key with a value as the whole file has it: its path there, and the attributes that lead to its value."""

    path: tuple[str, ...]
    attributes: tuple[str, ...]
    field: FieldInfo
    about: Key

    @property
    def key(self) -> str:
        """The dotted key, as problems and flags spell it."""
        return dotted(self.path)

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.field.is_required()

    @property
    def expected(self) -> str:
        """What its value must be, as a noun."""
        return expected_of(self.field)

    @property
    def default(self) -> object:
        """The typed default; None for one that is off or derived unless it is given, and for a required key."""
        default = self.field.get_default(call_default_factory=True)
        return None if default is PydanticUndefined else default

    def value_of(self, section: Section) -> object:
        """Return the key's typed value."""
        value: object = section
        for attribute in self.attributes:
            value = getattr(value, attribute)
        return value

    def spelled_in(self, section: Section) -> object:
        """Return the key's value as it stands in a file; None where it is not set."""
        spelled: object = section.model_dump(mode="json", by_alias=True, exclude_none=True)
        for step in self.path:
            spelled = spelled.get(step) if isinstance(spelled, dict) else None
        return spelled


@cache
def keys(section: type[Section]) -> tuple[Leaf, ...]:
    """Return all keys of a section and the sections in it, in the order of the file."""
    return tuple(
        Leaf(
            path=path,
            attributes=attributes,
            field=field,
            about=next(each for each in field.metadata if isinstance(each, Key)),
        )
        for path, attributes, field in leaves(section)
    )
