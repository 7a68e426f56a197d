"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

client_quota_apis  DescribeClientQuotas and AlterClientQuotas
validation         Kafka's rules for AlterClientQuotas
filters            Kafka's rules for the filters of DescribeClientQuotas
refusals           the errors with which both APIs refuse a request or an entry
hash_order         the order in which Java's hash maps have strings, on which some answers depend
authorization      who may describe and change quotas
follower           putting into force what changes in a store
definitions        the quotas in force: the configuration's, and above them the store's
sqlite_store       the store in an SQLite file, which several processes may open
sqlite_file        the tables and statements of the SQLite file
sqlite_opening     opening the SQLite file, and what its errors mean
topic_store        the store in a compacted topic of the cluster, and why its records have their form
topic_replica      the copy of the topic in one process: kept up to date, and changed through the log
topic_log          reading the topic up to its end, and appending to it, with librdkafka
topic_creation     creating the topic, and checking the settings of one that exists
topic_state        the quotas that follow from the records of the topic
topic_records      the records of the topic
entity_text        entities as text, for stores
store              the interface of stores, and the values that pass through it
"""
