"""The native data plane: threads that relay connections without the interpreter's lock.

A connection is relayed natively for as long as no quota or plugin has to decide about a request.

api_rows      the APIs that are relayed natively, for the extension module
interface     the interfaces between a connection and its native relay
meters        credit of buckets, and the charges of the threads
native        the threads, the connections that they relay, and those that return
thread_watch  whether the threads still run
"""
