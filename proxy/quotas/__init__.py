"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

client_quota_apis  DescribeClientQuotas and AlterClientQuotas
authorization      who may describe and change quotas
follower           putting into force what changes in a store
definitions        the quotas in force: the configuration's, and above them the store's
sqlite_store       the store in an SQLite file, which several processes may open
sqlite_file        the tables and statements of the SQLite file
sqlite_opening     opening the SQLite file, and what its errors mean
entity_text        entities as text, for stores
store              the interface of stores, and the values that pass through it
"""
