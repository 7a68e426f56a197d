"""Computations on the tables: bills, recommendations, what-if answers, cost models, anomalies.

usage          functions of usage records that several jobs need
events         the amounts that are charged to quotas, and the times of the charges
rollup         sums by hour and day, and bills
teams          which users, client ids and topics belong to which team
prices         price sheets, for bills
shared_costs   the parts of teams in a shared cost
decimal_files  TOML files with amounts of money
recommend      quotas from recorded usage; a package
backtest       recommended quotas applied to later usage
what_if        usage charged to quotas
quota_files    quotas as files: read for what-if, written by recommend
calibrate      the cost model of requests, fitted to a broker
handler_times  the time of brokers' request handlers, from JmxTool
anomalies      deviations of a day from each entity's past
"""
