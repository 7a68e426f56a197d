"""Authorization of one client's requests.

requests  asking plugins whether a client may do what it requests
denials   answering what it may not do, and changing the replies to the rest
"""
