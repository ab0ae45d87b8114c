"""A client of the server for agents reads nothing outside its roots, and learns nothing of what is there."""

import os
import shutil
import sys

import pytest

import nsyspipe
from nsyspipe.errors import InputError, NsyspipeError, ReportNotFoundError
from nsyspipe.mcp.arguments import AnalyzeArguments, DiffArguments, QueryArguments, WhatifArguments
from nsyspipe.mcp.roots import Roots
from nsyspipe.mcp.tools import Tools
from nsyspipe.store.write import save
from tests.build.plain_steps import write_run

STEPS = (((100, 20, 0, 0),) * 2,)
SECRET = "hidden"


@pytest.fixture(scope="module")
def made_place(tmp_path_factory):
    """Return a directory with a run that is not to be found, the same in a store, and another run."""
    folder = tmp_path_factory.mktemp("made")
    write_run(folder / SECRET, STEPS)
    write_run(folder / "good" / "run", STEPS)
    save(nsyspipe.load(folder / SECRET, jobs=1, label=SECRET), folder / "store")
    return folder


@pytest.fixture
def places(tmp_path, monkeypatch, made_place):
    """Return a directory with `root`, which has a run and a store, and `outside`, which has the same."""
    for name in ("root", "outside"):
        shutil.copytree(made_place, tmp_path / name)
    root = tmp_path / "root"
    (root / "inner" / "deep").mkdir(parents=True)
    monkeypatch.chdir(root)
    return tmp_path


@pytest.fixture
def tools(places):
    return Tools(Roots.of([places / "root"]))


def refusal(tools, argument):
    """Return the error of every tool for an argument; it is the same for all of them."""
    calls = (
        lambda: tools.analyze(AnalyzeArguments(reports=[argument])),
        lambda: tools.whatif(WhatifArguments(run=[argument])),
        lambda: tools.diff(DiffArguments(baseline=["good/run"], candidate=[argument])),
        lambda: tools.diff(DiffArguments(baseline=[argument], candidate=["good/run"])),
        lambda: tools.query(QueryArguments(run=argument, table="steps")),
    )
    errors = []
    for call in calls:
        with pytest.raises(NsyspipeError) as caught:
            call()
        errors.append(caught.value)
    assert len({(error.problem, error.found, error.fix) for error in errors}) == 1
    return errors[0]


# Arguments that lead to `outside`, where `TMP` is the directory of both.
OUTSIDE = (
    "/",
    "..",
    "../",
    "../outside",
    "../outside/hidden",
    "../outside/hidden/run_0.sqlite",
    "../outside/hidden/run_*.sqlite",
    "../outside/store",
    "../outside/store:hidden",
    "../root/../outside/hidden",
    "inner/../../outside/hidden",
    "missing/../../outside/hidden",
    "TMP/outside/hidden",
    "TMP/outside/hidden/*.sqlite",
    "TMP/outside/store:hidden",
    "TMP/outside/store/runs",
    "TMP/root/../outside/hidden",
    "//TMP/outside/hidden",
    "TMP/root/./inner/deep/../../../outside/hidden",
    "TMP/*/hidden",
    "TMP/out*/hidden/run_0.sqlite",
    "TMP/rootless",
    "/proc/self/environ",
    "/proc/self/cwd/../outside/hidden",
    "/dev/stdin",
    "hidden\0/../../outside",
    "\ud800",
    "a" * 5000,
    "hidden/" + "../" * 40 + "etc/passwd",
)


@pytest.mark.parametrize("argument", OUTSIDE, ids=range(len(OUTSIDE)))
def test_the_error_is_the_same_whether_something_is_outside_or_not(places, tools, argument):
    argument = argument.replace("TMP", str(places))
    with_target = refusal(tools, argument)
    shutil.rmtree(places / "outside")
    without_target = refusal(tools, argument)
    assert isinstance(with_target, InputError)
    assert with_target.lines() == without_target.lines()


def test_a_tilde_is_a_name_as_any_other(places, tools, monkeypatch):
    monkeypatch.setenv("HOME", str(places / "outside"))
    with pytest.raises(ReportNotFoundError):
        tools.analyze(AnalyzeArguments(reports=["~/hidden"]))


