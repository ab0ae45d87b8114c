"""Runs beside each other: differences with intervals, verdicts, scoreboards, the gate."""
