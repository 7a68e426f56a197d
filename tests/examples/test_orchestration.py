"""The pipeline under real schedulers, each installed in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.environments import environment_with
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
HEADRACE = Path(sys.executable).parent / "headrace"

IN_AIRFLOW = """
import json, sys
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from examples.orchestration.airflow_operator import HeadracePipelineOperator, dag

assert [task.task_id for task in dag.tasks] == ["run"] and dag.tasks[0].retries == 5
plan, broken, *command = sys.argv[1:]
print("result", json.dumps(HeadracePipelineOperator(task_id="x", plan=plan, command=command).execute({})))
for given, raised in (((broken, command), AirflowFailException), ((plan, ["sh", "-c", "exit 75"]), AirflowException)):
    try:
        HeadracePipelineOperator(task_id="y", plan=given[0], command=given[1]).execute({})
    except AirflowException as error:
        assert type(error) is raised, error
        print("failure", error)
    else:
        raise AssertionError(given)
"""

IN_DAGSTER = """
import json, sys
from examples.orchestration.dagster_job import definitions, headrace_pipeline

assert definitions.resolve_schedule_def("headrace_pipeline_schedule").cron_schedule == "10 * * * *"
plan, broken, *command = sys.argv[1:]

def run(plan, command):
    config = {"plan": plan, "command": command, "retries": 2, "retry_delay_s": 0.1}
    return headrace_pipeline.execute_in_process({"ops": {"run_pipeline": {"config": config}}}, raise_on_error=False)

done = run(plan, command)
assert done.success
print("result", json.dumps(done.output_for_node("run_pipeline")))
failed = run(broken, command)
(event,) = [event for event in failed.all_events if event.event_type_value == "STEP_FAILURE"]
print("failure", event.step_failure_data.error.message)
again = run(plan, ["sh", "-c", "exit 75"])
assert not again.success
print("failure", len([event for event in again.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]), "retries")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("package", "script", "message"),
    [
        ("apache-airflow==3.3.2", IN_AIRFLOW, "headrace pipeline run .* ended with status 75"),
        ("dagster==1.13.29", IN_DAGSTER, "2 retries"),
    ],
)
def test_a_scheduler_runs_a_plan_and_knows_what_to_repeat(
    tmp_path: Path, package: str, script: str, message: str
) -> None:
    python = environment_with(tmp_path / "venv", package) / "python"
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *(record(NOON + second) for second in range(5)))
    plan, broken = tmp_path / "plan.toml", tmp_path / "broken.toml"
    plan.write_text(f'lake = "{tmp_path}/lake"\n[ingest]\nfrom-files = "{tmp_path}/in"\n', encoding="utf-8")
    broken.write_text(f'lake = "{tmp_path}/nowhere"\n[rollup]\n', encoding="utf-8")
    found = run([str(python), "-c", script, str(plan), str(broken), str(HEADRACE)])
    result, refused, last = re.findall(r"^(?:result|failure) (.*)", found, re.MULTILINE)
    (ingested,) = json.loads(result)["jobs"]
    assert ingested["records"] == 5
    assert "rollup: --lake" in refused
    assert "does not exist" in refused
    assert re.search(message, last)


def run(command: Sequence[str]) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout
