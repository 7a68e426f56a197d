"""What ships beside the core; each is loaded through the entry points ``headrace.plugins``, as a stranger's plugin is.

tracing     OpenTelemetry traces of requests
"""
