"""Sweeps whose training program takes no time."""

from __future__ import annotations

import shutil

from tests.launchers.fakes import LAUNCHERS

# Stands in for train_vit.py beside copies of the launchers.
TRAIN = """
import json, os, sys
words = sys.argv[1:]
path = words[words.index("--json") + 1]
if os.path.exists("broken") and open("broken").read().strip() in path:
    sys.exit(9)
with open("log", "a") as log:
    print(os.environ.get("RANK", "-"), os.environ.get("NCCL_P2P_DISABLE", "-"), *words, file=log)
if os.environ.get("RANK", "0") == "0":
    with open(path, "w") as file:
        json.dump({"world_size": int(os.environ.get("WORLD_SIZE", 1)), "images_per_s": 100.0}, file)
"""


def put_launchers(machine):
    """Give a machine launchers of its own, with another training program."""
    folder = machine.root / "launchers"
    shutil.copytree(LAUNCHERS, folder, ignore=shutil.ignore_patterns("vit_*", "__pycache__"))
    (folder / "train_vit.py").write_text(TRAIN)
    (machine.root / "nsyspipe").symlink_to(LAUNCHERS.parent / "nsyspipe")
    return machine


def sweep(machine, *words, timeout=60):
    """Run a sweep to its end, with the machine's own launchers if it has some."""
    folder = machine.root / "launchers"
    return machine.run("sweep.sh", *words, timeout=timeout, folder=folder if folder.is_dir() else LAUNCHERS)
