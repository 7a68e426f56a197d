"""The pipeline: usage records to tables, bills, quotas, what-if answers and a report, on Spark.

    errors          what a user can have done wrong, in one tree
    schemas         the columns of every table, in one place
    jars            the connector's jars, resolved once
    session         a Spark session, for a laptop or a cluster
    lake            where the tables are, and how they are read and written
    usage           what several jobs ask of usage records
    events          usage records and traces as the events that quotas are charged with
    sources         files and topics that ingest reads
    watermark       how far the lake is, and which hours are final
    lock            one ingest at a time
    instances       what each instance has recorded, and what is missing
    quota_files     quotas as files: read for what-if, written by recommend
    prices          price sheets, for bills
    jmx_truth       what brokers say of their handlers' time, from JmxTool
    waiting         what becomes of usage when its senders wait
    anomaly_past    windows of usage, and what is usual in them

    ingest          records from Kafka or files into the lake
    rollup          hours, days, bills
    recommend       quotas from what was used
    what_if         usage against quotas
    traces          the traces of replay, for what_if
    calibrate       the cost model of requests
    anomalies       what is unlike each entity's past
    report          one HTML file

    cli             ``headrace pipeline JOB``, and spark-submit

Every job is a pure function from DataFrames to DataFrames and a thin entry in `cli`. Data flows down this list: jobs
know what stands above them and not each other. Of the project, only `quota_callbacks` (the arithmetic) and `config`
(the ``[[quotas]]`` tables) are known here. docs/pipeline.md is for who runs it.
"""
