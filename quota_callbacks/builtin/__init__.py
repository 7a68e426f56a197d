"""The built-in quota callbacks, registered like any other plugin.

default_quotas       Kafka's DefaultQuotaCallback (KIP-257)
precedence           Kafka's eight levels of precedence: the quota and the bucket of a request
bucket_callback      the base class of the callbacks below
byte_rate            producer_byte_rate and consumer_byte_rate
request_percentage   request_percentage (KIP-124)
request_costs        the estimate of a broker's handler time for a request
cost_files           the cost model in the configuration and in files
controller_mutation  controller_mutation_rate (KIP-599)
producer_ids         producer_ids_rate (KIP-936)
reservations         reservations of paced quotas
"""
