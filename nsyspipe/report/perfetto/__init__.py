"""Traces for Perfetto."""

from __future__ import annotations
