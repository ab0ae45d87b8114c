"""Pages that need nothing but themselves: one HTML file with its styles, scripts and data."""

from __future__ import annotations
