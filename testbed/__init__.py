"""A real Apache Kafka on this machine, for the demo, the tests and the benchmarks. Stands alone: knows no proxy.

artifacts  Maven coordinates to jar files, cached        java    a Java runtime to run them on
cluster    brokers in KRaft mode that end with us        tools   Kafka's own command line tools
ports      free ports that no other process gets         jvm     Kafka's classes inside this process, the tests' oracle
errors     the one tree of errors, rooted at TestbedError
"""
