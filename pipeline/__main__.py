"""For spark-submit: ``spark-submit --py-files headrace-pipeline.zip pipeline/__main__.py JOB …``."""

from pipeline.cli import pipeline

if __name__ == "__main__":
    pipeline(prog_name="headrace pipeline")
