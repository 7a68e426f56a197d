"""Bugs that the quick tests must find: `bugs` has the list, and `test_planted_bugs` plants one at a time."""
