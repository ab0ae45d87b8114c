"""Writing a run for people and other programs: pages, documents, traces, datasets.

>>> from nsyspipe import export
>>> run = nsyspipe.load("ddp-8gpu_*.sqlite")  # doctest: +SKIP
>>> export.write(run, "run.html")  # doctest: +SKIP
>>> export.parquet(run, "runs/")  # doctest: +SKIP
"""

from __future__ import annotations

from nsyspipe.export.writing import parquet, write

__all__ = ["parquet", "write"]
