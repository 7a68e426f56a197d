"""The pipeline: usage records to tables, bills, quotas, what-if answers and a report, on Spark.

    cli        ``headrace pipeline JOB``
    __main__   the same by spark-submit
    jobs       the entry of each job
    report     one HTML file
    analysis   what follows from the tables: bills, recommendations, what-if answers and more
    ingestion  records from Kafka or files into the lake
    lake       the tables, their schemas, and the Spark session
    errors     what a user can have done wrong, in one tree

Every job is a pure function from DataFrames to DataFrames and a thin entry in `jobs`. Of the project, only
`quota_callbacks` (the arithmetic) and `config` (the ``[[quotas]]`` tables) are known here. docs/pipeline.md is for who
runs it.
"""
