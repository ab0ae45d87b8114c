"""What `nsyspipe explain` says about findings, notes, metrics and words: one source for the terminal and for the docs."""
