"""Tests of `headrace.proxy.connection.mutations`."""
