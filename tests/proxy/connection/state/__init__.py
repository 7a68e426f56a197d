"""Tests of `headrace.proxy.connection.state`."""
