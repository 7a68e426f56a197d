"""The thin entry of each job: options in, a pure function of `pipeline` called, its outcome printed.

ingest     ``headrace pipeline ingest``
instances  ``headrace pipeline instances``
rollup     ``headrace pipeline rollup``
recommend  ``headrace pipeline recommend``
what_if    ``headrace pipeline what-if``
calibrate  ``headrace pipeline calibrate``
anomalies  ``headrace pipeline anomalies``
report     ``headrace pipeline report``
zip        ``headrace pipeline zip``
"""
