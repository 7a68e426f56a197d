"""Windows of usage: the rows of the table ``anomaly_windows``, and the same in NumPy, for one group of entities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.anomalies.rules import ENTITY, QUANTITIES
from headrace.pipeline.analysis.usage import over_quotas
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.analysis.anomalies.rules import Rules

    Starts = Mapping[str | None, Sequence[int]]
    """The starts of the windows with usage of any entity, by cluster."""

SUMS: Final = ("requests", "failed", "bytes", "thread_ms", "new_ids", "produced", "connections")
WINDOWS_A_GROUP: Final = 50_000
"""Windows that are processed in one piece. Larger pieces gain nothing; this one takes some 30 MB."""


def windows_of(usage: DataFrame, window_s: int) -> DataFrame:
    """Return usage (`schemas.USAGE`) by window (``start``, a second) and entity, and by window, cluster and user."""
    api_key, requests = sf.col("api_key"), sf.col("requests")

    def of_api(api: ApiKey) -> Column:
        return sf.coalesce(sf.sum(sf.when(api_key == api.value, requests)), sf.lit(0))

    start = sf.col("second") - sf.pmod("second", sf.lit(window_s))
    refused = over_quotas("refused")
    by_client = (
        usage.where(sf.col("user").isNotNull())
        .groupBy(start.alias("start"), "cluster", "user", sf.coalesce("client_id", sf.lit("")).alias("client_id"))
        .agg(
            sf.sum("requests").alias("requests"),
            sf.greatest(sf.sum("errors"), sf.sum(sf.coalesce(refused, sf.lit(0)))).alias("failed"),
            sf.sum(sf.col("request_bytes") + sf.col("response_bytes")).alias("bytes"),
            sf.sum("thread_ms").alias("thread_ms"),
            # The proxy counts new ids of senders with a quota; for others, only InitProducerId requests are known.
            sf.greatest(sf.sum("producer_ids"), of_api(ApiKey.INIT_PRODUCER_ID)).alias("new_ids"),
            of_api(ApiKey.PRODUCE).alias("produced"),
            # A client sends ApiVersions once per connection, and SaslHandshake once.
            sf.greatest(of_api(ApiKey.API_VERSIONS), of_api(ApiKey.SASL_HANDSHAKE)).alias("connections"),
        )
    )
    alone_and_all = sf.explode(sf.array("client_id", sf.lit(None)))
    both = by_client.withColumn("client_id", alone_and_all).groupBy("start", *ENTITY)
    return both.agg(*(sf.sum(name).alias(name) for name in SUMS))


def starts_of(windows: DataFrame) -> Starts:
    """Return the starts of all windows: at most one for each window of the days, and cluster."""
    starts: dict[str | None, list[int]] = {}
    for row in windows.select("cluster", "start").distinct().collect():
        starts.setdefault(row.cluster, []).append(row.start)
    return starts


def packed(starts: Starts, cluster: str | None, seconds: range, window_s: int) -> bytes:
    """Return which windows of these ``seconds`` have usage of the cluster: a bit for each, the first one first."""
    bits = np.zeros(len(seconds) // window_s, dtype=np.bool_)
    numbers = (np.asarray(starts.get(cluster, ()), dtype=np.int64) - seconds.start) // window_s
    bits[numbers[(numbers >= 0) & (numbers < len(bits))]] = True
    return np.packbits(bits).tobytes()


def unpacked(stored: bytes, since_s: int, window_s: int) -> list[int]:
    """Return the starts of the windows that are ``stored``: the reverse of `packed`."""
    bits = np.unpackbits(np.frombuffer(stored, dtype=np.uint8))
    starts: list[int] = (since_s + np.flatnonzero(bits) * window_s).tolist()
    return starts


def group_column(groups: int) -> Column:
    """Return the number of an entity's group; the entities of a group are processed in one piece."""
    return sf.pmod(sf.xxhash64(*ENTITY), sf.lit(groups)).alias("group")


def groups_for(rows: int) -> int:
    """Return the number of groups for this many windows."""
    return 1 + rows // WINDOWS_A_GROUP


