"""The pipeline under a scheduler: one run of ``headrace pipeline run`` each hour.

plan_run          runs a plan as a process, and reports after which failures the run can be repeated
airflow_operator  an operator for Airflow 3, and a DAG
dagster_job       an op for Dagster, a job and its schedule

The last two modules need the package ``apache-airflow`` or ``dagster``, which is not a dependency of Headrace. Copy
the module that you need, with `plan_run`, into your own project.
"""
