"""Runs saved as Parquet, and read again."""
