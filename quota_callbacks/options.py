"""Typed tables for options: declaring the keys of a table, and reporting all errors in a table at once.

Used by plugins with options, by `headrace.config`, which declares its keys in the same way, and by the pipeline for its
price sheets. Built on pydantic: a table is a model, its fields are the keys, and annotations such as `whole` and `text`
define the constraints and error messages of the values.

    class MyOptions(Table):
        burst: Annotated[int, whole(1, 100)] = 10

    options = read_options(MyOptions, context.options, "my_plugin")

Not imported by modules of the request path, since pydantic costs memory and time. Values are read into plain types.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, SecretStr, Strict, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from headrace.quota_callbacks.files import read_ordinary_file, reason_of
from headrace.quota_callbacks.value_texts import Path, dotted, is_secret, value_text

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.fields import FieldInfo

JsonSchema: TypeAlias = dict[str, Any]

TableT = TypeVar("TableT", bound="Table")

LONGEST_SECRET_BYTES: Final = 64 * 1024
"""Maximum size of a file with a secret: sufficient for a private key with its chain, and a bound for /dev/zero."""

_CLOSE: Final = 0.7
"""Minimum similarity of a suggested key: low enough for typing errors, too high for the keys of other quotas."""


class Nothing(Enum):
    """The type of `NOTHING`, which represents a missing value, since ``None`` is a value."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


class Table(BaseModel):
    """The base class of tables. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error in a value. ``path`` is relative to the value, as is ``first``, the path of a conflicting value."""

    rule: str
    path: Path = ()
    found: object = NOTHING
    first: Path | None = None

    def __str__(self) -> str:
        """Return the message with the key and the value found; secrets are hidden."""
        found = None if self.found is NOTHING else value_text(self.path, self.found)
        subject = dotted(self.path) if found is None else f"{dotted(self.path)} = {found}"
        return f"{subject}: {self.rule}" if subject else self.rule


class OptionsError(ValueError):
    """Options of a plugin are invalid. ``faults`` have the paths of the options in the configuration."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


def validation_error(faults: Iterable[Fault]) -> ValidationError:
    """Return the exception for a validator to raise, with several faults in a value."""
    return ValidationError.from_exception_data(
        "invalid value",
        [
            InitErrorDetails(
                type=PydanticCustomError("fault", "{rule}", {"rule": each.rule, "fault": each}),
                loc=each.path,
                input=each.found,
            )
            for each in faults
        ],
    )


# --- kinds of values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expect:
    """An annotation with the description of a valid value, as a noun, for the message of every invalid one."""

    expected: str
    constraint: object = None
    """A further constraint, as pydantic defines it."""
    choices: tuple[str, ...] = ()
    """The values that can be suggested in place of an invalid one."""
    schema: JsonSchema | None = None
    """Members to add to the JSON Schema of the value."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap pydantic's validation, to replace its messages."""
        inner = handler(source if self.constraint is None else Annotated[source, self.constraint])
        return core_schema.no_info_wrap_validator_function(self._read, inner)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Return the JSON Schema of the value."""
        return handler(schema) | (self.schema or {})

    def _read(self, raw: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(raw)
        except ValidationError as error:
            (own, *_) = error.errors(include_url=False)
            if own["loc"] or own["type"] == "fault":
                raise
        raise validation_error(
            [Fault(rule=_expected(self.expected, did_you_mean(raw, self.choices, quote='"')), found=raw)]
        )


@dataclass(frozen=True, slots=True)
class Parsed:
    """An annotation for values that a function parses, of types that pydantic does not support."""

    expected: str
    parse: Callable[[Any], Any]
    """Raises `ValueError` for an invalid value, with the reason, or without one if ``expected`` suffices."""
    schema: JsonSchema
    serialize: Callable[[Any], object] = lambda value: value
    """Converts a parsed value back to its form in the file."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with ``parse`` and serialize with ``serialize``."""
        serialization = core_schema.plain_serializer_function_ser_schema(self.serialize, when_used="json-unless-none")
        return core_schema.no_info_plain_validator_function(self._read, serialization=serialization)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchema:
        """Return the JSON Schema of the value."""
        return dict(self.schema)

    def _read(self, raw: Any) -> Any:
        try:
            return self.parse(raw)
        except ValidationError:
            raise
        except (ValueError, OverflowError) as error:
            why = str(error) if isinstance(error, ValueError) else ""
        raise validation_error([Fault(rule=_expected(self.expected, why), found=raw)])


