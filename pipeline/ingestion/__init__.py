"""Reading usage records from files or a topic into the tables of the lake.

ingest     records from Kafka or files into the lake, each once
batches    one batch of lines: which are new, and the transactions that add them
parsing    lines to records, with what is wrong with each
columnar   rows of Parquet files to records, with what is wrong with each
faults     what is wrong with a record of either
sources    the files and topics that ingest reads
watermark  the newest ingested second, which decides which hours are final
instances  the records of each instance, and those that are missing
"""
