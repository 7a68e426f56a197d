"""The store of quotas in a compacted topic of the cluster, which all proxies of a fleet follow.

store     the event loop's side, and why the records have their form
replica   the copy of the topic in one process: kept up to date, and changed through the log
log       reading the topic up to its end, and appending to it, with librdkafka
creation  creating the topic, and checking the settings of one that exists
state     the quotas that follow from the records
records   the records
"""
