"""Labels, settings and errors: their tree, their lines, and their way between processes."""

import inspect
import pickle
import re

import pyarrow as pa
import pytest
from typer.main import get_command

import nsyspipe
from nsyspipe import errors
from nsyspipe.cli.app import app
from nsyspipe.errors import InputError, OptionError, in_python
from nsyspipe.model import names as module
from nsyspipe.model.columns import ns, ratio
from nsyspipe.model.names import is_nccl_communicator
from nsyspipe.model.options import Reading, compile_pattern, parse_skip_first
from nsyspipe.model.table import Column, TableSchema
from tests.conftest import FROZEN
from tests.golden.words import figures


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("step 3", 3),
        ("Batch 0", 0),
        ("12", 12),
        ("it007", 7),
        ("step", None),
        ("", None),
        ("epoch 1 step 2", None),
        ("step 1.5", None),
        ("step 1 of 1", None),
        ("Batch 10, seq = 99", 10),
        ("Batch 10, seq = 99, op_id = 7", 10),
        ("Batch 10, op_id = 7, seq = 99", 10),
        ("step, seq = 4", None),
        ("step 3, seq 4", None),  # only a suffix, and none
        (f"step {2**63 - 1}", 2**63 - 1),
        (f"step {2**63}", None),
        ("step " + "9" * 5000, None),  # no int64
    ],
)
def test_the_step_number_is_the_one_integer_of_the_text_without_suffixes(text, number):
    assert module.step_number(text) == number


def patterns(reading):
    return {phase: pattern.pattern for phase, pattern in reading.phases.items()}


def test_patterns_given_as_text_are_compiled_and_others_keep_their_default():
    reading = Reading()
    assert (reading.step, reading.comm_kernel, patterns(reading)) == (
        None,
        None,
        module.PHASE_PATTERNS,
    )
    assert Reading.from_text() == reading
    reading = Reading.from_text(step=r"^it \d+", comm_kernel="my_comm", forward="fp", data=None)
    assert (reading.step.pattern, reading.comm_kernel.pattern) == (r"^it \d+", "my_comm")
    assert patterns(reading) == module.PHASE_PATTERNS | {"forward": "fp"}
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert compile_pattern("--step", r"(?i)step \d").search("my STEP 3")


@pytest.mark.parametrize(
    "option", ["step", "comm_kernel", "backward", "forward", "optimizer", "data"]
)
def test_a_pattern_that_is_none_is_an_error_that_names_its_option(option, worded):
    with pytest.raises(OptionError) as caught:
        Reading.from_text(**{option: "a(b"})
    flag = "--" + option.replace("_", "-")
    assert caught.value.subject == f"{flag} 'a(b'"
    # The regular expression ends within a group that begins at 1.
    assert "1" in figures(caught.value.problem)
    # Each Python has its own words for why.
    with pytest.raises(re.error) as why:
        re.compile("a(b")
    worded("\n".join(caught.value.lines()).replace(str(why.value), "WHY"))


@pytest.mark.parametrize(
    ("value", "n"),
    [("auto", None), (" AUTO ", None), ("0", 0), (0, 0), ("12", 12), (3, 3), (" 1 ", 1)],
)
def test_skip_first_is_auto_or_a_number(value, n):
    assert parse_skip_first(value) == n


@pytest.mark.parametrize("value", ["-1", -1, "1.5", 1.0, "", "two", "²", "٣", "1 2", "none", True])
def test_skip_first_is_nothing_else(value):
    with pytest.raises(OptionError) as caught:
        parse_skip_first(value)
    assert caught.value.subject == f"--skip-first {value}"
    assert caught.value.lines()[-1] == "  fix: --skip-first auto"


def test_what_a_kernels_name_says_and_the_label_that_tells_it_apart(pinned):
    lines = (FROZEN / "names/kernels.txt").read_text(encoding="utf-8").splitlines()
    found = []
    for name in (line for line in lines if not line.startswith("  ")):
        found.append(name)
        if name and not name.startswith("#"):
            says = module.collective_of(name), module.datatype_of(name), module.algorithm_of(name)
            found.append(f"  {', '.join(map(str, says))}; {module.kernel_label(name)}")
    pinned("names/kernels.txt", "\n".join([*found, ""]))
    assert (module.collective_of(""), module.kernel_label("")) == ("other", "")


