"""Spark jobs that turn usage records into tables, bills, recommended quotas, what-if answers and a report.

    cli        the command ``headrace pipeline JOB``
    __main__   the same command for spark-submit
    jobs       one command per job
    output     what jobs print and write: progress, results as text or JSON, files
    report     the HTML report
    analysis   the computations: bills, recommendations, what-if answers and more
    finops     budgets and their alerts, and the export of bills in the format FOCUS
    ingestion  reading records from Kafka or files into the lake
    lake       the tables, their schemas, and the Spark session
    errors     the exceptions that jobs report to users

Each job is a pure function from DataFrames to DataFrames with a small command in `jobs`. The only other packages of the
project that are imported here are `quota_callbacks` (the quota arithmetic) and `config` (the ``[[quotas]]`` tables).
docs/pipeline.md is the user's guide.
"""
