"""What was recorded of traffic: usage records, traces, and charging them again.

usage_records  the usage record: who used what in a second
trace_lines    the lines of a trace for ``headrace replay``
replay         recorded usage charged again
"""
