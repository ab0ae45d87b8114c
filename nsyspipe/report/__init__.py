"""Words and documents for a run: the terminal summary and the JSON document."""

from __future__ import annotations
