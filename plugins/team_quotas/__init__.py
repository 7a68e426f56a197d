"""Quotas of teams: all clients of a team share one bucket, beside the quotas that each of them has.

options     the plugin's options, validated
members     which team a client belongs to; pure
plugin      the hook implementations
"""

from headrace.plugins.team_quotas.plugin import TeamQuotas

__all__ = ["TeamQuotas"]
