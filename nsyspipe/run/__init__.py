"""From reports to one run: processes read in parallel, placed as ranks, matched across ranks."""

from __future__ import annotations
