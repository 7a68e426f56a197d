"""The native data plane: threads that relay connections, without the interpreter's lock, while nothing is decided.

api_rows      the APIs that are relayed natively, for the extension module
interface     what a connection and its native relay know of each other
meters        credit of buckets, and the charges of the threads
native        the threads, the connections that they relay, and those that return
thread_watch  whether the threads still run
"""
