"""What can go wrong, told in a sentence each; anything else is a bug, and shows its traceback."""


class PipelineError(Exception):
    """A job cannot be done. ``str()`` names the value, the rule and the setting to change."""


class NoJavaError(PipelineError):
    """Spark needs Java, and there is none that will do."""


class NoJarsError(PipelineError):
    """The connector's jars cannot be had."""


class InputError(PipelineError):
    """What a job was given to read is not there, or not what it is to be."""


class OutputError(PipelineError):
    """Where a job was told to write to cannot be written to, or holds something else."""
