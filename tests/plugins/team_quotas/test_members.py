"""Which team a client belongs to."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.team_quotas.members import Members
from headrace.plugins.team_quotas.options import Team, TeamOptions
from headrace.quota_callbacks.entities import MAX_NAME_BYTES, bounded_name
from headrace.quota_callbacks.options import read_options

TEAMS = {
    "payments": Team(users=("alice", "pay-*"), client_ids=("billing", "pay*-v2")),
    "search": Team(users=("pay-search-*",), client_ids=("*-index", "billing-*")),
    "others": Team(client_ids=("*",)),
}


@pytest.mark.parametrize(
    ("user", "client_id", "team"),
    [
        ("alice", "", "payments"),
        ("alice", "x-index", "payments"),  # the user decides before the client id
        ("pay-", "", "payments"),
        ("pay-roll", "billing-9", "payments"),
        ("pay-search-1", "", "search"),  # the pattern with more characters
        ("Alice", "billing", "payments"),
        ("bob", "billing", "payments"),
        ("bob", "billing-1", "search"),
        ("bob", "pay-x-v2", "payments"),
        ("bob", "pay\n-v2", "payments"),
        ("bob", "the-index", "search"),
        ("bob", "the-index-", "others"),
        ("bob", "", "others"),
    ],
)
def test_members(user: str, client_id: str, team: str) -> None:
    assert Members(TEAMS).team_of(user, client_id) == team


def test_a_client_may_belong_to_no_team() -> None:
    members = Members({"blue": Team(users=("alice",), client_ids=("app.[0-9]",))})
    assert members.team_of("bob", "app") is None
    assert members.team_of("bob", "app.1") is None  # only * has a meaning
    assert members.team_of("bob", "app.[0-9]") == "blue"


@given(pattern=st.text("ab*", min_size=1, max_size=8).filter(lambda text: "*" in text), name=st.text("ab", max_size=12))
def test_patterns_match_as_a_regular_expression_does(pattern: str, name: str) -> None:
    members = Members({"blue": Team(client_ids=(pattern,))})
    matches = re.fullmatch(".*".join(pattern.split("*")), name) is not None
    assert members.team_of("", name) == ("blue" if matches else None)


def test_a_name_made_for_a_pattern_costs_no_more_than_another() -> None:
    """A regular expression takes seconds for this one: it tries all ways to place the pieces."""
    members = Members({"blue": Team(client_ids=("*a*a*a*a*a*b",))})
    began_s = time.thread_time()
    assert members.team_of("", "a" * MAX_NAME_BYTES) is None
    assert members.team_of("", "a" * MAX_NAME_BYTES + "c") is None
    assert time.thread_time() - began_s < 10


def test_long_names_are_compared_in_their_short_form() -> None:
    name = "x" * (MAX_NAME_BYTES + 1)
    assert Members({"blue": Team(users=(name,))}).team_of(bounded_name(name), "") == "blue"


@pytest.mark.parametrize(
    ("teams", "message"),
    [
        ({"a": {"users": ["x"]}, "b": {"users": ["x"]}}, 'teams.b.users[0] = "x": already a member of the team a'),
        ({"a": {"client_ids": ["x*"]}, "b": {"client_ids": ["x*"]}}, "already a member of the team a"),
        ({"a": {"users": "x"}}, 'teams.a.users = "x": expected a list of users, or patterns of them'),
        ({"a": {"users": [""]}}, 'teams.a.users[0] = "": expected a name, or a pattern in which * stands for'),
        ({"a": {"members": ["x"]}}, "teams.a.members: unknown key"),
        ({"<default>": {"users": ["x"]}}, 'teams."<default>": expected a name that is not empty and not in angle'),
        (["a"], "expected a table for each team, headed [plugins.options.team_quotas.teams.NAME]"),
    ],
)
def test_invalid_teams(teams: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"plugins\.options\.team_quotas") as caught:
        read_options(TeamOptions, {"teams": teams}, "team_quotas")
    assert message in str(caught.value)


def test_a_user_and_a_client_id_of_one_name_may_be_in_two_teams() -> None:
    options = {"teams": {"a": {"users": ["x"]}, "b": {"client_ids": ["x"]}}}
    members = Members(read_options(TeamOptions, options, "team_quotas").teams)
    assert (members.team_of("x", ""), members.team_of("y", "x")) == ("a", "b")
