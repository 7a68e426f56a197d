"""Whole messages of Kafka's protocol, driven by Kafka's own message definitions.

codec          any message of any version to plain values and back: `decode`, `encode`
editing        any message with some fields changed and all else copied byte for byte: `edit`
rows           a few fields of an array's structs, with all else stepped over: `read_rows`
composites     structs and arrays
scalars        single values: integers, strings, bytes, varints
tagged_fields  tagged fields (KIP-482)
schemas        Kafka's message definitions, read from kafka_messages.json, which is generated
"""
