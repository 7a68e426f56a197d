"""The pipeline under a scheduler: one run of ``headrace pipeline run`` each hour.

plan_run          runs a plan as a process, and distinguishes failures that can be repeated
airflow_operator  an operator for Airflow 3, and a DAG
dagster_job       an op for Dagster, a job and its schedule

The two last modules need the package ``apache-airflow`` or ``dagster``, which is no dependency of Headrace. Copy the
module that you need, with `plan_run`, into your own project.
"""