def numbered(*tables: Any) -> tuple[Any, list[NDArray[np.int64]]]:
    """Return the distinct entities of Arrow tables, and for each table the row of each of its rows' entity."""
    columns = {name: pa.concat_arrays([table[name].combine_chunks() for table in tables]) for name in ENTITY}
    key = np.zeros(sum(table.num_rows for table in tables), dtype=np.int64)
    for column in columns.values():
        codes = column.dictionary_encode(null_encoding="encode")
        key = key * (len(codes.dictionary) + 1) + codes.indices.to_numpy(zero_copy_only=False)
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    ends = np.cumsum([table.num_rows for table in tables])[:-1]
    return pa.table(columns).take(pa.array(first)), np.split(number, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows of a group's entities in NumPy, sorted by entity and start.

    A run of windows with usage is followed by one without, whose values are zeros, if other entities of the cluster had
    usage in it.
    """

    entity: NDArray[np.int64]
    start: NDArray[np.int64]
    active: NDArray[np.bool_]
    """Whether the entity had usage."""
    values: NDArray[np.float64]
    """A column for each of `QUANTITIES`."""
    failed: NDArray[np.float64]
    produced: NDArray[np.float64]

    @classmethod
    def of(cls, table: Any, entity: NDArray[np.int64], clusters: Sequence[str | None], starts: Starts, rules: Rules
           ) -> Windows:  # fmt: skip
        """Convert an Arrow table of windows. ``clusters`` has the cluster of each entity."""
        start = _numbers(table, "start").astype(np.int64)
        order = np.lexsort((start, entity))
        entity, start = entity[order], start[order]
        sums = {name: _numbers(table, name)[order] for name in SUMS}
        last = np.flatnonzero(_is_last(entity, start, rules.window_s))
        quiet = last[_recorded(entity[last], start[last] + rules.window_s, clusters, starts)]
        requests = np.maximum(sums["requests"], 1.0)
        shares = {
            "failed_share": np.where(sums["requests"] > 0, sums["failed"] / requests, 0.0),
            "bytes_per_request": np.where(sums["requests"] > 0, sums["bytes"] / requests, 0.0),
        }
        values = np.column_stack([{**sums, **shares}[name] for name in QUANTITIES])
        none = np.zeros(len(quiet))
        both = cls(
            entity=np.concatenate([entity, entity[quiet]]),
            start=np.concatenate([start, start[quiet] + rules.window_s]),
            active=np.arange(len(entity) + len(quiet)) < len(entity),
            values=np.concatenate([values, np.zeros((len(quiet), len(QUANTITIES)))]),
            failed=np.concatenate([sums["failed"], none]),
            produced=np.concatenate([sums["produced"], none]),
        )
        return both.at(np.lexsort((both.start, both.entity)))

    def at(self, rows: NDArray[Any]) -> Windows:
        """Return some rows, by number or by a mask."""
        return Windows(
            entity=self.entity[rows],
            start=self.start[rows],
            active=self.active[rows],
            values=self.values[rows],
            failed=self.failed[rows],
            produced=self.produced[rows],
        )


def _numbers(table: Any, name: str) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = table[name].to_numpy().astype(np.float64)
    return numbers


def _is_last(entity: NDArray[np.int64], start: NDArray[np.int64], window_s: int) -> NDArray[np.bool_]:
    """Return whether the entity has no window directly after this one."""
    follows = (entity[1:] == entity[:-1]) & (start[1:] == start[:-1] + window_s)
    return np.append(~follows, True)[: len(entity)]


def _recorded(
    entity: NDArray[np.int64], start: NDArray[np.int64], clusters: Sequence[str | None], starts: Starts
) -> NDArray[np.bool_]:
    """Return whether any entity of the cluster has usage in a window."""
    names = list(starts)
    number = {name: index for index, name in enumerate(names)}
    cluster = np.array([number.get(name, -1) for name in clusters], dtype=np.int64)[entity]
    recorded = np.zeros(len(start), dtype=np.bool_)
    for index, name in enumerate(names):
        recorded |= (cluster == index) & np.isin(start, np.asarray(starts[name], dtype=np.int64))
    return recorded
