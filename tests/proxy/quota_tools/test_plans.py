"""Plans lead from what there is to what is wanted."""

from __future__ import annotations

from hypothesis import given

from headrace.proxy.quota_tools.plans import Action, make_plan
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quota_tools.entities import QUOTAS

Quotas = dict[QuotaEntity, dict[str, float]]


def flat(quotas: Quotas) -> dict[tuple[QuotaEntity, str], float]:
    return {(entity, key): value for entity, values in quotas.items() for key, value in values.items()}


@given(QUOTAS, QUOTAS)
def test_it_leads_there(current: Quotas, wanted: Quotas) -> None:
    before, goal = flat(current), flat(wanted)
    for prune in (True, False):
        plan = make_plan(current, wanted, prune=prune)
        after = dict(before)
        for step in plan.steps:
            assert after.pop((step.entity, step.key), None) == step.old
            if step.new is not None:
                after[step.entity, step.key] = step.new
        assert after == (goal if prune else before | goal)
        assert plan.unchanged == len(before.items() & goal.items())
        assert plan.kept == (0 if prune else len(before.keys() - goal.keys()))
        assert sum(map(plan.count, Action)) == len(plan.steps)
        assert sum(map(len, plan.by_entity().values())) == len(plan.steps)


@given(QUOTAS)
def test_nothing_to_do(quotas: Quotas) -> None:
    assert make_plan(quotas, quotas, prune=True).steps == ()


def test_steps_are_left_out() -> None:
    one, two = QuotaEntity(user="one"), QuotaEntity(user="two")
    plan = make_plan({}, {one: {"a": 1.0, "b": 2.0}, two: {"a": 3.0}}, prune=False).without({(one, "a")})
    assert plan.by_entity() == {one: {"b": 2.0}, two: {"a": 3.0}}
    assert plan.count("add") == 2
