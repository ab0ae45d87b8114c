"""The words that launchers take, and the ones they refuse: always one message with its fix, status 2, nothing written."""

from __future__ import annotations

import shlex

import pytest

from tests.launchers.fakes import LAUNCHERS


@pytest.fixture(autouse=True)
def _a_program(machine):
    machine.put_program("pass")


def command(machine, launcher, *words):
    answer = machine.run(launcher, "--cpu", "--dry-run", "--program", "train.py", *words)
    assert answer.status == 0, answer.err
    return shlex.split(answer.out)


NODE = ("--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node0:29500")


@pytest.mark.parametrize(
    ("launcher", "words", "said"),
    [
        ("ddp.sh", ["--bogus"], "--bogus: no such option"),
        ("ddp.sh", ["--bogus=1"], "--bogus: no such option"),
        ("ddp.sh", ["word"], "word: no such option"),
        ("ddp.sh", [""], ": no such option"),
        ("ddp.sh", ["-n"], "-n: needs a value"),
        ("ddp.sh", ["--output"], "--output: needs a value"),
        ("ddp.sh", ["-n", "0"], "-n 0: not a number of ranks"),
        ("ddp.sh", ["-n", "two"], "-n two: not a number"),
        ("ddp.sh", ["--ranks", "0;1"], "no list of ranks"),
        ("ddp.sh", ["--dry-run", "--ranks", "1"], "--ranks: there is no rank 1: this job's are 0 to 0"),
        ("ddp.sh", ["--timeout", "1m"], "'1m': not a number of seconds"),
        ("ddp.sh", ["--linger", ""], "'': not a number of seconds"),
        ("ddp.sh", ["--exit-timeout", "0"], "--exit-timeout 0: needs at least a second"),
        ("ddp.sh", ["--cuda-graph-trace", "all"], "--cuda-graph-trace all: unknown"),
        ("ddp.sh", ["--capture-range", "all"], "--capture-range all: unknown"),
        ("ddp.sh", ["-o", "captures/"], "a directory, and no name for the files in it"),
        ("ddp.sh", ["-o", "dir/a b"], "a space in the name of files"),
        ("ddp.sh", ["-o", "100%/run"], "has a %"),
        ("ddp.sh", ["--cpu=yes"], "yes: no such option"),
        ("ddp.sh", ["--trace", "nvtx,dx12"], "does not know dx12"),
        ("baseline.sh", ["-n", "2"], "-n: no such option: the baseline is one rank"),
        ("node.sh", [], "--nnodes '': not a number of nodes"),
        ("node.sh", ["--nnodes", "2"], "--node-rank '': not a number below --nnodes"),
        ("node.sh", [*NODE, "--node-rank", "2"], "--node-rank '2': not a number below"),
        ("node.sh", [*NODE, "--node-rank", "01"], "--node-rank '01': not a number below"),
        ("node.sh", [*NODE, "--rdzv-endpoint", "node0"], "not HOST:PORT"),
        ("node.sh", [*NODE, "--node-wide", "--ranks", "0"], "--node-wide --ranks"),
        ("node.sh", [*NODE, "-n", "a[$(touch owned)]"], "not a number of ranks"),
        ("sweep.sh", ["--program", "x.py"], "an option that its runs do not take"),
        ("sweep.sh", ["--force"], "an option that its runs do not take"),
        ("sweep.sh", ["--repeat", "0"], "--repeat 0: not a number of times"),
        ("sweep.sh", ["-n", "x"], "-n x: not a number of GPUs"),
        ("sweep.sh", ["--only", "nothing"], "matches no run"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_fix(machine, launcher, words, said):
    own = [] if launcher == "sweep.sh" else ["--program", "train.py"]
    answer = machine.run(launcher, "--cpu", *own, *words)
    assert answer.status == 2
    assert answer.out == ""
    assert said in answer.err.splitlines()[0]
    assert answer.err.startswith("error: ")
    assert answer.err.count("error:") == 1
    assert answer.err.splitlines()[-1].startswith("  fix: ")
    assert machine.files() == []


def test_a_program_without_its_option_is_told_which(machine):
    answer = machine.run("ddp.sh", "-n", "2", "train.py")
    assert answer.status == 2
    assert answer.err.splitlines() == [
        "error: train.py: no such option",
        "  fix: --program train.py; its arguments follow --",
    ]
    answer = machine.run("baseline.sh", "-n", "2")
    assert answer.err.splitlines()[-1] == "  fix: launchers/ddp.sh -n 2"


def test_ranks_of_all_nodes_may_be_named(machine):
    words = command(machine, "node.sh", *NODE, "-n", "2", "--ranks", "0,3")
    assert "--ranks=0,3" in words
    answer = machine.run("node.sh", "--cpu", "--program=train.py", *NODE, "-n", "2", "--ranks=4")
    assert "there is no rank 4: this job's are 0 to 3" in answer.err


def test_nsys_gets_one_list_of_variables_and_that_is_the_users(machine):
    words = command(machine, "baseline.sh", "--nsys-arg=--env-var=A=1")
    assert [word for word in words if word.startswith("--env-var")] == ["--env-var=A=1"]
    assert "NSYS_NVTX_PROFILER_REGISTER_ONLY=0" in words[1 : words.index(str(machine.root / "bin/python3"))]


def test_a_value_may_follow_an_equals_sign_or_stand_alone(machine):
    assert command(machine, "ddp.sh", "-n", "3", "--output=x/y", "--nproc=2") == command(
        machine, "ddp.sh", "--nproc_per_node", "2", "-o", "x/y"
    )


def test_what_follows_two_dashes_goes_to_the_program_word_for_word(machine):
    odd = ["--dry-run", "-o", "a b", "", "it's", 'say "x"', "$HOME", "*", "--", "new\nline", "ä"]
    for launcher in ("baseline.sh", "ddp.sh"):
        words = command(machine, launcher, "--", *odd)
        assert words[-len(odd) - 1 :] == ["train.py", *odd]


def test_the_program_gets_exactly_these_words(machine):
    machine.put_program("import sys; print(ascii(sys.argv[1:]))")
    odd = ["a b", "", "it's", 'say "x"', "$HOME", "*", "--", "-x"]
    answer = machine.run("ddp.sh", "--cpu", "--program", "train.py", "--", *odd)
    assert answer.out.splitlines() == [ascii(odd)]
    assert answer.status == 0


def test_files_and_directories_may_have_odd_names(machine):
    folder = "it's a dir$"
    (machine.work / folder).mkdir()
    (machine.work / folder / "-t.py").write_text("print('here')")
    odd = f"{folder}/-x'\"$[1]"
    answer = machine.run("ddp.sh", "--cpu", "--program", f"{folder}/-t.py", "-o", odd)
    assert (answer.status, answer.out) == (0, "here\n")
    assert sorted(path.name for path in (machine.work / folder).iterdir()) == [
        "-t.py",
        "-x'\"$[1].capture.json",
        "-x'\"$[1]_0.nsys-rep",
        "-x'\"$[1]_0.sqlite",
    ]


def test_names_may_begin_with_a_dash(machine):
    machine.put_program("print('here')", "-t.py")
    answer = machine.run("baseline.sh", "--cpu", "--program", "-t.py", "--output=-x")
    assert (answer.status, answer.out) == (0, "here\n")
    assert machine.files() == ["-x.capture.json", "-x_0.nsys-rep", "-x_0.sqlite"]


def test_a_launcher_may_be_started_through_a_link(machine, tmp_path):
    links = tmp_path / "a link"
    links.mkdir()
    (links / "ddp.sh").symlink_to(LAUNCHERS / "ddp.sh")
    answer = machine.run("ddp.sh", "--cpu", "--program", "train.py", folder=links)
    assert answer.status == 0


def test_the_variable_nsys_names_one_and_the_option_wins(machine):
    machine.put_nsys(name="other")
    machine.variables["NSYS"] = str(machine.root / "bin" / "other")
    assert machine.variables["NSYS"] in command(machine, "ddp.sh")
    assert "other" not in " ".join(command(machine, "ddp.sh", "--nsys", str(machine.root / "bin/nsys")))
