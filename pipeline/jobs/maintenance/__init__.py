"""The commands that look after the lake, and the zip for a cluster.

compact  ``headrace pipeline compact``
retain   ``headrace pipeline retain``
migrate  ``headrace pipeline migrate``
zip      ``headrace pipeline zip``
"""
