"""For spark-submit: ``spark-submit --py-files headrace-pipeline.zip headrace/pipeline/__main__.py JOB …``."""

from headrace.pipeline.cli import pipeline

if __name__ == "__main__":
    pipeline(prog_name="headrace pipeline")
