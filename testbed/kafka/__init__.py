"""Brokers, Kafka's own tools and its classes, run from the jars on a Java runtime of this machine.

cluster       a cluster on free loopback ports, which ends with this process
broker        one node of a cluster: its process, ports and files
launch        the command line and the environment of Kafka's programs
properties    the configuration of a node
certificates  TLS certificates, and the settings with which each Kafka client uses them
kerberos      a Kerberos key distribution center
storage       formats the log directories of brokers
class_data    archives of loaded classes, for a quicker start
probe         asks brokers whether they serve and which other brokers they know
tools         Kafka's own command line tools
artifacts     resolves Maven coordinates to jar files, with a cache
java          finds a Java runtime
jvm           Kafka's classes inside this process, as an oracle for tests
"""
