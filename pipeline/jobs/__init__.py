"""The command of each job. It reads options, calls the functions of `pipeline.analysis` and others, and prints results.

ingest     ``headrace pipeline ingest``
instances  ``headrace pipeline instances``
rollup     ``headrace pipeline rollup``
recommend  ``headrace pipeline recommend``
what_if    ``headrace pipeline what-if``
calibrate  ``headrace pipeline calibrate``
anomalies  ``headrace pipeline anomalies``
report     ``headrace pipeline report``
compact    ``headrace pipeline compact``
retain     ``headrace pipeline retain``
migrate    ``headrace pipeline migrate``
zip        ``headrace pipeline zip``
"""
