"""Copies of reports without what analysis does not need: environment, host, user, paths, processes."""
