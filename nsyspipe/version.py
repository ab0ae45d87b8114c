"""The version, in a module of its own: every room may name it, and `nsyspipe` itself imports the highest ones."""

__version__ = "0.1.0"
