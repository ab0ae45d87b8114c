"""The version, in a module of its own: every room may name it, and `nsyspipe` itself imports the highest ones."""

from __future__ import annotations

__version__ = "0.1.0"
