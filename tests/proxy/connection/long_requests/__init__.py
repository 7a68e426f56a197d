"""Tests of the work for requests and replies of many rows or bytes, which is divided into short steps."""
