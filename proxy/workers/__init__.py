"""Several server processes on the same ports, as one proxy.

start          the start, in the order that makes forking safe
supervisor     the process that starts workers, replaces them, and hands signals on to all
fork_server    the process that forks them
worker         one worker: a server and its end of a pipe
pipe           messages between the supervisor and a worker
answers        the answers of all workers to operators, as one
bucket_state   the file of bucket states, which the supervisor keeps for all
shared_memory  the memory that all workers see
"""
