"""Launchers with the real nsys and torch, on CPUs."""

import json
import socket
import sys

from tests.cli.tools import environment, nsyspipe_here
from tests.launchers.fakes import Machine

TINY = ("--", "--model", "tiny", "--steps", "4", "--warmup", "2")
# A user's own program: three lines of ours.
OWN = """
import time
from nsyspipe.capture import annotate, captured_steps
for item in captured_steps(range({n}), warmup=1, steps=3, stop=True):
    with annotate("forward"):
        time.sleep({step_s})
"""


class RealMachine(Machine):
    """The machine that the tests run on, with a directory for what they write."""

    def set_up(self):
        self.work.mkdir()
        self.temporary.mkdir()
        return self

    @property
    def environment(self):
        places = {
            "PYTHON": sys.executable,
            "TMPDIR": str(self.temporary),
            "OF_MACHINE": str(self.root),
        }
        return environment() | places | self.variables

    def nsyspipe(self, *words):
        done = nsyspipe_here(*words, cwd=self.work)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def analysis(self, *reports):
        self.nsyspipe("analyze", *reports, "-q", "--json", "a.json")
        return json.loads((self.work / "a.json").read_text())


def steps_of(analysis, table="host_steps"):
    """Return the steps of each rank; of those on the host the complete ones."""
    found = {}
    for row in analysis[table]:
        if table == "steps" or row["is_complete"]:
            found.setdefault(row["rank"], []).append(row["step"])
    return found


def endpoint():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"
