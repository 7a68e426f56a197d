"""What follows from the tables: bills, recommendations, what-if answers, cost models, anomalies.

usage              what several jobs ask of usage records
events             usage records and traces as the events that quotas are charged with
rollup             hours, days, bills
prices             price sheets, for bills
recommend          quotas from what was used
what_if            usage against quotas
waiting            what becomes of usage when its senders wait
traces             the traces of replay, for what_if
quota_files        quotas as files: read for what-if, written by recommend
calibrate          the cost model of requests, fitted to a broker
handler_times      the time of brokers' request handlers, from JmxTool
anomalies          what is unlike each entity's past
anomaly_baselines  windows of usage, and what is usual in them
"""