def _expected(expected: str, why: str) -> str:
    return f"expected {expected}; {why}" if why else f"expected {expected}"


TRUE_OR_FALSE: Final = Expect("true or false", Strict())


def whole(lowest: int, highest: int, of: str = "") -> Expect:
    """Return the annotation for a whole number between two bounds, both included; ``of`` is its unit."""
    number = f"a whole number of {of}" if of else "a whole number"
    return Expect(f"{number} from {lowest} to {highest}", Field(strict=True, ge=lowest, le=highest))


def number(lowest: float, highest: float, expected: str) -> Parsed:
    """Return the annotation for a number between two bounds, both included."""

    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not lowest <= raw <= highest:
            raise ValueError
        return float(raw)

    return Parsed(expected, parse, {"type": "number", "minimum": lowest, "maximum": highest})


def text(expected: str, pattern: str | None = None, longest: int | None = None) -> Expect:
    """Return the annotation for a non-empty string that ``pattern`` matches completely."""
    anchored = None if pattern is None else f"^({pattern})$"
    return Expect(expected, Field(min_length=1, max_length=longest, pattern=anchored))


def choice(choices: type[StrEnum]) -> Expect:
    """Return the annotation for one of the values of an enum."""
    values = tuple(each.value for each in choices)
    *most, last = (f'"{value}"' for value in values)
    return Expect(f"{', '.join(most)} or {last}", choices=values)


def list_of(expected: str, *, shortest: int = 0) -> Expect:
    """Return the annotation for a list without duplicates, which is read as a tuple."""
    return Expect(expected, _Distinct(shortest), schema={"uniqueItems": True, "minItems": shortest})


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The constraint of a list without duplicates and with a minimum length."""

    shortest: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def _read(self, raw: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(raw, list | tuple) or len(raw) < self.shortest:
            raise ValueError
        values = inner(raw)
        places: dict[object, int] = {}
        faults = [
            Fault(rule="duplicate element", path=(index,), found=raw[index], first=(first,))
            for index, value in enumerate(values)
            if (first := places.setdefault(value, index)) != index
        ]
        if faults:
            raise validation_error(faults)
        return values


def read_secret(path: object) -> str:
    """Return the content of a file without a newline at its end; blocks. Raises `ValueError` with the reason."""
    if not isinstance(path, str) or not path:
        raise ValueError("expected the path of a file that holds the secret")
    try:
        secret = read_ordinary_file(path, LONGEST_SECRET_BYTES, "secret").decode()
    except OSError as error:
        raise ValueError(f"cannot be read: {reason_of(error)}") from None
    except ValueError:
        raise ValueError("cannot be read: not UTF-8") from None  # the cause contains bytes of the secret
    return secret.removesuffix("\n").removesuffix("\r")


# --- reading ----------------------------------------------------------------------------------------------------------


def read_options(options: type[TableT], table: Mapping[str, object], plugin: str) -> TableT:
    """Return a plugin's options. Raises `OptionsError` with one line per error: the option, its value and the rule."""
    try:
        return options.model_validate(dict(table))
    except ValidationError as error:
        faults = faults_of(error, options, ("plugins", "options", plugin))
    raise OptionsError(faults)


def faults_of(error: ValidationError, table: type[Table], outer: Path = ()) -> list[Fault]:
    """Return the errors in ``table``, whose path is ``outer``, with the messages of this module."""
    errors = error.errors(include_url=False)
    found = [each for each in errors if each["type"] != "default_factory_not_called"]  # a consequence of another error
    return [_fault(dict(each), table, outer) for each in found]


