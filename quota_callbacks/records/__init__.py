"""Records of traffic: usage records and traces, and their replay.

usage_records  the format of usage records
trace_lines    the format of traces for ``headrace replay``
replay         charging recorded requests to buckets
"""
