#!/usr/bin/env python3
"""Train a vision transformer on synthetic images: the workload of the study, alone or under torchrun.

Its loop is what users put into theirs: `captured_steps` around the loader, `annotate` around the
phases. It runs on GPUs with NCCL, and without one, small, on CPUs with gloo. ``--help`` lists what
can be varied.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from pathlib import Path

import vit_options

sys.path.append(
    str(Path(__file__).resolve().parent.parent)
)  # installed or not: the package lies beside this directory


def main() -> None:
    """Train as the options say; the exit status is 0 if every step was made."""
    options = vit_options.parse()
    if importlib.util.find_spec("torch") is None:
        sys.exit("error: train_vit.py needs PyTorch: pip install torch")
    rank = importlib.import_module("vit_loop").run(
        options
    )  # after the options: torch takes seconds
    if vit_options.hangs(options, rank):
        print(f"demonstration: --hang-at-exit: rank {rank} never ends now", flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
