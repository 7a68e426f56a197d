"""Tests of `headrace.proxy.wire.authorization`, for every API in every version. The errors are compared with those of a
broker in `tests.clients.authorization`."""
