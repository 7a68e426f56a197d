"""The pipeline's speed and memory, on usage that is made up.

generate    usage as it could be, straight into a lake
run         records a second and core, on one core and on two; peak memory at some records and at four times as many
stage       one measured job, in a process of its own
"""
