"""Tables of the configuration file, a module for each. `headrace.config.schema` combines them with its own.

admin            the `[admin]` table, and the address of the admin server
broker_hosts     the pattern of brokers' host names
client_quotas    the `[client_quotas]` table
limits           the `[limits]` table
listeners        the `[listen]`, `[listeners.NAME]` and `[upstream]` tables
plugins          the `[plugins]` table
sasl             the `[listen.sasl]`, `[upstream.sasl]` and `[upstream.owner_lookup]` tables
tls              the `[listen.tls]`, `[upstream.tls]` and `[admin.tls]` tables
windows          windows of quotas and the file of bucket states, by the broker's names
"""
