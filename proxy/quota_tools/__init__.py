"""The commands ``headrace quotas`` and ``headrace client-quotas`` (KIP-546): quotas of the proxy, or of a broker.

The modules with commands are imported to show the help; they import the others when a command is called.

    quotas_command         the group ``headrace quotas``
    plan_commands          its commands ``apply``, ``diff`` and ``import``
    client_quotas_command  ``headrace client-quotas``, with the options of KIP-546
    options                options, completion, errors and output of all commands
    arguments              the arguments: entities, filters, and new values
    cluster                describing and altering the quotas of a cluster, in batches
    files                  quotas as TOML or JSON files
    plans                  the steps from some quotas to others
    resolution             which quotas apply to a client
    audit                  the audit records of changes: reading, selecting, output
    text                   output for people
    json_form              output as JSON
    errors                 the errors of these commands
"""
