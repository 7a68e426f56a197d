"""Finding, loading and calling plugins, and what follows from their verdicts.

loading             finding and registering plugins
calls               calling them, and what happens when they raise
combined_verdicts   the verdicts of several callbacks, put together
decisions           what was decided and why: log, page, ``headrace why``
enforcement_switch  whether quotas are enforced now, and who is exempt
"""
