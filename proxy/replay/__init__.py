"""``headrace replay``: applies quotas to recorded traffic, and writes what they would have decided.

replay   charging a trace line by line
files    reading the trace, and writing the output
summary  counts of a replay, and the text that reports them
"""