def test_a_collective_is_found_by_its_longest_name_in_any_case():
    found = map(module.collective_of, ("NCCLKERNEL_REDUCESCATTER_RING", "mscclAllReduceKernel"))
    assert list(found) == ["reduce_scatter", "all_reduce"]
    assert {
        *map(
            module.datatype_of, ("ncclDevKernel_AllReduce_Sum_f32x4", "ncclDevKernel_AllReducef32")
        )
    } == {None}
    assert len(set(module.COLLECTIVES)) == len(module.COLLECTIVES) == 8


CLASSES = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and one.__module__ == errors.__name__
]
FACTS = {"found": "b.sqlite", "fix": "nsyspipe analyze b.sqlite"}


def test_parents_are_those_that_callers_catch():
    assert {one.__name__: one.__base__.__name__ for one in CLASSES} == {
        "NsyspipeError": "Exception",
        **dict.fromkeys(
            ("InputError", "CaptureError", "OptionError", "OutputError"), "NsyspipeError"
        ),
        **dict.fromkeys(
            ("ReportNotFoundError", "NotAReportError", "DamagedReportError"), "InputError"
        ),
        **dict.fromkeys(("MissingColumnError", "RankConflictError", "DatasetError"), "InputError"),
        **dict.fromkeys(("NsysNotFoundError", "NsysFailedError"), "CaptureError"),
    }


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("facts", [FACTS, {"found": None, "fix": None}, {**FACTS, "fix": None}])
def test_a_pickled_error_keeps_its_class_and_facts(kind, facts):
    error = pickle.loads(pickle.dumps(kind("a.sqlite", "not a report", **facts)))
    assert type(error) is kind
    assert (error.subject, error.problem, error.exit_code) == ("a.sqlite", "not a report", 2)
    assert {"found": error.found, "fix": error.fix} == facts
    assert error.lines()[0] == "a.sqlite: not a report"


@pytest.mark.parametrize(
    ("facts", "extra"),
    [
        ({}, []),
        ({"found": "", "fix": ""}, []),  # nothing is said of what is not known
        ({"fix": "-j 1"}, ["  fix: -j 1"]),
        ({"found": "2 files"}, ["  found: 2 files"]),
        (FACTS, ["  found: b.sqlite", "  fix: nsyspipe analyze b.sqlite"]),
    ],
)
def test_lines_are_the_message_then_what_was_found_then_the_fix(facts, extra):
    assert InputError("a", "b", **facts).lines() == ["a: b", *extra]


NEAREST = {
    "steptime": "--sort step_time",
    "Step-Time": "--sort step_time",
    "step_tim": "--sort step_time",
}


@pytest.mark.parametrize(("name", "fix"), NEAREST.items())
def test_a_name_that_is_none_gets_the_nearest_as_its_fix(name, fix):
    error = OptionError.no_such_name(
        f"--sort {name!r}", "is no metric", name, ["idle", "step_time"]
    )
    assert (error.found, error.fix) == ("idle, step_time", fix)
    assert error.lines()[0] == f"--sort {name!r}: is no metric"


@pytest.mark.parametrize("name", ["step_tables", "x", 5, ""])
def test_a_name_that_is_near_to_none_gets_no_name_as_its_fix(name, worded):
    error = OptionError.no_such_name(
        f"--sort {name!r}", "is no metric", name, ["idle", "step_time"]
    )
    assert {"idle", "step_time"}.isdisjoint(re.findall(r"\w+", error.fix))
    worded(error.lines())


