"""The tables on disk, and the Spark session that reads and writes them.

tables   where the tables are, and how they are read and written
schemas  the columns of every table, in one place
session  a Spark session, for a laptop or a cluster
jars     the connector's jars, resolved once
"""
