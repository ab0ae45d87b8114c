"""What to change, and what it could bring at most: the rules, one file per subject."""
