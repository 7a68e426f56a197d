"""Examples; the tests run all of them.

demo             three brokers, the proxy and four clients for half a minute
request_rate     a plugin with a quota key of its own: requests per second
"""
