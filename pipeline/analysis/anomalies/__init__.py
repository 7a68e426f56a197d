"""Anomalies: windows of usage that deviate from an entity's past, or that are suspicious without any past.

    producer-id-churn    many producer ids are requested for few Produce requests
    retry-storm          many requests fail, or there are many more of them that carry much less data
    connection-storm     many connections are opened for few requests
    sudden-change        bytes or thread time are a multiple or a fraction of the usual, or stop

A value deviates if it differs from the usual by a factor and by several times the usual spread, and was not reached in
several earlier hours. The last condition excludes nightly jobs and lasting new levels after some time. An entity whose
past is too short is not compared; the rules that need no past apply to all entities.

Clients that use a new client id each time have no past. Therefore all clients of a user are also examined together,
and reported if none of the single clients is reported for the same kind in the same window.

A day's usage is read once: its windows and sketches are tables of the lake. A day is compared with the sketches of the
days before it, so the cost does not depend on how many windows they had.

findings   the anomalies of a day: kinds, descriptions, consecutive windows
deviating  a day's windows compared with the past, in NumPy
sketches   what is kept of an entity's day, and the past as the sum of such days
windows    usage by window and entity
stored     which days have windows and sketches in the lake, and making those that are missing
rules      the limits, which are the command's options, and the quantities that are compared
"""
