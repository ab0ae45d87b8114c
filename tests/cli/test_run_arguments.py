"""RUN arguments: labels, captures, and what is opened for them."""

import json
import re
import shutil

import pytest

import nsyspipe
from nsyspipe.cli.inputs import NamedRuns, opened_runs, parse_runs, split_label
from nsyspipe.cli.options import RunningOptions, SeveralRunsOptions
from nsyspipe.comparison.side import Side, distinguish_sides
from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.store.write import save
from tests.build.plain_steps import write_run
from tests.cli.conftest import refused
from tests.cli.tools import assert_refused, nsyspipe_here, python_run

STEPS = [(1000, 100, 40, 60)] * 3


def opened(arguments, **reading):
    with opened_runs(
        parse_runs(arguments), SeveralRunsOptions(**reading), RunningOptions(jobs=1)
    ) as found:
        return [
            (side.name, side.runs)
            for side in distinguish_sides([Side(runs[0].label, runs) for runs in found])
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for name in ("one", "two"):
        write_run(folder / name, [STEPS, STEPS])
        save(nsyspipe.load(folder / name, run_id=name, label=name, jobs=1), folder / "store")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_label_stands_before_the_first_equals_sign_unless_such_a_path_exists(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3").mkdir()
    (tmp_path / "lr=4_0.sqlite").touch()
    for argument, label, place in [
        ("base=runs/a=b", "base", "runs/a=b"),
        ("runs/*.sqlite", None, "runs/*.sqlite"),
        ("./x=y", None, "./x=y"),
        ("store/runs/run_id=7", None, "store/runs/run_id=7"),
        ("lr=3", None, "lr=3"),
        ("lr=4_*.sqlite", None, "lr=4_*.sqlite"),
        ("lr=5_*.sqlite", "lr", "5_*.sqlite"),
    ]:
        assert split_label(argument) == (label, place), argument
    for argument in ("=x", "a\x1b=x", "x" * 101 + "=y", "a="):
        with pytest.raises(OptionError, match="label"):
            split_label(argument)


COMMANDS = {
    "analyze": ["one"],
    "diff": ["one", "two"],
    "compare": ["one", "two"],
    "doctor": ["one"],
    "whatif": ["one"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_reports_of_ranks_that_are_asked_for_are_read_alone(folder, call, command, worded):
    for run in COMMANDS[command]:
        next((folder / run).glob("*_0.sqlite")).write_text("no report")
    done = call(command, *COMMANDS[command], "--ranks", "1", "--json", "-")
    answered = 4 if command == "whatif" else 0  # of one rank whatif answers nothing
    assert (done.exit_code, "_0.sqlite" in done.output) == (answered, False)
    saved = ["store:one", "store:two"][: len(COMMANDS[command])]
    for places, rank, case in (
        (COMMANDS[command], 2, "a rank that is not there"),
        (saved, 0, "a saved run"),
    ):
        worded(refused(call(command, *places, "--ranks", rank)), case)


def test_arguments_of_one_label_are_captures_of_one_run():
    unnamed = NamedRuns(None, ("x",))
    found = parse_runs(["b=3", "x", "a=1", "b=4", "x"])
    assert found == [NamedRuns("b", ("3", "4")), unnamed, NamedRuns("a", ("1",)), unnamed]


def test_a_glob_of_saved_runs_stands_for_each_of_them(folder):
    ids = "store/runs/run_id="
    places = (f"{ids}one", f"{ids}two", "one")
    assert parse_runs([f"{ids}*", "one"]) == [NamedRuns(None, (place,)) for place in places]
    assert parse_runs([f"day={ids}*"]) == [NamedRuns("day", (f"{ids}one", f"{ids}two"))]
    # A glob of reports is one run, and so is what matches other things too.
    assert [one.places for one in parse_runs(["o*", "*"])] == [("o*",), ("*",)]


@pytest.mark.slow
def test_ranks_of_an_unquoted_glob_are_refused(folder, worded):
    for rank in (0, 1):
        (folder / f"one/run_{rank}.nsys-rep").touch()
    for extra in (["one/run_0.nsys-rep", "one/run_1.nsys-rep"], []):
        with pytest.raises(RankConflictError) as caught:
            parse_runs([*extra, "one/run_0.sqlite", "one/run_1.sqlite", "two/"])
        assert caught.value.fix.startswith("'one/run_*.sqlite' two,"), extra
        worded(caught.value.lines(), "with raw reports" if extra else "exports alone")


def test_every_sort_of_argument_opens_a_run(folder):
    found = opened(["one", "two/run_*.sqlite", "two/run_0.sqlite", "store/runs/run_id=two"])
    # The files of the first two are called run_*, the directory of one as the last run.
    labels = [(label, runs[0].header.n_ranks) for label, runs in found]
    assert labels == [
        (f"{folder.name}/one", 2),
        (f"{folder.name}/two", 2),
        ("run_0", 1),
        ("two", 2),
    ]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("one/ two/", ["one", "two"]),
        ("one two/run_*.sqlite", ["one", "two"]),
        ("one one", ["run", "run (2)"]),
        ("a=one b=one", ["a", "b"]),
        ("run=one two", ["run", "two"]),
        ("x=store/runs/run_id=one y=two", ["x", "y"]),
    ],
)
def test_clashing_labels_become_directories_then_run_ids_then_numbers(folder, arguments, names):
    assert [label for label, _ in opened(arguments.split())] == names


def test_a_label_names_the_run_itself_too_and_captures_of_one_stay_together(folder):
    ((label, runs), (other, saved)) = opened(
        ["x=one", "y=store/runs/run_id=one", "x=store/runs/run_id=two"]
    )
    assert (label, runs[0].header.label, runs[1].header.run_id) == ("x", "x", "two")
    assert (other, saved[0].header.label) == ("y", "y")


@pytest.mark.slow
def test_saved_runs_alone_import_nothing_that_reads_reports(folder):
    done = python_run(
        "import sys; from nsyspipe.cli.inputs import opened_runs, parse_runs\n"
        "from nsyspipe.cli.options import RunningOptions, SeveralRunsOptions\n"
        "with opened_runs(parse_runs(['store/runs/run_id=one']), SeveralRunsOptions(), "
        "RunningOptions()) as found:\n"
        "    print(found[0][0].header.label)\n"
        "print(sorted({'sqlalchemy', 'rich', 'jinja2'} & set(sys.modules)))"
    )
    assert (done.stdout, done.stderr) == ("one\n[]\n", "")


# Two runs of two ranks each in one directory, and a store of both, the later one with the label of
# the other.
PATHS = {
    "unquoted": "one_0.sqlite one_1.sqlite",
    "glob": "one_*.sqlite",
    "directory": "alone",
    "of two": "mixed",
    "mixed": "mixed/one_0.sqlite mixed/one_1.sqlite mixed/two_0.sqlite mixed/two_1.sqlite",
    "store": "store",
    "id": "store:one",
    "label": "store:day",
}
# Of each command: which ways to name a run it takes. The others it refuses.
TAKEN = {
    "analyze {}": {"unquoted", "glob", "directory", "id", "label"},
    "whatif {}": {"unquoted", "glob", "directory", "id", "label"},
    "diff {} one_*.sqlite": {"glob", "directory", "id", "label"},
    "compare {}": {"glob", "directory", "store", "id", "label"},
    "doctor {}": {"unquoted", "glob", "directory", "of two", "mixed", "store"},
    "redact {} out": {"unquoted", "glob", "directory", "of two", "mixed"},
    "convert {}": set(),
    "dashboard {} -o -": {"store"},
}


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    for name, start in (("one", 10**18), ("two", 2 * 10**18)):
        write_run(folder / name, [STEPS, STEPS], start=start)
        for rank in range(2):
            for place in ("mixed", "alone", ".")[: 3 if name == "one" else 1]:
                (folder / place).mkdir(exist_ok=True)
                shutil.copy(
                    folder / name / f"run_{rank}.sqlite", folder / place / f"{name}_{rank}.sqlite"
                )
        save(
            nsyspipe.load(folder / name, run_id=name, label="day", jobs=1),
            folder / "store",
            events=True,
        )
    return folder


def ways_to_name_a_run():
    """Return each command with each way, as tests: at a desk one command that takes it, and all that refuse it."""
    commands_of_desk = {}
    for command, ways in TAKEN.items():
        for way in ways:
            commands_of_desk.setdefault(way, command)
    return [
        pytest.param(
            command,
            way,
            marks=pytest.mark.slow
            if way in TAKEN[command] and commands_of_desk[way] != command
            else (),
        )
        for command in TAKEN
        for way in PATHS
    ]


@pytest.mark.parametrize(("command", "way"), ways_to_name_a_run())
def test_every_command_takes_each_way_to_name_a_run_or_says_what_to_paste(
    named, command, way, worded
):
    shutil.rmtree(named / "out", ignore_errors=True)
    done = nsyspipe_here(*command.format(PATHS[way]).split(), cwd=named)
    if way in TAKEN[command]:
        answered = 4 if command.startswith("whatif") else 0  # of these runs whatif answers nothing
        assert (done.returncode, "error" in done.stderr) == (answered, False), done
    else:
        worded(assert_refused(done).replace(str(named), "NAMED"))


def test_the_latest_of_a_label_is_meant(named, monkeypatch):
    monkeypatch.chdir(named)
    assert [nsyspipe.load(f"store:{name}").header.run_id for name in ("day", "one")] == [
        "two",
        "one",
    ]
    with pytest.raises(OptionError) as caught:
        nsyspipe.load("store:night")
    assert caught.value.subject == "store:night"


@pytest.mark.slow
def test_a_name_that_is_an_id_and_a_label_is_refused_with_a_way_to_name_each(
    named, tmp_path, worded
):
    store = f"{shutil.copytree(named / 'store', tmp_path / 'store')}"
    path = nsyspipe.export.parquet(
        nsyspipe.load(named / "one", run_id="day", label="night", jobs=1), store
    )
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(f"{store}:day")
    worded(caught.value.lines())
    ways = re.findall(rf"{re.escape(store)}\S*(?=,)", str(caught.value.fix))
    assert (ways[0], [nsyspipe.load(way).header.run_id for way in ways]) == (
        str(path),
        ["day", "two"],
    )
    assert [side.runs[0].header.run_id for side in nsyspipe.compare(store).sides] == [
        "day",
        "one",
        "two",
    ]
    change = nsyspipe.diff(store, against="night")
    sides = [
        [run.header.run_id for run in side.runs] for side in (change.baseline, change.candidate)
    ]
    assert sides == [["day"], ["one", "two"]]


def test_no_name_is_not_that_of_a_run_which_cannot_be_read(named, tmp_path):
    store = shutil.copytree(named / "store", tmp_path / "store")
    (store / "runs" / "run_id=two" / "part-0.parquet").write_bytes(b"")
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(f"{store}:")
    assert caught.value.subject == f"{store}:"


def test_reading_options_hold_for_reports(folder):
    ((_, runs),) = opened(["one"], skip_first="0")
    assert runs[0].skipped_steps == []
    # A saved run beside them keeps the figures that it has.
    assert [
        run.skipped_steps for _, (run,) in opened(["one", "store/runs/run_id=one"], skip_first="0")
    ] == [[], [0]]


WORK = ("tokens_per_step", "samples_per_step", "flops_per_step")


def works_of(arguments, **reading):
    """Return the work of the steps of each run, by the name of its side."""
    works = {}
    for name, (run,) in opened(arguments, **reading):
        (summary,) = run.summary().to_pylist()
        (work,) = {
            tuple(row[column] for column in ("tokens", "samples", "flops"))
            for row in run.breakdown().to_pylist()
        }
        works[name] = (*work, summary["mfu"])
    return works


def test_the_work_of_a_step_holds_for_all_runs_or_for_one_label(folder):
    # A directory of that name is no reason to take the label for a part of a path.
    (folder / "y=200").mkdir()
    runs = ["x=one", "y=two"]
    seven_tokens = (7, None, None, None)
    assert works_of(runs, tokens_per_step=["7"]) == {"x": seven_tokens, "y": seven_tokens}
    labelled = works_of(
        runs,
        tokens_per_step=["y=200", "100"],
        samples_per_step=["x=3"],
        flops_per_step=["x=4.947e7", "y=9.894e7"],
        peak=["y=bf16", "x=tf32"],
    )
    # Both have 100 ns of ideal compute in a step of 1200 ns.
    assert labelled == {
        "x": (100, 3, 49_470_000, pytest.approx(1 / 12)),
        "y": (200, None, 98_940_000, pytest.approx(1 / 12)),
    }


@pytest.fixture
def prefixed(folder):
    """Return a directory of two runs that only their file names tell apart."""
    for name in ("one", "two"):
        for rank in range(2):
            shutil.copy(folder / name / f"run_{rank}.sqlite", folder / f"{name}_{rank}.sqlite")
    return folder


def test_the_label_of_a_run_without_one_is_that_of_its_file_names(prefixed):
    runs = ["one_*.sqlite", "two_*.sqlite"]
    labelled = works_of(runs, tokens_per_step=["one=100", "two=200"])
    assert labelled == {"one": (100, None, None, None), "two": (200, None, None, None)}
    # A label in front replaces that of the file names.
    assert works_of(["x=one_*.sqlite", "two_*.sqlite"], tokens_per_step=["two=7"]) == {
        "x": (None, None, None, None),
        "two": (7, None, None, None),
    }
    with pytest.raises(OptionError) as caught:
        opened(["x=one_*.sqlite", "two_*.sqlite"], tokens_per_step=["one=7"])
    assert caught.value.found == "x, two"


def test_a_log_may_belong_to_the_label_of_file_names(prefixed):
    text = "node0:1000:1000 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    (prefixed / "nccl.log").write_text(text)
    runs = opened(["one_*.sqlite", "two_*.sqlite"], nccl_log=["two=nccl.log"])
    assert [run.nccl is None for _, (run,) in runs] == [True, False]


def test_a_label_that_the_file_names_of_two_runs_give_is_refused(folder, worded):
    with pytest.raises(OptionError) as caught:
        opened(["one", "two"], tokens_per_step=["run=7"])
    assert caught.value.found == "run"
    worded(caught.value.lines())


def test_the_label_of_a_saved_run_is_known_but_its_work_too(folder):
    runs = ["store/runs/run_id=one", "two"]
    with pytest.raises(OptionError) as caught:
        opened(runs, tokens_per_step=["one=5"])
    assert "saved" in caught.value.problem


def test_compare_has_the_tokens_of_each_label(folder):
    options = ("--tokens-per-step", "120", "--tokens-per-step", "y=240", "--json", "-", "-j", "1")
    done = nsyspipe_here("compare", "x=one", "y=two", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    rates = {row["label"]: row["tokens_per_s"] for row in json.loads(done.stdout)["runs"]}
    # A step takes 1200 ns.
    assert rates == pytest.approx({"x": 1e8, "y": 2e8})


def test_all_captures_of_a_label_have_its_work(folder):
    named = parse_runs(["x=one", "x=two", "y=two"])
    reading = SeveralRunsOptions(tokens_per_step=["x=5"])
    with opened_runs(named, reading, RunningOptions(jobs=1)) as found:
        tokens = [[set(run.breakdown()["tokens"].to_pylist()) for run in runs] for runs in found]
    assert tokens == [[{5}, {5}], [{None}]]


@pytest.mark.parametrize("name", [*WORK, "peak"])
def test_work_of_an_unknown_label_is_refused_with_the_known_ones(folder, name):
    value = "bf16" if name == "peak" else "5"
    for argument in (f"z={value}", f"={value}", f"x=y={value}"):
        with pytest.raises(OptionError) as caught:
            opened(["x=one", "y=two"], **{name: [argument]})
        assert caught.value.found == "x, y"


@pytest.mark.parametrize("values", [["x=1", "x=2"], ["1", "2"], ["x=0"], ["x="], ["x=1", "y=z"]])
def test_two_values_or_none_are_refused_before_a_report_is_read(folder, values):
    (folder / "two" / "run_0.sqlite").write_text("no database")
    with pytest.raises(OptionError):
        opened(["x=two", "y=two"], tokens_per_step=values)


def test_a_saved_run_takes_no_work_by_its_label_and_keeps_its_own(folder):
    runs = ["x=store/runs/run_id=one", "y=two"]
    with pytest.raises(OptionError):
        opened(runs, tokens_per_step=["x=5"])
    assert works_of(runs, tokens_per_step=["5"]) == {"x": (None,) * 4, "y": (5, None, None, None)}


def test_a_log_may_belong_to_one_label(folder):
    (folder / "nccl.log").write_text("node0:1000:1000 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n")
    for log, lacking in (("y=nccl.log", [True, False]), ("nccl.log", [False, False])):
        assert [
            run.nccl is None for _, (run,) in opened(["x=one", "y=two"], nccl_log=[log])
        ] == lacking, log
    with pytest.raises(OptionError) as caught:
        opened(["x=one", "y=two"], nccl_log=["z=nccl.log"])
    assert caught.value.found == "x, y"
