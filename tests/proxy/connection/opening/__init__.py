"""Tests of `headrace.proxy.connection.opening`."""
