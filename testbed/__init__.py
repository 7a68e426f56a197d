"""A real Apache Kafka on this machine, for the demo, the tests and the benchmarks. Imports nothing of the proxy.

kafka          brokers in KRaft mode, Kafka's tools and classes
processes      processes, directories and ports that end with us
proxy_process  ``headrace run`` as a process of its own
compiled       a copy of the proxy with compiled modules
errors         the one tree of errors, rooted at TestbedError
"""
