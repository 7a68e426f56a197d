"""Requests that create or delete partitions, and Metadata requests that may create topics.

requests  looking up the cost of a request; forwarding a Metadata request that may create topics, or answering it
lookup    looking up at the broker how many partitions a request would change
"""
