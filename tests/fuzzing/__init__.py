"""Fuzzing: targets, their corpus, and the tests that replay it. ``docs/contributing.md`` describes how to use it.

choices        decisions read from the bytes of an input
wire_messages  messages of Kafka's protocol, made from such decisions
targets        the targets: one function for each subject
typical_inputs inputs of targets that read decisions, for the corpus
running        running inputs with their checks; the corpus
"""
