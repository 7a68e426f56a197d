"""From usage records in files or a topic to the tables of the lake.

ingest     records from Kafka or files into the lake, each once
sources    files and topics that ingest reads
watermark  how far the lake is, and which hours are final
lock       one ingest at a time
instances  what each instance has recorded, and what is missing
"""
