"""The error of an exchange."""

from __future__ import annotations


class ExchangeError(ValueError):
    """A message is not valid, or does not prove what it has to prove. ``str()`` contains nothing secret."""
