"""What the tools answer: the bytes of the command line, some keys of them, or its errors."""

import inspect
import json
import os
import shutil

import pytest

import nsyspipe
from nsyspipe.errors import InputError, NotAReportError, NsyspipeError, OptionError
from nsyspipe.mcp.arguments import AnalyzeArguments, DiffArguments, WhatifArguments, parse
from nsyspipe.mcp.roots import Roots
from nsyspipe.mcp.tools import Tools, with_keys
from tests.cli.tools import nsyspipe_here

KINDS = {"analyze": AnalyzeArguments, "diff": DiffArguments, "whatif": WhatifArguments}


def test_changes_are_the_parameters_of_the_call():
    parameters = inspect.signature(nsyspipe.whatif).parameters.values()
    changes = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert WhatifArguments(run=["a"], step="b", keys=["c"]).changes() == changes


class MoreArguments(WhatifArguments, frozen=True):
    """Arguments with one change more."""

    larger_batch: bool = False


def test_a_further_change_needs_no_second_place():
    assert MoreArguments(run=["a"], larger_batch=True).changes()["larger_batch"] is True


def answered(tools, tool, **arguments):
    return getattr(tools, tool)(parse(tool, KINDS[tool], arguments))


B25, B25_SHM = "2gpu-gpt-b25_*.sqlite", "2gpu-gpt-b25-shm_*.sqlite"
# Words of a command, the tool, and its arguments.
SAME_BYTES = {
    "analyze": ("analyze ddp-4gpu-shm_*.sqlite", {"reports": ["ddp-4gpu-shm_*.sqlite"]}),
    "analyze some ranks": (
        "analyze 2gpu-tp_0.sqlite 2gpu-tp_1.sqlite --ranks 1 --skip-first 2",
        {"reports": ["2gpu-tp_0.sqlite", "2gpu-tp_1.sqlite"], "ranks": "1", "skip_first": 2},
    ),
    "analyze without ranges": (
        "analyze 2gpu-moe_*.sqlite --step repetition --steps 8 --label moe",
        {"reports": ["2gpu-moe_*.sqlite"], "step": "repetition", "steps": 8, "label": "moe"},
    ),
    "diff": (
        "diff ddp-4gpu-shm_*.sqlite ddp-4gpu-shm-bucket100_*.sqlite",
        {"baseline": ["ddp-4gpu-shm_*.sqlite"], "candidate": ["ddp-4gpu-shm-bucket100_*.sqlite"]},
    ),
    "diff with thresholds": (
        f"diff a={B25} b={B25_SHM} --metric step_time,idle --min-effect 3% --confidence 0.9",
        {
            "baseline": [B25],
            "candidate": [B25_SHM],
            "baseline_label": "a",
            "candidate_label": "b",
            "metrics": ["step_time", "idle"],
            "min_effect": "3%",
            "confidence": 0.9,
        },
    ),
    "whatif": ("whatif ddp-4gpu-shm_*.sqlite", {"run": ["ddp-4gpu-shm_*.sqlite"]}),
    "whatif with changes": (
        f"whatif {B25_SHM} --link nvlink4 --gradient-dtype bf16 --no-grad-copy",
        {
            "run": [B25_SHM],
            "link": "nvlink4",
            "gradient_dtype": "bf16",
            "no_grad_copy": True,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "arguments"), SAME_BYTES.values(), ids=SAME_BYTES)
def test_an_answer_has_the_bytes_of_the_command_line(real, monkeypatch, command, arguments):
    monkeypatch.chdir(real)
    words = command.split()
    printed = nsyspipe_here(*words, "--json", "-", "-q", cwd=real)
    assert answered(Tools(Roots.of([real])), words[0], **arguments) == printed.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("analyze store:fast", {"reports": ["store:fast"]}),
        ("diff store:fast slow", {"baseline": ["store:fast"], "candidate": ["slow"]}),
        (
            "diff a=fast a=store:fast b=slow",
            {
                "baseline": ["fast", "store:fast"],
                "candidate": ["slow"],
                "baseline_label": "a",
                "candidate_label": "b",
            },
        ),
        ("whatif store:slow --no-wait", {"run": ["store:slow"], "no_wait": True}),
    ],
)
def test_runs_are_named_as_on_the_command_line(tools, world, command, arguments):
    words = command.split()
    printed = nsyspipe_here(*words, "--json", "-", "-q", cwd=world)
    assert answered(tools, words[0], **arguments) == printed.stdout


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("analyze nothing", {"reports": ["nothing"]}),
        ("analyze store:nothing", {"reports": ["store:nothing"]}),
        ("analyze store", {"reports": ["store"]}),
        ("whatif fast --bucket-mb 0", {"run": ["fast"], "bucket_mb": 0}),
        (
            "diff fast slow --metric x",
            {"baseline": ["fast"], "candidate": ["slow"], "metrics": ["x"]},
        ),
    ],
)
def test_an_error_has_the_lines_of_the_command_line(tools, world, command, arguments):
    words = command.split()
    printed = nsyspipe_here(*words, "--json", "-", "-q", cwd=world)
    with pytest.raises(NsyspipeError) as error:
        answered(tools, words[0], **arguments)
    assert "\n".join(["error: " + error.value.lines()[0], *error.value.lines()[1:], ""]) == (
        printed.stderr
    )


