"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

store          the interface of stores of quotas, and the values that pass through it
validation     Kafka's rules for AlterClientQuotas
filters        Kafka's rules for the filters of DescribeClientQuotas
refusals       the errors with which both APIs refuse a request or an entry
hash_order     the order in which Java's hash maps have strings, on which some answers depend
"""
