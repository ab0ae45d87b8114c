"""A machine to start launchers on: fake nsys, torchrun, torch and nvidia-smi, and the launchers' answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path

from tests.build.fake_nsys import COPY, COUNTERS, NEW_OPTIONS, OLD_OPTIONS, fake_nsys
from tests.build.programs import HELP, listening, program, put, within

LAUNCHERS = Path(__file__).parents[2] / "launchers"
# Of an nsys that traces NCCL, samples Python and counts on several GPUs.
NEW_HELP = HELP.replace("'osrt',", "'osrt', 'nccl',") + (
    "\n\t--gpu-metrics-devices=\n\n\t--python-sampling=\n\n\t--python-sampling-frequency=\n"
)
# What a Python answers itself, as it would, if launchers ask whether it is new enough: each start of
# Python takes as long as all else that a launcher does before it refuses a word.
NEW_ENOUGH = '*"sys.version_info"*) exit ;;'
# What a fake nsys does with the program, which "$@" runs, and its report, $out.
CAPTURE = '"$@"; status=$?; cp "$reports/${RANK:-0}.sqlite" "$out.nsys-rep"; exit $status'

# Starts each rank in a session of its own, ends all when one fails or when asked to, as torchrun
# does.
TORCHRUN = f"""#!{sys.executable} -S
import os, signal, sys, time
words = sys.argv[1:]
at = words.index("--no-python")
options = dict(word[2:].partition("=")[::2] for word in words[:at])
n, node, nodes = (int(options.get(key, default)) for key, default in
                  (("nproc_per_node", 1), ("node_rank", 0), ("nnodes", 1)))
if os.path.exists("torchrun.broken"):
    sys.exit("fake torchrun: cannot connect")
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
there = {{}}
for local in range(n):
    os.environ.update(RANK=str(node * n + local), LOCAL_RANK=str(local), WORLD_SIZE=str(n * nodes))
    there[os.posix_spawnp(words[at + 1], words[at + 1:], os.environ, setsid=True)] = None
told = False
while None in there.values():
    for one in [one for one, status in there.items() if status is None]:
        ended, status = os.waitpid(one, os.WNOHANG)
        if ended:
            there[one] = status
    if not told and (asked or any(there.values())):
        told = True
        for one, status in there.items():
            if status is None:
                os.kill(one, signal.SIGTERM)
    time.sleep(0.02)
