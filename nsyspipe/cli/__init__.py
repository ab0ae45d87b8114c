"""The command line: arguments, one call of the API, outputs."""

from __future__ import annotations
