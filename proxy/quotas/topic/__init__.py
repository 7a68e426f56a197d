"""The store of quotas in a compacted topic of the cluster, which all proxies of a fleet follow.

store     the event loop's side, and why the records have their form
replica   the copy of the topic that a proxy has: kept up to date, and changed through the log
plan      what calls of `alter` append
log       reading the topic up to its end, and appending to it, with librdkafka
creation  creating the topic, checking the settings of one that exists, and noticing that it was created again
clients   the settings of the clients of librdkafka, and their errors
state     the quotas that follow from the records
records   the records
"""
