"""Runs beside each other: differences with intervals, verdicts, scoreboards, the gate."""

from __future__ import annotations
