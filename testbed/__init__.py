"""A real Apache Kafka on this machine, for the demo, the tests and the benchmarks. Imports nothing from the proxy.

kafka              brokers in KRaft mode, Kafka's tools and classes
processes          processes, directories and ports that are released when this process ends
preloaded_command  runs ``headrace`` as a fork of a process that has already imported it
proxy_process      ``headrace run`` in a separate process
helm               Helm, which renders the chart in ``deploy/helm``
errors             the tree of errors, rooted at TestbedError
"""
