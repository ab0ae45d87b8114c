"""What changed between two runs: figures with intervals, parts of the step time, kernels, and what is around them."""

from __future__ import annotations
