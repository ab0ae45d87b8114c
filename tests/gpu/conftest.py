"""A real nsys, found as the tests without a GPU find theirs."""

from __future__ import annotations

from tests.with_nsys.conftest import machine, nsys, with_nsys

__all__ = ["machine", "nsys", "with_nsys"]
