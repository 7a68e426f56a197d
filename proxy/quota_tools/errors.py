"""The errors of the quota commands. Their texts are one sentence each, for operators."""

from __future__ import annotations


class QuotaToolError(Exception):
    """The base class of these errors."""


class ArgumentError(QuotaToolError):
    """An argument is not valid. The message says which, and what is expected."""


class ClusterError(QuotaToolError):
    """The cluster cannot be reached, refuses a call, or the settings for it are not usable."""
