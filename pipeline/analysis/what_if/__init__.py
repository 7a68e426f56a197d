"""What-if: usage charged to quotas by the code with which the proxy enforces them.

quotas           the quotas to apply, and their windows
answers          usage charged to quotas that never change: who would be throttled, by hour and bucket
demand           what throttled senders would have used while they were muted
buckets          the buckets that usage is charged to, by number
totals           the charges of one bucket after the other, summed by hour
never_throttled  charges to rates that are certainly not throttled, found for many buckets at once
loop             the charges of one bucket, one after the other, as recorded and with waiting senders
waiting          usage whose senders wait for their throttle times
traces           the traces of replay, as events and quotas
decisions        the verdict on each event of a trace
"""
