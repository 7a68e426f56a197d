"""Brokers, Kafka's own tools and its classes, run from the jars on a Java runtime of this machine.

cluster     a cluster on free ports of the loopback, which ends with us
broker      one node of it: its process, its ports, its files
launch      the command line and the environment of Kafka's programs
properties  what every node is configured with
storage     formats the directories of brokers
class_data  archives of loaded classes, for a quicker start
probe       asks brokers whether they serve and which others they know
tools       Kafka's own command line tools
artifacts   Maven coordinates to jar files, cached
java        a Java runtime to run them on
jvm         Kafka's classes inside this process, the tests' oracle
"""
