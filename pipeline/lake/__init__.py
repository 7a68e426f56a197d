"""The tables on disk, and the Spark session that reads and writes them.

tables         reading and writing the tables
schemas        the columns of every table
day_counts     numbers of usage records by day, from the tables' logs
retained       the days before which rows were removed, by table
stores         small files beside the tables, in any store
spark_errors   errors of Spark in one line
session        a Spark session, local or on a cluster
python_daemon  the process that runs Python functions for Spark
jars           the jars of Delta Lake and of Spark's Kafka connector, downloaded once
"""
