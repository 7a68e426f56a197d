"""Tests of `headrace.proxy.connection.authorization`."""
