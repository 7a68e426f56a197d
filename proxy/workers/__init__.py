"""Several server processes on the same ports, as one proxy.

start          starting the processes, in the order that makes forking safe
supervisor     the process that starts and replaces workers, and forwards signals to them
fork_server    the process that forks workers
worker         one worker: a server and its end of a pipe
pipe           messages between the supervisor and a worker
watchdog       noticing that a worker has stopped to answer
slots          the workers as the modules of the supervisor see them
answers        answers of all workers to operators, merged into one
bucket_state   bucket state exchanged between workers and the supervisor, which owns the file
shared_memory  memory shared by all workers
"""
