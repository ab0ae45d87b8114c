"""Pages: one file each, offline, under a strict content security policy."""

from __future__ import annotations
