"""Nothing is imported from the current directory, where somebody else's reports may lie: every standard name is planted there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.build.programs import VERSION, program
from tests.cli.tools import ROOT, environment
from tests.launchers.conftest import lab, machine, reports  # noqa: F401 - fixtures
from tests.launchers.fakes import LAUNCHERS
from tests.launchers.jobs import sweep

pytestmark = pytest.mark.slow

# All that Python brings along, what it looks for at its start, what the project needs, and what
# that may use.
NAMES = sorted(
    sys.stdlib_module_names - set(sys.builtin_module_names)
    | {
        "sitecustomize",
        "usercustomize",
        "nsyspipe",
        "numpy",
        "pyarrow",
        "sqlalchemy",
        "adbc_driver_manager",
    }
    | {
        "adbc_driver_sqlite",
        "typer",
        "click",
        "rich",
        "jinja2",
        "markupsafe",
        "pandas",
        "polars",
        "perfetto",
        "google",
    }
    | {"typing_extensions", "greenlet", "torch", "nvtx", "shellingham", "pygments", "coverage"}
)
# Says by which process it was imported, then gives way to the module that is meant.
PLANTED = """
import posix, sys
mark = posix.open({mark!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND)
posix.write(mark, f"{{posix.getpid()}} {{__name__}} {{getattr(sys, 'orig_argv', None)}}\\n".encode())
posix.close(mark)
path = sys.path[:]
sys.path[:] = [one for one in path if one not in ("", ".", {here!r})]
del sys.modules[__name__]
__import__(__name__)
sys.path[:] = path
"""
LOAD = "import nsyspipe; print(nsyspipe.load('.', jobs=2).summary()['n_steps'].to_pylist())"
ANSWER = "[4]"


class Trap:
    def __init__(self, folder, mark):
        self.folder, self._mark = folder, mark
        for name in NAMES:
            (folder / f"{name}.py").write_text(PLANTED.format(mark=str(mark), here=str(folder)))

    def imports(self, *but_by):
        """Return what was imported, and by which command; not by processes, or commands with a word, that are the user's."""
        lines, words = (
            self._mark.read_text().splitlines() if self._mark.exists() else [],
            [*map(str, but_by)],
        )
        return [
            line
            for line in lines
            if line.split()[0] not in words and not any(one in line for one in words)
        ]


@pytest.fixture
def trap(
    steady, tmp_path_factory
):  # reports, and beside them all that Python could import by mistake
    return Trap(steady, tmp_path_factory.mktemp("mark") / "mark")


@pytest.fixture(scope="module")
def console_script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    (folder / "nsyspipe").write_text("from nsyspipe.__main__ import main\nmain()\n")
    text = (
        f'[ "$1" = export ] || {{ echo "{VERSION.strip()}"; exit; }}; '
        '[ "$2" != --help ] || { echo "--type --lazy --output --force-overwrite"; exit; }; '
        'for one in "$@"; do case "$one" in --output=*) out=${one#--output=};; esac; done; cp '
        '"$one" "$out"'
    )
    program(folder, "nsys", text)
    return folder / "nsyspipe"


def started(command, trap, expected_status=0, **variables):
    done = subprocess.run(
        list(map(str, command)),
        cwd=trap.folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expected_status, done
    return done


# One process after the other would import the same again.
IN_TURN = """
import shlex, sys
from nsyspipe.__main__ import main
for command in sys.argv[1:]:
    sys.argv[1:] = shlex.split(command)
    try:
        main()
    except SystemExit as end:
        print("==", end.code or 0, file=sys.stderr)
    else:
        print("==", 0, file=sys.stderr)
"""
COMMANDS = (
    (
        "analyze . -j 2 --findings all --json - --out saved --events --html run.html --perfetto "
        "run.pftrace"
    ),
    "analyze steady_0.nsys-rep steady_1.nsys-rep -j 2 -q",
    "doctor",
    "doctor . -j 2",
    "diff a=steady_0.sqlite b=steady_1.sqlite -j 1",
    "whatif . -j 1",
    "redact . redacted",
    "dashboard saved -o runs.html",
    "convert steady_0.nsys-rep steady_1.nsys-rep -j 2 -o exports",
    "--help",
    "analyze none",
)
# `whatif` answers nothing about the built run, and there are no reports named none.
ENDED_OTHERWISE = {"whatif . -j 1": 4, "analyze none": 2}


def test_no_command_imports_from_where_it_runs(trap, console_script, attempts, tmp_path_factory):
    for rank in range(2):
        report = trap.folder / f"steady_{rank}.sqlite"
        shutil.copy(report, report.with_suffix(".nsys-rep"))
    cache = tmp_path_factory.mktemp("cache")
    path = f"{console_script.parent}:{os.environ['PATH']}"
    in_turn = console_script.with_name("in_turn")
    in_turn.write_text(IN_TURN)
    done = started(
        [sys.executable, in_turn, *COMMANDS], trap, PATH=path, NSYSPIPE_CACHE_DIR=str(cache)
    )
    ended = [int(status) for status in re.findall("^== ([0-9]+)$", done.stderr, re.MULTILINE)]
    assert (
        dict(zip(COMMANDS, ended, strict=True)) == dict.fromkeys(COMMANDS, 0) | ENDED_OTHERWISE
    ), done
    assert json.JSONDecoder().raw_decode(done.stdout)[0]["run"]["n_ranks"] == 2
    assert trap.imports() == []
    attempts(len(COMMANDS) * len(NAMES))


@pytest.mark.parametrize(
    "python_path", [f":{ROOT}:.:{{here}}:", None]
)  # each of them would lead there
def test_workers_do_not_even_where_python_path_says_so(trap, console_script, python_path):
    """The program's own interpreter begins with that path before anything of ours runs."""
    here = str(trap.folder)
    variables = environment()
    variables["PYTHONPATH"] = str(ROOT) if python_path is None else python_path.format(here=here)
    start = ["-m", "nsyspipe"] if python_path is None else [console_script]
    if python_path is None:
        (trap.folder / "nsyspipe.py").unlink()  # what -m would run
    with subprocess.Popen(
        [sys.executable, *start, "analyze", ".", "-j", "2", "--json", "-"],
        cwd=trap.folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert json.loads(out)["run"]["n_ranks"] == 2
    assert trap.imports(process.pid) == []
    assert trap.imports() != []  # the trap works


SCRIPTS = {
    "of another directory, without a main guard, with pools of its own": "import multiprocessing, nsyspipe\n"
    "before = multiprocessing.get_start_method(allow_none=True)\n"
    f"{LOAD}\n"
    "assert multiprocessing.get_start_method(allow_none=True) == before\n"
    "assert multiprocessing.active_children() == []",
    "looks for modules where the reports are": "import os, sys\n"
    "os.chdir('/')\nsys.path[:0] = ['', '.', os.environ['HERE']]\n"
    "import nsyspipe\nnsyspipe.load(os.environ['HERE'], "
    f"jobs=1).summary()\nos.chdir(os.environ['HERE'])\n{LOAD}",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_workers_of_a_script_do_not(trap, tmp_path_factory, name):
    script = tmp_path_factory.mktemp("elsewhere") / "script.py"
    script.write_text(SCRIPTS[name])
    done = started([sys.executable, script], trap, HERE=str(trap.folder))
    assert (done.stdout.strip(), done.stderr) == (ANSWER, "")
    # A script that looks for modules there finds them there.
    assert trap.imports(*([script] if "looks" in name else [])) == []


@pytest.mark.parametrize("how", ["-c", "-i"])
def test_workers_of_a_notebook_do_not(trap, how):
    """Its interpreter has '' on its path, imports from there, and no main file."""
    text = LOAD
    if how == "-c":  # once more in a thread
        text += (
            f"\nimport threading\nthread = threading.Thread(target=lambda: exec({LOAD!r}, "
            f"{{}}))\nthread.start(); thread.join()"
        )
    words = ["-c", text] if how == "-c" else ["-q", how]
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=trap.folder,
        env=environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, errors = process.communicate("" if how == "-c" else text + "\n", timeout=300)
    assert process.returncode == 0, errors
    n_answers = 2 if how == "-c" else 1
    assert out.strip().splitlines()[-n_answers:] == [ANSWER] * n_answers, errors
    assert trap.imports(process.pid) == []
    assert trap.imports() != []


# Its own directory is the first of its path, as ever; ours is in PYTHONPATH, so that it can name
# its ranges.
TRAIN = """
import os, sys
import beside
print(beside.WORD, sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.flags.safe_path, sep="|")
print("PYTHONSAFEPATH" in os.environ, os.environ["PYTHONPATH"], sep="|")
"""
LAUNCHER_WORDS = {
    "baseline.sh": (),
    "ddp.sh": ("-n", "2"),
    "node.sh": ("--nnodes", "1", "--node-rank", "0", "-n", "2", "--rdzv-endpoint", "n0:29500"),
    "node.sh --node-wide": (
        "--nnodes",
        "1",
        "--node-rank",
        "0",
        "--rdzv-endpoint",
        "n0:29500",
        "--node-wide",
    ),
}


@pytest.fixture
def workshop(machine, tmp_path):  # noqa: F811 - the fixture
    """A machine whose working directory is planted, and whose training program is elsewhere, with a module of its own."""
    machine.put_python("")  # with all that Python imports as it starts
    project = tmp_path / "project"
    project.mkdir()
    (project / "beside.py").write_text("WORD = 'beside'\n")
    (project / "train.py").write_text(TRAIN)
    machine.variables["PYTHON"] = str(machine.root / "bin" / "python3")
    machine.trap = Trap(machine.work, tmp_path / "mark")
    machine.train = project / "train.py"
    return machine


def launched(workshop, launcher, *users, **own):
    """Return what a launcher says before and after it ran; only the training program's own imports may be from there."""
    words = (
        launcher.split()[0],
        "--cpu",
        *LAUNCHER_WORDS[launcher],
        "--program",
        str(workshop.train),
    )
    dry = workshop.run(*words, "--dry-run", timeout=120, **own)
    assert dry.status == 0, dry.err
    assert workshop.trap.imports(*users) == []
    answer = workshop.run(*words, timeout=120, **own)
    assert answer.status == 0, answer.err
    assert not [line for line in workshop.trap.imports(*users) if "train.py" not in line]
    return dry, answer


@pytest.mark.parametrize(
    ("launcher", "ending"),
    [("baseline.sh", "::."), ("ddp.sh", ""), ("node.sh", "::."), ("node.sh --node-wide", "")],
)
def test_launchers_do_not_and_training_programs_have_their_own_path(workshop, launcher, ending):
    path = f"{workshop.root}/site{ending}"
    workshop.variables["PYTHONPATH"] = path
    # The user's own: torchrun, and the program. They find what their path says.
    users = (str(workshop.root / "bin" / "torchrun"), f"'{workshop.train}'") if ending else ()
    _, answer = launched(workshop, launcher, *users)
    ranks = 2 if "2" in LAUNCHER_WORDS[launcher] else 1
    assert answer.out.count("beside|True|False") == ranks
    assert answer.out.count(f"False|{LAUNCHERS.parent}:{path}\n") == ranks


@pytest.mark.parametrize("launcher", ["ddp.sh", "node.sh --node-wide"])
def test_launchers_do_not_where_they_are_started_in_their_own_clone(workshop, launcher):
    """Its directory is on the training program's path, and reports are written there."""
    work = workshop.work
    for package in ("launchers", "nsyspipe"):
        shutil.copytree(
            LAUNCHERS.parent / package, work / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    dry, answer = launched(workshop, launcher, folder=work / "launchers")
    assert workshop.trap.imports() != []  # the trap works: the program's path is as ever
    assert f"False|{work}:{workshop.root}/site\n" in answer.out
    pasted = subprocess.run(
        shlex.split(dry.out),
        cwd=work,
        env=workshop.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"False|{work}:{workshop.root}/site\n" in pasted.stdout, pasted.stderr
    assert not [line for line in workshop.trap.imports() if "train.py" not in line]


def test_nothing_is_started_from_a_directory_named_like_the_python(workshop):
    program(workshop.work / "python3", "torchrun", "echo planted")
    workshop.variables["PYTHON"] = "python3"
    answer = workshop.run("ddp.sh", "--cpu", "--program", str(workshop.train), timeout=120)
    assert answer.status == 0, answer.err
    assert "beside|True|False" in answer.out
    assert "planted" not in answer.out
    dry = workshop.run("ddp.sh", "--cpu", "--program", str(workshop.train), "--dry-run")
    assert f"{workshop.root}/bin/python3" in shlex.split(dry.out)


def test_a_sweep_with_its_analysis_does_not(lab, tmp_path):  # noqa: F811 - the fixture
    lab.put_python("")
    there = Trap(lab.work, tmp_path / "mark")
    answer = sweep(lab, "-o", "study", "--cpu", "-n", "1", timeout=300)
    assert answer.status == 0, answer.err
    assert (lab.work / "study" / "compare.txt").exists()
    assert there.imports() == []
