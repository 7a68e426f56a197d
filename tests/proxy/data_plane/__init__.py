"""The native data plane: credit of quotas, and what its threads forward, charge and return.

wire  connections over TCP that the threads relay, with a client and a broker in this process
"""
