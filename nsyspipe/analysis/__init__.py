"""From operations to figures: pure functions of tables and arrays."""

from __future__ import annotations
