"""Buckets in memory that several workers share, so that a quota applies to all of them together.

buckets       the shared memory and its directory: one row per bucket, one cell per worker
rates         rates that several workers record in
debts         token buckets and timelines that several workers charge
producer_ids  new producer ids, published to the other workers
layout        the layout of the shared memory
"""