# Links in the root: their place, and where they lead. Then the argument of the client.
LINKS = (
    ("link", "outside", "link"),
    ("link", "outside", "link/hidden"),
    ("link", "outside", "link/hidden/run_0.sqlite"),
    ("link", "outside", "link/hidden/*.sqlite"),
    ("link", "outside", "link/store:hidden"),
    ("link", "outside", "link/nothing"),
    ("link", "outside", "l*k/hidden"),
    ("link", "outside", "*/hidden/run_0.sqlite"),
    ("link", "outside", "li"),
    ("link", "outside/store", "link:hidden"),
    ("link", "outside/store", "link"),
    ("link", "outside/hidden", "."),
    ("link", "outside/hidden", "missing"),
    ("hidden/run_1.sqlite", "outside/hidden/run_0.sqlite", "hidden"),
    ("hidden/run_1.sqlite", "outside/hidden/run_0.sqlite", "hidden/run_*.sqlite"),
    ("hidden/run_1.sqlite", "outside/hidden/run_0.sqlite", "hidden/run_1.sqlite"),
    ("hidden/run.nsyspipe.json", "outside/hidden/run_0.sqlite", "hidden"),
    ("hidden/run_0.sqlite-wal", "outside/hidden/run_0.sqlite", "hidden/run_0.sqlite"),
    ("hidden/run_0.sqlite-journal", "outside/hidden/run_0.sqlite", "hidden/run_*.sqlite"),
    ("hidden/run.nccl.log", "outside/hidden/run_0.sqlite", "hidden"),
    ("hidden/topo.txt", "outside/hidden/run_0.sqlite", "hidden"),
    ("inner/link", "outside", "inner"),
    ("inner/link", "outside", "inner/deep/../link/hidden"),
    ("inner/chain", "root/inner/chain2", "inner/chain"),
    ("store/link", "outside/store", "store:hidden"),
    ("store/events", "outside/store/runs", "store"),
)


@pytest.mark.parametrize(("place", "target", "argument"), LINKS)
def test_a_link_in_a_root_does_not_lead_out(places, tools, place, target, argument):
    (places / "root" / place).symlink_to(places / target)
    if place == "inner/chain":
        (places / "root" / "inner" / "chain2").symlink_to(places / "outside" / "hidden")
    with_target = refusal(tools, argument)
    shutil.rmtree(places / "outside")
    without_target = refusal(tools, argument)
    assert with_target.lines() == without_target.lines()
    assert str(places / "outside") not in "\n".join(with_target.lines())


def test_a_link_inside_a_root_is_followed(places, tools):
    (places / "root" / "inner" / "link").symlink_to(places / "root" / SECRET)
    answer = tools.analyze(AnalyzeArguments(reports=["inner/link"], keys=["run"]))
    assert "run_0.sqlite" in answer


@pytest.mark.parametrize("pattern", ["**/*.sqlite", "inner/*/../../hidden", "*/../../outside/*"])
def test_a_glob_that_goes_up_or_to_any_depth_is_refused(tools, pattern):
    refusal(tools, pattern)


def test_a_link_to_the_root_itself_does_not_let_a_glob_go_up(places, tools):
    (places / "root" / "inner" / "self").symlink_to(places / "root")
    refusal(tools, "inner/s*/../../outside/hidden")


def test_a_run_of_a_store_above_the_root_is_outside(places, monkeypatch):
    (directory,) = (places / "root" / "store" / "runs").iterdir()
    monkeypatch.chdir(directory)
    with pytest.raises(InputError, match="outside"):
        Tools(Roots.of([directory])).analyze(AnalyzeArguments(reports=["."]))


def test_a_root_may_be_named_by_a_link(places):
    (places / "alias").symlink_to(places / "root")
    tools = Tools(Roots.of([places / "alias"]))
    answers = {
        tools.analyze(AnalyzeArguments(reports=[str(places / name / SECRET)], keys=["run"]))
        for name in ("alias", "root")
    }
    assert len(answers) == 1


def test_a_second_root_is_readable_too(places):
    tools = Tools(Roots.of([places / "root" / "inner", places / "outside"]))
    asked = AnalyzeArguments(reports=[str(places / "outside" / SECRET)], keys=["run"])
    assert "run_0.sqlite" in tools.analyze(asked)


@pytest.mark.parametrize("root", ["root/missing", "root/hidden/run_0.sqlite"])
def test_a_root_must_be_a_directory(places, root):
    with pytest.raises(NsyspipeError):
        Roots.of([places / root])


def test_a_server_needs_a_root():
    with pytest.raises(NsyspipeError):
        Roots.of([])


@pytest.fixture
def opened_outside(places):
    """Yield the list of what is opened or listed outside, while the test runs."""
    opened = []
    outside = str(places / "outside")
    is_recording = [True]

    def record(event, arguments):
        is_of_files = event in {"open", "os.listdir", "os.scandir"}
        if is_recording[0] and is_of_files and str(arguments[0]).startswith(outside):
            opened.append(arguments[0])

    sys.addaudithook(record)  # for good
    yield opened
    is_recording[0] = False


def test_nothing_outside_is_opened_or_listed(places, tools, attempts, opened_outside):
    for place, target, _ in LINKS:
        link = places / "root" / place
        if not os.path.lexists(link):
            link.symlink_to(places / target)
    arguments = [*OUTSIDE, *(argument for _, _, argument in LINKS)]
    attempts(len(arguments))
    for argument in arguments:
        with pytest.raises(NsyspipeError):
            tools.analyze(AnalyzeArguments(reports=[argument.replace("TMP", str(places))]))
    assert opened_outside == []
