"""The command line: parses, calls one Python function, writes the result."""

from __future__ import annotations
