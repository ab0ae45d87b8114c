"""What to change first: one rule per file, each with its evidence and the most that following it could bring."""

from __future__ import annotations
