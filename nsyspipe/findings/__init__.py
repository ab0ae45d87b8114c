"""What to change, and what it could bring at most: one file per rule."""
