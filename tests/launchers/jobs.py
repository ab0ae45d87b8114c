"""Training programs that tests of the launchers start, and how they start them and sweeps of them."""

import shutil

from tests.launchers.fakes import LAUNCHERS, wait_for

# Says where it is, and goes on until it is told to end.
WAITING = """
import os, pathlib, time
pathlib.Path("up_" + os.environ.get("RANK", "0")).touch()
time.sleep(60)
"""
# As WAITING, but ends only when it is killed.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING
# As the training program says it, once its loop is over.
LOOP_OVER = """
import json, os, pathlib, time
path = pathlib.Path(os.environ["NSYSPIPE_STATUS_DIR"], f"ranges_{os.environ.get('RANK', 0)}.json")
path.write_text(json.dumps({"loop_ended": True}))
time.sleep(60)
"""
CRASHING = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(41)
time.sleep(60)
"""
# What a fake nsys does: the report is there while the program still runs, as with
# --capture-range-end=stop.
EARLY = '"$@" & cp "$reports/${RANK:-0}.sqlite" "$out.nsys-rep"; wait $!'
HANGS = "trap '' TERM INT HUP; \"$@\"; sleep 60; sleep 60"


def ddp(machine, *words, n=2, text="pass", **options):
    machine.put_program(text)
    return machine.run("ddp.sh", "--cpu", "-n", str(n), "--program", "train.py", *words, **options)


def starting(machine, *, text=WAITING, n=2, launcher="ddp.sh", **options):
    machine.put_program(text)
    process = machine.start(
        launcher, "--cpu", *(["-n", str(n)] if n > 1 else []), "--program", "train.py", **options
    )
    for rank in range(n):
        wait_for(machine.work / f"up_{rank}")
    return process


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
    folder = machine.root / "launchers"
    shutil.copytree(LAUNCHERS, folder, ignore=shutil.ignore_patterns("vit_*", "__pycache__"))
    (folder / "train_vit.py").write_text(TRAIN)
    (machine.root / "nsyspipe").symlink_to(LAUNCHERS.parent / "nsyspipe")
    return machine


def sweep(machine, *words, timeout=60):
    folder = machine.root / "launchers"
    return machine.run(
        "sweep.sh", *words, timeout=timeout, folder=folder if folder.is_dir() else LAUNCHERS
    )
