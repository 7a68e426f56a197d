"""Examples; the tests run all of them.

demo             three brokers, the proxy and four clients for half a minute
quota_per_topic  a plugin with a quota on the bytes produced to a topic
team_quotas      a plugin that lets users of a team share a quota
"""
