"""One question per file: a pure function of tables or columns, with its formula in the docstring."""

from __future__ import annotations
