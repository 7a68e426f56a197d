"""Costs by team and month with DuckDB, from the lake's tables, without Spark.

    pip install deltalake duckdb pyarrow
    python -m examples.bi_with_duckdb /var/lib/headrace/lake

The tables are Delta tables, which many programs can read. The versions of the tables are taken from the table
``releases``, so that they belong together even if rollup runs meanwhile. The lake can also be in an object store
(``s3://bucket/headrace``), with the credentials that are in the environment.
"""

from __future__ import annotations

import argparse

import duckdb
from deltalake import DeltaTable

TABLES = ("rollup_day", "chargeback")

VIEWS = """
CREATE VIEW cost_by_team_and_month AS
    SELECT date AS month, team, currency, sum(amount) AS cost
    FROM chargeback
    WHERE period = 'month' AND item = 'total'
    GROUP BY ALL;

CREATE VIEW usage_by_team_and_month AS
    SELECT
        CAST(date_trunc('month', date) AS DATE) AS month,
        CASE WHEN "user" IS NULL THEN '(unattributed)' ELSE coalesce(team, '(none)') END AS team,
        sum(requests) AS requests,
        sum(request_bytes + response_bytes) / 1024 ** 3 AS gib
    FROM rollup_day
    GROUP BY ALL;
"""

COSTS = """
SELECT month, team, requests, gib, cost, currency
FROM usage_by_team_and_month LEFT JOIN cost_by_team_and_month USING (month, team)
ORDER BY month, cost DESC, team
"""


def released(lake: str) -> dict[str, int]:
    """Return the version of each table in the newest release."""
    releases = DeltaTable(f"{lake}/releases").to_pyarrow_table().sort_by([("number", "descending")])
    return dict(releases["versions"][0].as_py())


def connect(lake: str) -> duckdb.DuckDBPyConnection:
    """Return a database in memory with `TABLES` and `VIEWS`, which read the lake when they are queried."""
    connection = duckdb.connect()
    versions = released(lake)
    for table in TABLES:
        connection.register(table, DeltaTable(f"{lake}/{table}", version=versions[table]).to_pyarrow_dataset())
    connection.execute(VIEWS)
    return connection


def main(arguments: list[str] | None = None) -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description="Print the costs by team and month.")
    parser.add_argument("lake", help="folder of the tables, or its address in an object store")
    lake: str = parser.parse_args(arguments).lake
    print(connect(lake.rstrip("/")).sql(COSTS))


if __name__ == "__main__":
    main()
