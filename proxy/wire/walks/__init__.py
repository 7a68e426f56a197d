"""Incremental parsers ("walks") of large bodies, which read the fields around the records and skip the records.

body            the base class of the walks through Fetch responses and Produce requests
fetch           a walk through a Fetch response, which hides leader hints
fetched_topics  a walk through a Fetch response that also sums the bytes of the records by topic
produce         a walk through a Produce request: topics, sizes and producer ids of its batches
produce_reply   the end of a Produce response: throttle time and leader hints
"""
