"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

store            the interface of stores of quotas, and the values that pass through it
sqlite_store     the store in an SQLite file: threads, time-outs, commits that several calls share
sqlite_file      its tables and transactions
sqlite_opening   opening its file, and what can go wrong with it
entity_text      entities as text, as stores keep them
"""
