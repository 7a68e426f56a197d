"""Buckets in memory that several workers share, so that a quota holds for all of them as for one process.

usage         what workers charged: one row per bucket, one cell per worker
rates         a rate that several workers measure together
debts         token buckets and timelines that several workers take from
producer_ids  new producer ids, passed on to the other workers
layout        where each of these lies in the memory
"""
