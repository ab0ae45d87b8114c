"""The dataset that runs are saved in: written whole or not at all, and read back as runs."""

from __future__ import annotations
