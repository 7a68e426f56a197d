"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

store          the interface of stores of quotas, and the values that pass through it
"""
