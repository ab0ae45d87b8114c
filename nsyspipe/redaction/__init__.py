"""Copies of reports without what analysis does not need: environment, host, user, paths, processes.

A copy is a new database, filled table by table and column by column from the list of `tables`; no page of
the original is copied, so that nothing which only lies in the file (free pages, the log, comments of its
schema, indexes, triggers, views) can come along. Numbers must be numbers, and a text must have the form
that its place demands.
"""

from __future__ import annotations
