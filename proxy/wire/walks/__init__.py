"""Walks through large bodies, which read the heads and leave the records between them unread.

body           walking a body past what lies between its heads, common to the walks of Fetch and Produce
fetch          a Fetch reply walked past its records, its leader hints made inert
produce        a Produce request walked from batch to batch: topics, sizes, producer ids
produce_reply  the end of a Produce reply: throttle time and leader hints
"""
