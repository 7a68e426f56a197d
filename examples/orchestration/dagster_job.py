"""An op for Dagster that runs a plan of the pipeline, a job, and its schedule for each hour.

The op's output is the result, and its metadata has the numbers of each job. If another job changed the same tables at
the same time, Dagster repeats the run. After any other error the op fails at once, since a retry would fail, too.
"""

# Dagster reads annotations at run time, so they are not postponed here.

from typing import Any

import dagster

from examples.orchestration.plan_run import PlanError, TryAgain, run_plan


class PlanConfig(dagster.Config):
    """The plan to run, and the command that runs it."""

    plan: str = "/etc/headrace/pipeline.toml"
    command: list[str] = ["headrace"]  # noqa: RUF012 -- Dagster copies it
    retries: int = 5
    retry_delay_s: float = 120


@dagster.op
def run_pipeline(context: dagster.OpExecutionContext, config: PlanConfig) -> dict[str, Any]:
    """Run the plan and return its result."""
    try:
        result = run_plan(config.plan, config.command)
    except TryAgain as error:
        raise dagster.RetryRequested(max_retries=config.retries, seconds_to_wait=config.retry_delay_s) from error
    except PlanError as error:
        raise dagster.Failure(str(error), allow_retries=False) from error
    context.add_output_metadata({each["job"]: dagster.MetadataValue.json(each) for each in result["jobs"]})
    return result


@dagster.job
def headrace_pipeline() -> None:
    """Run the plan."""
    run_pipeline()


hourly = dagster.ScheduleDefinition(job=headrace_pipeline, cron_schedule="10 * * * *")
definitions = dagster.Definitions(jobs=[headrace_pipeline], schedules=[hourly])
