"""The user of a client certificate: its subject, and Kafka's mapping rules.

principals        the subject, and the user that the rules make of it
pattern_syntax    reading the regular expressions of those rules
mapping_patterns  matching them within a bound on the time
"""
