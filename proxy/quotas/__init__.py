"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

client_quota_apis  DescribeClientQuotas and AlterClientQuotas
authorization  who may describe and change quotas
follower       putting into force what changes in a store
definitions    the quotas in force: the configuration's, and above them the store's
store          the interface of stores of quotas, and the values that pass through it
"""
