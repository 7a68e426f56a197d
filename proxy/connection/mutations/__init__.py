"""Requests that create or delete partitions, or may: what they would change, and what is done with them then.

requests  looking up the cost of a request; forwarding a Metadata request that may create topics, or answering it
lookup    looking up at the broker how many partitions a request would change
"""
