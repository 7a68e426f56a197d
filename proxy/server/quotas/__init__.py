"""The quotas of the configuration, of the store, and of the brokers.

quotas_in_force     putting the quotas of the configuration and of the store into force
brokers_quotas      the quotas that were set at the brokers themselves
quota_import        copying the brokers' quotas into the store, once
"""
