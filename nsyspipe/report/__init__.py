"""Words, tables, documents and pages for people and other programs."""

from __future__ import annotations
