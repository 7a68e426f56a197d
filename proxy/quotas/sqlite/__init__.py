"""The store of quotas in an SQLite file, which several proxies of a host may open.

store    the event loop's side: threads, time-outs, and commits that several calls share
file     the tables and transactions
opening  opening the file, and what its errors mean
"""
