"""Fake programs that print what real ones do, and fake files of the system."""

import signal
import time
from pathlib import Path

# As nsys 2024.2.3 prints them; 2025.6 adds 'nccl' to the values.
VERSION = "NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0\n"
HELP = """\
\t--cuda-graph-trace=<granularity>[:<launch origin>]

\t   Set the granularity and launch origin for CUDA graph trace.
\t   Possible values for <granularity> are 'graph' or 'node'.

\t-o, --output=

\t   Output report filename.
\t   Note that this switch is applicable only when --trace=opengl is specified.

\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx', 'cublas-verbose',
\t   'osrt', 'python-gil' or 'none'.
\t   If 'none' is selected, no APIs are traced.
\t   Default is 'cuda,nvtx,osrt,opengl'. Application scope.
"""
STATUS = """\
CPU Profiling Environment Check
Linux Kernel Paranoid Level = 2
CPU Profiling Environment (process-tree): OK
CPU Profiling Environment (system-wide): Fail
"""
# as driver 580 prints them on two H200s
GPUS = "0, NVIDIA H200, 580.159.04\n1, NVIDIA H200, 580.159.04\n"
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\t0-31\t0\t\tN/A
GPU1\tNV18\t X \t0-31\t0\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""
DRIVER_FILE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"


def program(folder, name, script):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def printing(**outputs):
    cases = "\n".join(
        f"{name}) cat <<'END'\n{text}\nEND\n;;" for name, text in outputs.items() if text
    )
    return f"case $(echo $1 | tr -d -) in\n{cases}\n*) exit 3;;\nesac"


def put(root, path, text):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def listening():
    """Hear the signals that end a program, in a new process: pytest itself may run where they are ignored, as after ``&``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def have_ended(pids):
    return within(10, lambda: not any(map(is_running, pids.split())), f"{pids} end")


def within(seconds, condition, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.05)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
