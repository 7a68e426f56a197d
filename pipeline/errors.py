"""The exceptions that jobs report to users in one line. Any other exception is a bug and shows its traceback."""


class PipelineError(Exception):
    """A job cannot be run. ``str()`` names the value, the rule and the setting to change."""


class NoJavaError(PipelineError):
    """Java is missing, or is a version that Spark does not support."""


class NoJarsError(PipelineError):
    """The jars of Spark's Kafka connector cannot be downloaded."""


class InputError(PipelineError):
    """A job's input is missing or invalid."""


class OutputError(PipelineError):
    """A job's output cannot be written, or the place already holds something else."""


class ConflictError(OutputError):
    """Another job has changed what this one reads or writes. Nothing was written; it can be run again."""
