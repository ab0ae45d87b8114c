"""The version of nsyspipe. Every room may import this module."""

__version__ = "0.1.0"
