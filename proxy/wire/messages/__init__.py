"""Whole messages of the Kafka protocol, read and written by Kafka's own message definitions.

codec          conversion of any message of any version to plain values and back: `decode`, `encode`
editing        changing some fields of a message, and copying the others byte for byte: `edit`
row_limit      a bound for the number of elements of a message: `check_rows`
rows           reading some fields of the elements of an array: `read_rows`
stepwise       reading and writing long messages in steps: `decode_in_steps`, `encode_in_steps`
projection     reading a few fields at any depth: `project`
composites     codecs of structs and arrays
scalars        codecs of single values: integers, strings, bytes, varints
tagged_fields  codecs of tagged fields (KIP-482)
schemas        Kafka's message definitions, read from the generated file kafka_messages.json
api_rows       the rows of the table `headrace.proxy.wire.apis`, generated from the same definitions
"""
