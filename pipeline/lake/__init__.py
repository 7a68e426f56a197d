"""The tables on disk, and the Spark session that reads and writes them.

tables   reading and writing the tables, and small files beside them
schemas  the columns of every table
session  a Spark session, local or on a cluster
jars     the jars of Spark's Kafka connector, downloaded once
"""
