"""Loading and calling plugins, and combining and recording their verdicts.

loading             finding and registering plugins
calls               calling hooks, and handling exceptions of plugins
implementations     the implementations of each hook, in the order of their calls
quota_schema        the quota keys and entity types of all plugins and the built-in ones
enforced_quotas     which quotas the plugins enforce, and the callbacks for entity types of plugins
plugin_errors       exceptions of plugins: what is kept from the proxy, and how they are described
slow_calls          measuring how long plugins hold the event loop
combined_verdicts   combining and checking the verdicts of several callbacks
decisions           recent decisions with their reasons: counters, log lines, ``headrace why``
enforcement_switch  whether quotas are enforced, and which clients are exempt
"""