def _fault(error: dict[str, Any], table: type[Table], outer: Path) -> Fault:
    place: Path = error["loc"]
    path = (*outer, *place)
    match error["type"]:
        case "fault":
            fault: Fault = error["ctx"]["fault"]
            first = None if fault.first is None else (*path[: len(path) - len(fault.path)], *fault.first)
            return Fault(path=path, rule=fault.rule, found=fault.found, first=first)
        case "extra_forbidden":
            return Fault(path=path, rule=_unknown(table, place, outer))
        case "missing":
            field = fields_by_key(_table_at(table, place[:-1]))[str(place[-1])]
            return Fault(path=path, rule=f"required; expected {expected_of(field)}")
        case "model_type" | "dict_type" | "mapping_type":
            rule = f"expected a table: [{dotted(path)}] and keys below it"
            if path and isinstance(path[-1], int):
                rule = f"expected a table, headed [[{dotted(path[:-1])}]]"
            elif isinstance(error["input"], list) and (hint := did_you_mean(place[-1], _leaf_names(table, place[:-1]))):
                rule += f"; {hint}"
            found = error["input"]
            if isinstance(found, str | list) and _has_secrets(_table_at(table, place)):
                found = SecretStr("")  # it may be a whole table
            return Fault(path=path, rule=rule, found=found)
        case _:
            message: str = error["msg"]
            return Fault(path=path, rule=message[:1].lower() + message[1:], found=error["input"])


def _has_secrets(table: Any) -> bool:
    """Return whether a table has keys with secrets, or is one with names that a user chooses."""
    is_table = isinstance(table, type) and issubclass(table, Table)
    return not is_table or any(is_secret(path[-1]) for path, _, _ in leaves(table))


def expected_of(field: FieldInfo) -> str:
    """Return the description of a field's valid values, as a noun."""
    return next(each.expected for each in field.metadata if isinstance(each, Expect | Parsed))


def _unknown(table: type[Table], place: Path, outer: Path) -> str:
    """Return the message for an unknown key, with the most similar key of its table or of any table."""
    *around, name = place
    siblings = fields_by_key(_table_at(table, tuple(around)))
    if close := difflib.get_close_matches(str(name).lower(), siblings, n=1, cutoff=_CLOSE):
        return f"unknown key; did you mean {dotted((*outer, *around, close[0]))}?"
    elsewhere = {str(path[-1]): path for path, _, _ in reversed(list(leaves(table)))}
    if close := difflib.get_close_matches(str(name).lower(), elsewhere, n=1, cutoff=_CLOSE):
        return f"unknown key; did you mean {dotted((*outer, *elsewhere[close[0]]))}?"
    return f"unknown key; known here: {', '.join(siblings)}"


def did_you_mean(written: object, known: Iterable[str], *, quote: str = "") -> str:
    """Return a suggestion of the most similar known word; an empty string if none is similar."""
    close = difflib.get_close_matches(written.lower(), list(known), n=1) if isinstance(written, str) else ()
    return f"did you mean {quote}{close[0]}{quote}?" if close else ""


# --- the keys of a table ----------------------------------------------------------------------------------------------


def fields_by_key(table: type[Table]) -> dict[str, FieldInfo]:
    """Return the fields of a table by key."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def table_of(field: FieldInfo) -> type[Table] | None:
    """Return the class of a field that is a table; ``None`` for other fields."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Table) else None


def leaves(table: type[Table]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], FieldInfo]]:
    """Yield path, attributes and field of every key that is not a table, in the order of declaration."""
    for name, field in table.model_fields.items():
        key = field.alias or name
        inner = table_of(field)
        if inner is None:
            yield (key,), (name,), field
            continue
        for path, attributes, leaf in leaves(inner):
            yield (key, *path), (name, *attributes), leaf


def _element(container: Any) -> Any:
    """Return the element type of an array or mapping, without its annotations."""
    arguments = get_args(container)
    element = arguments[1] if issubclass(get_origin(container) or tuple, Mapping) else arguments[0]
    return get_args(element)[0] if get_origin(element) is Annotated else element


def _table_at(table: type[Table], place: Path) -> type[Table]:
    """Return the table at a path, in which array indices and the names of user-defined tables are skipped."""
    around: Any = table
    for step in place:
        is_table = isinstance(around, type) and issubclass(around, Table)
        around = _without_none(fields_by_key(around)[str(step)].annotation) if is_table else _element(around)
    found: type[Table] = around
    return found


def _without_none(annotation: Any) -> Any:
    """Return the table of an annotation that also allows ``None``; any other annotation unchanged."""
    tables = [each for each in get_args(annotation) if isinstance(each, type) and issubclass(each, Table)]
    return tables[0] if tables and NoneType in get_args(annotation) else annotation


def _leaf_names(table: type[Table], place: Path) -> list[str]:
    return [key for key, field in fields_by_key(_table_at(table, place)).items() if table_of(field) is None]