# Texts with options and commands, and with what they are in Python; None: they stay.
OPTIONS_INPUT = [
    ("--rank-map: no rank", "rank_map: no rank"),
    ("with --rank-map", "with rank_map="),
    ("--step '^a$', leave --step out", "step='^a$', leave step= out"),
    ("--step none", "step='none'"),
    ("--run-id day-1.b", "run_id='day-1.b'"),
    ("--skip-first b: x", "skip_first='b': x"),
    ("--skip-first auto", "skip_first='auto'"),
    ("leave --skip-first out", "leave skip_first= out"),
    ("--run-id with another", "run_id= with another"),
    ("--gradient-bytes 1,000: x", "gradient_bytes=1_000: x"),
    ("--bandwidth 300GB/s", "bandwidth='300GB/s'"),
    ("--min-effect 2%, --metric idle", "min_effect_pct='2%', metrics='idle'"),
    ("--perfetto-steps 3:7", "steps=(3, 7)"),
    ("--perfetto-ranks 0,7", "ranks='0,7'"),
    ("--ranks 0-7,63: x", "ranks='0-7,63': x"),
    ("--ranks 7: x", "ranks=7: x"),
    ("leave out --ranks", "leave out ranks="),
    ("ask for --no-wait, or --force", "ask for no_wait=True, or force=True"),
    ("--tokens-per-step 8192", "tokens_per_step=8192"),
    ("--flops-per-step 9.483e12", "flops_per_step='9.483e12'"),
    ("--peak bf16, of --peak must", "peak='bf16', of peak= must"),
    ("-j 1", "jobs=1"),
    ("--steps 5.", "steps=5."),
    ("use --out DIR --events", "use nsyspipe.export.parquet(run, STORE, events=True)"),
    ("nsyspipe diff main/ new/", "nsyspipe.diff('main/', 'new/')"),
    # Other commands, and options of other programs, are typed as they stand.
    (
        "(nsyspipe whatif --gradient-bytes N), nsyspipe whatif; -j 1",
        "(nsyspipe.whatif(run, gradient_bytes=N)), nsyspipe.whatif; jobs=1",
    ),
    ("nsyspipe analyze 'a b.sqlite'", "nsyspipe.load('a b.sqlite')"),
    (
        "nsyspipe analyze a --out 'my store'",
        "nsyspipe.export.parquet(nsyspipe.load('a'), 'my store')",
    ),
    ("nsyspipe analyze --top 30 shows", "run.costs() shows"),
    ("nsyspipe doctor REPORTS says", "(in a shell) nsyspipe doctor REPORTS says"),
    ("nsyspipe whatif REPORTS --force", None),
    ("nsys export --force-overwrite=true", None),
    ("with --trace=cuda,nvtx", None),
]


@pytest.mark.parametrize(("text", "python"), OPTIONS_INPUT)
def test_from_python_an_error_names_parameters(text, python):
    assert in_python(text) == (text if python is None else python)
    error = InputError("a", "b", found="c", fix=text)
    assert str(error) == f"a: b\n  found: c\n  fix: {text if python is None else python}"
    assert error.lines()[-1] == f"  fix: {text}"


def test_every_option_that_is_told_as_a_parameter_is_one_of_both():
    calls = (
        nsyspipe.load,
        nsyspipe.diff,
        nsyspipe.compare,
        nsyspipe.whatif,
        nsyspipe.export.write,
        nsyspipe.export.parquet,
        nsyspipe.dashboard,
    )
    parameters = {
        name
        for call in (*calls, nsyspipe.Run.kernels)
        for name in inspect.signature(call).parameters
    }
    options = {
        name
        for command in get_command(app).commands.values()
        for one in command.params
        for name in one.opts
    }
    for name in (*errors._VALUED, *errors._FLAGS):
        assert f"--{name}" in options, name
        assert re.match(r"\w+", in_python(f"--{name}"))[0] in parameters, name
    for name in inspect.signature(nsyspipe.load).parameters:
        option = f"--{name.replace('_', '-')}"
        # Texts name --jobs as -j.
        if option in options - {"--jobs"}:
            assert in_python(option) == f"{name}="


def test_a_declared_column_has_unit_meaning_and_source():
    column = ns("wall_ns", "|C \\ M|: without the other", source="KERNEL, MEMCPY")
    expected = Column("wall_ns", pa.int64(), "ns", "|C \\ M|: without the other", "KERNEL, MEMCPY")
    assert column == expected


def test_a_declared_column_may_be_null():
    column = ratio("share", "comm / wall", source="derived", nullable=True)
    expected = Column("share", pa.float64(), "ratio", "comm / wall", "derived", nullable=True)
    assert column == expected


def test_a_declared_column_may_have_another_type_than_its_unit_implies():
    column = ns("mean_ns", "a mean", arrow_type=pa.float64())
    assert column == Column("mean_ns", pa.float64(), "ns", "a mean")


def test_the_arrow_schema_of_a_table_has_its_metadata():
    declared = TableSchema(
        name="steps", doc="One row.", key=("rank",), columns=(ns("wall_ns", "end - start"),)
    )
    (wall_ns,) = declared.arrow
    assert declared.arrow.metadata[b"table"] == b"steps"
    assert wall_ns.metadata == {b"doc": b"end - start", b"unit": b"ns", b"source": b""}
    assert not wall_ns.nullable


@pytest.mark.parametrize(
    ("name", "is_nccl"),
    [
        ("0x58373079116a0ea8", True),
        ("0x58373079116a0ea8/2.0", True),  # split off another, as NCCL's log names it
        ("all_reduce/0", False),
        ("/", False),
    ],
)
def test_communicators_with_ids_of_nccl_are_told_from_inferred_ones(name, is_nccl):
    assert is_nccl_communicator(name) == is_nccl