def test_chosen_keys_have_the_bytes_of_the_whole_document(tools):
    whole = answered(tools, "analyze", reports=["fast"])
    chosen = answered(tools, "analyze", reports=["fast"], keys=["steps", "summary"])
    assert list(json.loads(chosen)) == ["summary", "steps"]
    assert {*chosen.removesuffix("\n}\n").splitlines()} <= {*whole.splitlines()} | {"]"}


def test_a_key_that_is_not_there_is_an_error():
    with pytest.raises(OptionError) as error:
        with_keys('{"summary": 1}', ["sumary"])
    assert error.value.found == "summary"


def test_the_expression_of_a_step_has_a_limit():
    asked = parse("analyze", AnalyzeArguments, {"reports": ["fast"], "step": "a" * 200})
    assert asked.options() == {"step": "a" * 200}
    with pytest.raises(OptionError, match="200"):
        parse("analyze", AnalyzeArguments, {"reports": ["fast"], "step": "a" * 201})


def test_an_unknown_name_is_cut_off():
    name = "a" * 100_000
    with pytest.raises(OptionError) as of_key:
        with_keys('{"summary": 1}', [name])
    with pytest.raises(OptionError) as of_argument:
        parse("analyze", AnalyzeArguments, {"reports": ["fast"], name: 1})
    for error in (of_key.value, of_argument.value):
        assert len(error.subject) + len(error.problem) < 300


def test_an_answer_may_have_as_many_bytes_as_the_limit(tools):
    whole = answered(tools, "analyze", reports=["fast"])
    assert answered(Tools(tools.roots, len(whole)), "analyze", reports=["fast"]) == whole


@pytest.mark.slow
def test_a_larger_answer_is_an_error_with_the_sizes_of_its_keys(tools):
    whole = answered(tools, "analyze", reports=["fast"])
    with pytest.raises(InputError) as error:
        answered(Tools(tools.roots, len(whole) - 1), "analyze", reports=["fast"])
    n_bytes = len(with_keys(whole, ["steps"]))
    assert f"steps {n_bytes}" in str(error.value.found).split(", ")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("analyze", {"reports": "fast"}),
        ("analyze", {"reports": []}),
        ("analyze", {}),
        ("analyze", {"reports": ["fast"], "rank": "0"}),
        ("analyze", {"reports": ["fast"], "out": "store"}),
        ("analyze", {"reports": ["fast"], "steps": "20"}),
        ("analyze", {"reports": ["fast"], "label": ""}),
        ("diff", {"baseline": ["fast"]}),
        ("whatif", {"run": ["fast"], "bucket_mb": "25"}),
    ],
)
def test_arguments_of_other_names_or_types_are_refused(tools, tool, arguments):
    with pytest.raises(OptionError):
        answered(tools, tool, **arguments)


@pytest.fixture
def unexported(tmp_path, monkeypatch):
    """Return a directory with a report that nsys has not exported."""
    (tmp_path / "raw_0.nsys-rep").write_bytes(b"not read")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["raw_0.nsys-rep", "raw_*", "."])
def test_a_report_that_is_not_exported_is_refused(unexported, place):
    with pytest.raises(NotAReportError):
        answered(Tools(Roots.of([unexported])), "analyze", reports=[place])


def state_of(folder):
    """Return what a directory and all below it contain, and when it was changed."""
    return {
        path: (status.st_size, status.st_mtime_ns, status.st_mode)
        for path in [folder, *folder.rglob("*")]
        for status in [path.lstat()]
    }


@pytest.mark.slow
def test_nothing_is_written(world, tmp_path, monkeypatch):
    root = tmp_path / "root"
    shutil.copytree(world, root)
    for name in ("HOME", "XDG_CACHE_HOME", "NSYSPIPE_CACHE_DIR", "TMPDIR"):
        home = tmp_path / name
        home.mkdir()
        monkeypatch.setenv(name, os.fspath(home))
    monkeypatch.chdir(root)
    tools = Tools(Roots.of([root]))
    before = state_of(tmp_path)
    answered(tools, "analyze", reports=["fast"])
    answered(tools, "analyze", reports=["store:fast"])
    answered(tools, "diff", baseline=["fast"], candidate=["store:slow"])
    answered(tools, "whatif", run=["slow"])
    assert state_of(tmp_path) == before
