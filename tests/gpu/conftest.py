"""A real nsys, found as the tests without a GPU find theirs."""

from tests.with_nsys.conftest import machine, nsys, with_nsys

__all__ = ["machine", "nsys", "with_nsys"]
