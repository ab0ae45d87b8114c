"""Copies of reports without private data that analysis does not need: names, paths, processes."""
