"""Converts JSON lines to Parquet, with the fields and types of `headrace.quota_callbacks.records.usage_records`.

All work is done by pyarrow (the extra ``headrace[usage-parquet]``) outside of the interpreter lock, so the event loop
is not delayed. Called by the thread that converts files. A file is converted in blocks, which bounds the memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

from headrace.quota_callbacks.records.usage_records import LostRecord, UsageRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Bytes of lines that become one row group, some 10,000 records.

Measured: a process takes 50 MiB for pyarrow, and up to 100 MiB while it converts, of which the allocator keeps a part.
"""

_MAP: Final = pa.map_(pa.string(), pa.int64())
_TYPES: Final = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    str | None: pa.string(),
    dict[str, int]: _MAP,
}
_SHORT: Final = ("schema", "api_key")
_FIELDS: Final = get_type_hints(UsageRecord) | get_type_hints(LostRecord)

SCHEMA: Final = pa.schema([(name, pa.int32() if name in _SHORT else _TYPES[kind]) for name, kind in _FIELDS.items()])
"""The columns: all fields of all kinds of records, null in a record whose kind does not have them."""

_READ: Final = pa.schema([field for field in SCHEMA if field.type != _MAP])
_WITH_DICTIONARY: Final = [
    f"{field.name}.key_value.key" if field.type == _MAP else field.name
    for field in SCHEMA
    if field.type in (pa.string(), _MAP)
]
_ENCODINGS: Final = {field.name: "DELTA_BINARY_PACKED" for field in SCHEMA if pa.types.is_integer(field.type)}
"""A quarter smaller than with dictionaries for numbers, in half of the time."""


class StoppedError(Exception):
    """The conversion was stopped before its end."""


def convert(lines: int, parquet: int, *, is_stopping: Callable[[], bool]) -> None:
    """Write the records of the open file ``lines`` to the open file ``parquet``, which is empty, in the same order.

    Raises `OSError`, `ValueError` (of which pyarrow's errors are subclasses) for text that is not a record or not
    Unicode, and `StoppedError` after the block during which ``is_stopping`` became true.
    """
    with (
        os.fdopen(parquet, "wb", closefd=False) as file,
        pa.parquet.ParquetWriter(
            file,
            SCHEMA,
            compression="zstd",
            use_dictionary=_WITH_DICTIONARY,
            column_encoding=_ENCODINGS,
            write_page_checksum=True,
        ) as writer,
    ):
        for block in _blocks(lines):
            if is_stopping():
                raise StoppedError("the proxy stops")
            writer.write_table(_records(block), row_group_size=len(block))


def _blocks(lines: int) -> Iterator[pa.Buffer]:
    """Yield blocks of whole lines."""
    start, size = 0, os.fstat(lines).st_size
    while start < size:
        data = os.pread(lines, BLOCK_BYTES, start)
        end = data.rfind(b"\n") + 1
        if end == 0:
            raise ValueError(f"no line ends within {BLOCK_BYTES} bytes from byte {start}")
        yield pa.py_buffer(data).slice(0, end)
        start += end


def _records(lines: pa.Buffer) -> pa.Table:
    """Return the records as a table with `SCHEMA`.

    pyarrow reads an object in JSON as a struct and not as a map; so it infers the members of the maps in a block.
    """
    read = pa.json.read_json(
        pa.BufferReader(lines),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=lines.size),
        parse_options=pa.json.ParseOptions(explicit_schema=_READ, unexpected_field_behavior="infer"),
    )
    names = set(read.column_names)
    if unknown := sorted(names - set(SCHEMA.names)):
        raise ValueError(f"unknown fields: {', '.join(unknown)}")
    columns = [
        read[field.name] if field.type != _MAP else _map(read, field.name if field.name in names else None)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _map(read: pa.Table, name: str | None) -> Any:
    """Return the column ``name``, whose values are structs or null, as maps from the names of members that have values.

    Without ``name``, or if no record has a value, all maps are null.
    """
    column = None if name is None else read[name].combine_chunks()
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(len(read), _MAP)
    if not pa.types.is_struct(column.type):
        raise ValueError(f"{name} is not an object")
    none = pa.array([], pa.int64())
    sizes, rows, keys, items = (
        pa.repeat(pa.scalar(0, pa.int64()), len(column)),
        [none],
        [none.cast(pa.string())],
        [none],
    )
    for key, member in zip([field.name for field in column.type.fields], column.flatten(), strict=True):
        has_value = pc.is_valid(member)
        sizes = pc.add(sizes, pc.cast(has_value, pa.int64()))
        rows.append(pc.cast(pc.indices_nonzero(has_value), pa.int64()))
        items.append(pc.cast(pc.drop_null(member), pa.int64()))
        keys.append(pa.repeat(key, len(items[-1])))
    in_order = pc.sort_indices(pa.concat_arrays(rows))
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    is_map = pa.concat_arrays([pc.is_valid(column), pa.array([True])])
    offsets = pc.if_else(is_map, pc.cast(ends, pa.int32()), pa.scalar(None, pa.int32()))
    return pa.MapArray.from_arrays(
        offsets, pa.concat_arrays(keys).take(in_order), pa.concat_arrays(items).take(in_order), _MAP
    )
