"""``headrace replay``: what quotas would have done to recorded traffic.

replay   a trace charged line by line
files    the trace that is read, and the outcome that is written
summary  what a replay has counted, for people
"""
