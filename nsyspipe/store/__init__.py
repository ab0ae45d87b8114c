"""Runs saved as Parquet, and read again."""

from __future__ import annotations
