"""An operator for Airflow 3 that runs a plan of the pipeline, and a DAG that does so each hour.

The operator returns the result, so other tasks find the numbers of each job in its XCom. If another job changed the
same tables at the same time, Airflow repeats the run by its retries. After any other error the task fails at once,
since a retry would fail, too.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from examples.orchestration.plan_run import PlanError, TryAgain, run_plan

if TYPE_CHECKING:
    from collections.abc import Sequence


class HeadracePipelineOperator(BaseOperator):
    """An operator that runs ``headrace pipeline run PLAN``."""

    template_fields = ("plan",)

    def __init__(self, *, plan: str, command: Sequence[str] = ("headrace",), **options: Any) -> None:
        super().__init__(**options)
        self.plan = plan
        self.command = command

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 -- Airflow's signature
        """Run the plan and return its result."""
        try:
            return run_plan(self.plan, self.command)
        except TryAgain as error:
            raise AirflowException(str(error)) from error
        except PlanError as error:
            raise AirflowFailException(str(error)) from error


with DAG(
    "headrace_pipeline",
    schedule="10 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),  # noqa: UP017 -- Airflow compares it
    catchup=False,
    max_active_runs=1,
) as dag:
    HeadracePipelineOperator(
        task_id="run", plan="/etc/headrace/pipeline.toml", retries=5, retry_delay=timedelta(minutes=2)
    )
