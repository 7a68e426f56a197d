"""Kafka's rules for the client-quota APIs, as pure functions.

validation  which alterations of a request are made, and what is answered
filters     which filters are valid, and which entities they match
refusals    the errors with which both APIs refuse a request or an entry
hash_order  the order in which Java's hash maps have strings, on which some answers depend
"""
