"""A plugin with which a proxy that starts waits for the broker's answer for longer than a busy machine takes."""

from headrace.proxy.server import server

headrace_hooks = 1
server.FIRST_ANSWER_S = 20.0
