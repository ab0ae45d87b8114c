"""Which of N runs is best: figures side by side, the speed-up of each over the first, and what that is worth."""

from __future__ import annotations
