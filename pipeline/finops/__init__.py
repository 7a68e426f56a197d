"""Uses of bills: budgets with alerts, and the export in the columns of FOCUS.

budget_files  budgets, from a TOML file
spending      what teams have spent of their budgets, and the alerts for that
textfile      budgets as metrics for the textfile collector of node_exporter
webhook       alerts as a request to another service
focus         bills in the columns of FOCUS
"""
