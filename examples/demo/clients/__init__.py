"""The demo's client programs: ordinary Kafka clients that know nothing of Headrace, and can be run by hand.

kafka_python_consumer  a consumer that reads a topic repeatedly
librdkafka_producer    a producer that sends without a pause
"""
