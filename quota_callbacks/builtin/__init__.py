"""The quota callbacks that ship with Headrace, registered as any other plugin is.

default_quotas       KIP-257's callbacks as Kafka's DefaultQuotaCallback has them
precedence           which quota applies and which bucket is charged (the eight levels)
byte_rate            producer_byte_rate and consumer_byte_rate
request_percentage   request_percentage (KIP-124)
request_costs        the estimate of a broker's handler time for a request
cost_files           what a request costs, as the configuration or a file has it
controller_mutation  controller_mutation_rate (KIP-599)
producer_ids         producer_ids_rate (KIP-936)
reservations         what a paced quota has reserved for a request
"""
