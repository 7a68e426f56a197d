"""Tests of `headrace.plugins.authorization`.

test_rules_kafka     decisions beside Kafka's StandardAuthorizer
test_authorization   options, kept decisions, and explanations
"""
