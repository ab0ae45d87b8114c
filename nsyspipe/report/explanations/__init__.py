"""What `nsyspipe explain` says about findings, notes, metrics and words.

The terminal and the docs have one source.
"""