sys.exit(1 if asked or any(there.values()) else 0)
"""
_SHORT_BYTES = 50


def _captured(sidecar):
    rows = [
        [
            sidecar[name]
            for name in ("world_size", "trace", "capture_range", "nsys_version", "ended_by")
        ]
    ]
    of_ranks = ("rank", "report", "status", "is_complete", "problem")
    rows += [[rank[name] for name in of_ranks] for rank in sidecar["ranks"]]
    return "".join(f"    {json.dumps(row)}\n" for row in rows)


Answer = namedtuple("Answer", "status out err")


@dataclass
class Machine:
    """A directory with a bin/ of fake programs; launchers run in its work/."""

    root: Path
    reports: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def set_up(self) -> Machine:
        for folder in (self.work, self.temporary):
            folder.mkdir(parents=True)
        put(self.root, "site/torch/__init__.py", "")
        self.put_python(before=f'case "$*" in {NEW_ENOUGH} esac\n')
        program(self.root / "bin", "torchrun", "").write_text(TORCHRUN)
        self.put_nvtx()
        self.put_nsys()
        return self

    def put_nsys(
        self, profile=CAPTURE, *, name="nsys", help_text=HELP, export=COPY, counters=COUNTERS
    ):
        commands = {"capture": profile, "reports": self.reports}
        options = NEW_OPTIONS if help_text == NEW_HELP else OLD_OPTIONS
        commands |= {"options": options, "counters": counters}
        return fake_nsys(self.root / "bin", export, name=name, profile=help_text, **commands)

    def put_python(self, options="-S", before=""):
        """Put a Python; without site packages it starts faster, and sees no torch and no nvtx but the fake ones."""
        program(self.root / "bin", "python3", f'{before}exec "{sys.executable}" {options} "$@"')

    def put_plan(self, options="-S"):
        """Put a Python that answers itself what launchers ask before a capture on CPUs: nsys, and what it traces."""
        answer = f"printf '%s\\n' '{self.root}/bin/nsys' nvtx,osrt '' '' ''; exit"
        asked = f'{NEW_ENOUGH} *" nsyspipe.capture.plan --nproc"*)'
        self.put_python(options, f'case "$*" in {asked} {answer} ;; esac\n')

    def put_patience(self, module, **seconds):  # needs a Python with site packages
        self.put_python("")
        at_start = "if any('run_module.py' in word for word in sys.orig_argv):"
        lines = ["import sys", at_start, f"    import {module} as it"]
        lines += [f"    it.{name} = {value}" for name, value in seconds.items()]
        (self.root / "site" / "sitecustomize.py").write_text("\n".join(lines))

    def put_nvtx(self, version="0.2.11"):
        site = self.root / "site"
        put(site, "nvtx.py", "")
        put(
            site,
            "nvtx.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: nvtx\nVersion: {version}\n",
        )

    def put_gpus(self, n):
        lines = "\n".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})" for i in range(n))
        program(self.root / "bin", "nvidia-smi", f"cat <<'END'\n{lines}\nEND")

    def put_program(self, text, name="train.py"):
        put(self.work, name, text)

    @property
    def environment(self):
        kept = {name: os.environ[name] for name in ("LANG", "HOME") if name in os.environ}
        places = {
            "PYTHONPATH": self.root / "site",
            "TMPDIR": self.temporary,
            "XDG_STATE_HOME": self.root / "state",
        }
        kept |= {name: str(place) for name, place in places.items()} | {
            "PATH": f"{self.root}/bin:/usr/bin:/bin"
        }
        return (
            kept | {"PYTHONDONTWRITEBYTECODE": "1", "OF_MACHINE": str(self.root)} | self.variables
        )

    def start(self, launcher, *words, folder=LAUNCHERS, preexec_fn=listening, **options):
        options |= dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {
            "stdin": subprocess.DEVNULL,
            "text": True,
        }
        options |= {
            "cwd": self.work,
            "env": self.environment,
            "start_new_session": True,
            "preexec_fn": preexec_fn,
        }
        return subprocess.Popen([str(folder / launcher), *words], **options)

    def run(self, launcher, *words, timeout=30, **options):
        return ended(self.start(launcher, *words, **options), timeout)

    def files(self):
        return sorted(path.name for path in self.work.iterdir() if path.suffix != ".py")

    def marks(self):
        there = sorted(
            path for path in self.work.rglob("*") if path.is_file() and path.suffix != ".py"
        )
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in there}

    def without_places(self, text):
        places = {
            sys.executable: "PYTHON",
            self.root: "MACHINE",
            LAUNCHERS: "LAUNCHERS",
            LAUNCHERS.parent: "HERE",
        }
        for place, name in places.items():
            text = text.replace(str(place), name)
        text = re.sub(r"kept-\d+", "kept-PID", text)
        # By some shells, in time.
        return re.sub(r"^(err: (Terminated|Killed)|\+ up_\d: )\n", "", text, flags=re.MULTILINE)

    def refusal(self, answer):
        """Return what a launcher says from its error on."""
        _, error, rest = answer.err.partition("error: ")
        assert error, answer.err
        return self.without_places(error + rest).rstrip("\n")

    def told(self, answer, before):
        """Return all that a launcher said, and what it has left: ``=`` marks what was there and stayed."""
        text = f"status {answer.status}\n"
        for stream, lines in (("out", answer.out), ("err", answer.err)):
            text += "".join(f"{stream}: {line}\n" for line in lines.splitlines())
        for path, mark in self.marks().items():
            text += f"{'=' if before.get(path) == mark else '+'} {path.relative_to(self.work)}"
            is_short = path.stat().st_size < _SHORT_BYTES
            text += f": {path.read_text().strip()}\n" if is_short else "\n"
            if path.name.endswith(".capture.json") and not is_short:
                text += _captured(json.loads(path.read_text()))
        return self.without_places(text)

    def sidecar(self, name):
        return json.loads((self.work / f"{name}.capture.json").read_text())

    def left_behind(self):
        deadline = time.monotonic() + 2
        while (found := self._running()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    @contextlib.contextmanager
    def watched(self):
        """Be used; whatever was started here must have ended then, and left no temporary files."""
        yield self
        left = self.left_behind()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left
        assert not list(self.temporary.glob("nsyspipe-*"))

    def pids(self, module):
        running = self._running().items()
        start = ["-P", str(LAUNCHERS / "run_module.py"), module]
        return [
            pid
            for pid, command in running
            if [word for word in command.split() if word != "-S"][1:4] == start
        ]

    def _running(self):
        mark = f"OF_MACHINE={self.root}\0".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes() and (
                    words := (folder / "cmdline").read_bytes()
                ):
                    found[int(folder.name)] = words.replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
        return found


def ended(process, timeout=30):
    """Wait for a launcher; one that does not end is killed, and the test fails."""
    with process:  # whose pipes a process that is left may keep open
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Answer(process.returncode, out, err)


def wait_for(path, timeout=60):
    within(timeout, path.exists, path.name)
