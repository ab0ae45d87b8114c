"""All rules together: the order of findings, how grave each is, what could not be judged, and what holds of every run."""

import json
from importlib import import_module

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import asdict

from nsyspipe.analysis.kernels import LESS_HIDDEN
from nsyspipe.analysis.traffic import ROLES
from nsyspipe.findings import judge as judge_module
from nsyspipe.findings.communication import comm_slows_compute
from nsyspipe.findings.judge import CAUSES, RULES, in_order, judge
from nsyspipe.findings.model import WAITING_UNKNOWN, Finding, NotJudged, Recording
from nsyspipe.findings.parallelism import pipeline_bubble
from nsyspipe.model import schema
from nsyspipe.model.problems import WITH_BLOBS
from tests.findings import (
    comm_rules,
    device_rules,
    make,
    memory_rules,
    role_rules,
    settings_rules,
    straggler_rules,
    test_slow_link,
)
from tests.findings.make import (
    WALL,
    answers,
    collective,
    evidence,
    kernel,
    link,
    phase,
    step,
    steps,
    traffic,
    unmatched,
)

CASES = (
    comm_rules.CASES
    + device_rules.CASES
    + memory_rules.CASES
    + straggler_rules.CASES
    + test_slow_link.CASES
    + role_rules.CASES
)
CASES += settings_rules.CASES
COPIES = dict.fromkeys(("exposed_grad_copy_ns", "grad_copy_ns", "grad_copy_span_ns"), 50)
COPIES |= {"grad_copy_bytes": 16_000_000, "n_grad_copies": 8}


def rules(monkeypatch, **answers):
    made = {}
    for name, answer in answers.items():
        made[rule := lambda _, answer=answer: answer] = ()
        rule.__name__ = name
    monkeypatch.setattr(judge_module, "RULES", made)


def rules_of(problem):
    """Return the rules that a problem says were not judged."""
    names, _, _ = problem.message.partition(": ")[2].partition(" (")
    return names.split(", ")


def finding(saving, **more):
    return Finding("a title", "an action", "some advice", saving, more)


def test_each_rule_is_listed_once_under_its_id():
    for names in (make.IDS, [name for some in CAUSES.values() for name in some]):
        assert [rule.__name__ for rule in RULES] == sorted(
            name.replace("-", "_") for name in names
        ), names
    assert all(rule in import_module(rule.__module__).RULES for rule in RULES)


@pytest.mark.parametrize(("rule", "given", "expected"), CASES)
def test_what_a_rule_says(rule, given, expected, worded):
    answers(rule, given, expected, worded)


def test_every_rule_is_tested_on_both_sides():
    for kind in (dict, type(None)):
        assert {one.values[0] for one in CASES if isinstance(one.values[2], kind)} == set(RULES), (
            kind
        )


@pytest.mark.parametrize("rule", RULES)
def test_words_and_evidence_of_every_case_are_what_they_were(rule, pinned):
    blocks = []
    for what, (one, known, expected) in ((case.id, case.values) for case in CASES):
        if one is rule and isinstance(expected, dict):
            found = asdict(make.fired(rule, known))
            blocks.append(
                "\n".join(
                    [what, *(f"  {name}: {json.dumps(value)}" for name, value in found.items())]
                )
            )
    pinned(f"findings/{rule.__name__}.txt", "\n\n".join(blocks) + "\n")


def test_the_largest_saving_comes_first_and_those_without_a_bound_last(monkeypatch):
    savings = {"b": 5.0, "d": None, "a": 5.0, "c": None, "e": 7.0, "f": 0.0}
    rules(monkeypatch, **{name: finding(saving) for name, saving in savings.items()})
    table, problems = judge(evidence([step()]))
    assert table["id"].to_pylist() == ["e", "a", "b", "f", "c", "d"]
    assert problems == []


def test_a_straggler_stands_after_launch_bound_in_a_launch_bound_job(
    monkeypatch,
):
    rules(monkeypatch, straggler=finding(9.0, is_launch_bound=True), launch_bound=finding(2.0))
    table = judge(evidence([step()]))[0]
    rows = [
        row | {"expected_ns_per_step": 9.0 if row["id"] == "straggler" else None}
        for row in table.to_pylist()
    ]
    assert [row["id"] for row in in_order(rows)] == ["launch-bound", "straggler"]


@pytest.mark.parametrize(
    ("is_by_host", "order"),
    [
        (True, ["sync-bound", "launch-bound", "straggler"]),
        (False, ["straggler", "sync-bound", "launch-bound"]),
    ],
)
def test_ranks_late_because_of_their_host_stand_after_its_finding(monkeypatch, is_by_host, order):
    late = finding(9.0, **({"launched_late_ns_per_step": 5.0} if is_by_host else {}))
    rules(monkeypatch, straggler=late, launch_bound=finding(2.0), sync_bound=finding(5.0))
    assert judge(evidence([step()]))[0]["id"].to_pylist() == order


@pytest.mark.parametrize(
    ("saving", "severity"),
    [
        (100.0, "high"),
        (99.9, "medium"),
        (30.0, "medium"),
        (29.9, "low"),
        (0.0, "low"),
        (None, "low"),
    ],
)
def test_severity_is_the_share_of_step_time(monkeypatch, saving, severity):
    rules(monkeypatch, a=finding(saving))
    assert judge(evidence([step(wall=1000)]))[0]["severity"].to_pylist() == [severity]


def test_findings_are_rows_of_their_schema_with_evidence_as_json(monkeypatch):
    rules(monkeypatch, a=finding(None, share_ns=1.5, link=None, by={"\x1b[2J": 1}))
    table, _ = judge(evidence([step()]))
    assert table.schema.equals(schema.FINDINGS.arrow, check_metadata=True)
    told = '{"share_ns": 1.5, "link": null, "by": {"\\u001b[2J": 1}}'
    row = ("a", "low", "a title", "an action", "some advice", None, None, told)
    assert table.to_pylist() == [dict(zip(schema.FINDINGS.names, row, strict=True))]
    for value in (float("nan"), float("inf")):  # what JSON cannot say is a bug
        rules(monkeypatch, a=finding(None, ratio=value))
        with pytest.raises(ValueError, match="JSON"):
            judge(evidence([step()]))


def test_a_run_gets_all_that_its_figures_say():
    # Exposed 300 of 1000, in one all-reduce; 50 copy gradients. The link is not known.
    rows = steps(2, 1, 2, exposed=300, **COPIES)
    table, problems = judge(
        evidence(rows, [row for number in (1, 2) for row in collective(number, (0, 0), 300)])
    )
    columns = [table[name].to_pylist() for name in ("id", "saving_ns_per_step", "severity")]
    assert columns == [
        ["single-bucket", "comm-bound", "grad-copy"],
        [300, 300, 50],
        ["high", "high", "medium"],
    ]
    assert [(one.code, rules_of(one)) for one in problems] == [
        ("not-judged", ["compress-gradients", "slow-link"])
    ]
    for text in table["evidence"].to_pylist():
        assert json.loads(text), text


def test_a_run_that_is_well_and_windows_without_length_have_no_findings():
    for known in (evidence(steps(2, 1, 2, 3)), evidence(steps(2, wall=0))):
        assert judge(known) == (schema.FINDINGS.empty(), []), known


@pytest.mark.parametrize(
    "given",
    [evidence([]), evidence(steps(2, exposed=900, in_summary=False, **COPIES))],
    ids=["no steps", "none in the figures"],
)
def test_without_summary_steps_nothing_is_asked(monkeypatch, given, worded):
    rules(monkeypatch, a=NotJudged("never", "asked"), b=finding(1.0))
    table, problems = judge(given)
    assert table.equals(schema.FINDINGS.empty())
    assert [one.code for one in problems] == (["not-judged"] if given.n_ranks else [])
    worded(one.message for one in problems)


def test_rules_that_lack_the_same_share_a_row(monkeypatch, worded):
    alike, other, fix = (
        NotJudged(*one) for one in (("why", "how"), ("else", "how"), ("why", "other"))
    )
    rules(monkeypatch, a=alike, b=other, none=None, c=alike, d=fix)
    table, problems = judge(evidence([step()]))
    assert table.num_rows == 0
    assert [one.fix for one in problems] == ["how", "how", "other"]
    worded(one.message for one in problems)
    assert {(one.code, one.severity) for one in problems} == {("not-judged", "info")}


OF_COMM = [
    *(
        "comm-bound",
        "comm-slows-compute",
        "compress-gradients",
        "expert-comm",
        "flat-all-reduce",
        "no-sync",
    ),
    *(
        "pipeline-bubble",
        "shard-prefetch",
        "shard-regather",
        "single-bucket",
        "slow-link",
        "small-shards",
    ),
    *("straggler", "tensor-comm", "too-many-buckets"),
]


@pytest.mark.parametrize("lacking", [(0, 1), (1,)], ids=["both ranks", "one of them"])
def test_nothing_recorded_is_nothing_found_and_no_error(lacking, worded):
    nothing = {
        one.name: None
        for one in schema.STEPS.columns
        if one.nullable and one.unit in {"ns", "bytes", "count"}
    }
    known = steps(
        2, exposed=300, idle_input_ns=100, idle_launch_ns=100, idle_blocked_ns=100, **COPIES
    )
    table, problems = judge(
        evidence([row | (nothing if row["rank"] in lacking else {}) for row in known])
    )
    assert table.num_rows == 0
    expected = [
        ["alloc-in-step"],
        OF_COMM,
        ["grad-copy"],
        ["input-bound", "launch-bound", "sync-bound"],
        ["pageable-copy"],
        ["profiler-overhead"],
    ]
    assert [rules_of(one) for one in problems] == expected
    worded(one.message for one in problems)


def judged_in_groups(*, are_known):
    """Judge three ranks with 30 % exposed communication over host memory; waiting is not known."""
    rows = [
        row | dict.fromkeys(["wait_ns", "exposed_wait_ns", "transfer_ns"])
        for row in steps(3, exposed=300)
    ]
    met = unmatched(collective(1, (600, 600, 600), 900))
    table, problems = judge(
        evidence(rows, met, links=[link("shm", "SHM/direct")], are_groups_known=are_known)
    )
    savings = dict(
        zip(table["id"].to_pylist(), table["saving_ns_per_step"].to_pylist(), strict=True)
    )
    return savings, " ".join(one.message for one in problems)


@pytest.mark.parametrize(("wait", "fits"), [(100, False), (99, True)])
def test_a_run_that_hides_less_is_advised_unless_it_mostly_waits(wait, fits):
    found = comm_slows_compute(comm_rules.beside_waits(wait))
    assert found.fix.endswith(LESS_HIDDEN) is fits


@pytest.mark.parametrize(
    ("events", "fix"),
    [
        ((), f"{WITH_BLOBS}, captured with --trace=nvtx"),  # not known
        (("Cuda",), f"{WITH_BLOBS}, captured with --trace=nvtx"),
        (("Cuda", "NvtxEvents"), WITH_BLOBS),
    ],
)
def test_nothing_is_asked_for_that_was_traced(events, fix):
    unnamed = role_rules.stages(300, 200, comm_id="send_recv/0", recording=Recording(events=events))
    assert pipeline_bubble(unnamed).fix == fix


@pytest.mark.parametrize(
    ("n_ranks", "fix"), [(1, f"{WITH_BLOBS}, captured with --trace=nvtx"), (2, None)]
)
def test_what_brings_message_sizes_is_said_by_their_problem(n_ranks, fix):
    assert evidence(steps(n_ranks, exposed=100)).not_judged_without_sizes("why") == NotJudged(
        "why", fix
    )


def test_findings_of_transfer_are_not_judged_where_groups_are_not_known():
    savings, problems = judged_in_groups(are_known=False)
    assert "comm-bound" not in savings
    assert "comm-bound" in problems


def test_what_waits_for_another_problem_to_be_mended_has_no_fix_of_its_own():
    rows = [
        row | dict.fromkeys(["wait_ns", "exposed_wait_ns", "transfer_ns"])
        for row in steps(3, exposed=300)
    ]
    met = unmatched(collective(1, (600, 600, 600), 900))
    _, problems = judge(
        evidence(rows, met, links=[link("shm", "SHM/direct")], are_groups_known=False)
    )
    assert [one.fix for one in problems if WAITING_UNKNOWN.reason in one.message] == [None]


def test_a_slow_link_that_is_seen_has_no_saving_where_groups_are_not_known():
    assert judged_in_groups(are_known=False)[0] == {"slow-link": None}


def test_findings_of_transfer_may_hold_waiting_where_groups_are_known():
    assert judged_in_groups(are_known=True)[0]["comm-bound"] == 300


_CAUSES = (*schema.IDLE_CAUSES, "exposed_comm_ns", "exposed_grad_copy_ns")
_LINKS = (
    None,
    [link("shm", "SHM/direct")],
    [link("nvlink", "P2P/IPC", "NV4")],
    [link("net", "NET/IB/0")],
)


@st.composite
def step_rows(draw, rank, number):
    """Draw a step whose parts fit into it; some figures may not have been recorded."""
    cuts = sorted(
        draw(st.lists(st.integers(0, WALL), min_size=len(_CAUSES), max_size=len(_CAUSES)))
    )
    figures = dict(
        zip(
            _CAUSES,
            [after - before for before, after in zip([0, *cuts], cuts, strict=False)],
            strict=True,
        )
    )
    exposed = figures.pop("exposed_comm_ns")
    hidden = draw(st.integers(0, WALL - exposed))
    row = step(rank, number, exposed=exposed, hidden=hidden, **figures)
    row |= {
        "wait_ns": (wait := draw(st.integers(0, exposed + hidden))),
        "transfer_ns": exposed + hidden - wait,
        "overhead_ns": draw(st.integers(0, WALL)),
        "n_grad_copies": draw(st.sampled_from([0, 8])),
        "grad_copy_bytes": draw(st.integers(0, 10**6)),
    }
    for name in draw(st.sets(st.sampled_from(sorted(row)), max_size=2)):
        if schema.STEPS.arrow.field(name).nullable:
            row[name] = None
    return row


@st.composite
def runs(draw):
    n_ranks, n_steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows, met = [], []
    for number in range(n_steps):
        rows += [draw(step_rows(rank, number)) for rank in range(n_ranks)]
        for seq in range(draw(st.integers(0, 3))):
            starts = draw(st.lists(st.integers(0, WALL), min_size=n_ranks, max_size=n_ranks))
            kind = draw(
                st.sampled_from(
                    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
                )
            )
            datatype = draw(st.sampled_from(["f32", "bf16"]))
            end = draw(st.integers(max(starts), WALL))
            sampled = {"micro_batch": [None, 0, 1], "message_bytes": [None, 9**6]}
            more = {name: draw(st.sampled_from(values)) for name, values in sampled.items()}
            met += collective(number, starts, end, seq=seq, kind=kind, datatype=datatype, **more)
    names = draw(st.sets(st.sampled_from(["backward", "forward", "data"])))
    phases = [
        phase(
            name, row["rank"], row["step"], exposed_comm_ns=draw(st.integers(0, WALL)), compute_ns=5
        )
        for name in names
        for row in rows
    ]
    slowed = draw(st.integers(1, 5000))
    uses = sorted({(row["comm_id"], row["collective"]) for row in met})
    cost = st.tuples(st.floats(0, WALL), st.none() | st.floats(0, WALL))
    carried = [
        row
        for comm_id, kind in uses
        for row in traffic(
            draw(st.sampled_from(ROLES)),
            kind,
            *(draw(cost) for _ in range(n_ranks)),
            comm_id=comm_id,
        )
    ]
    return evidence(
        rows,
        met,
        phases=phases,
        kernels=[kernel("gemm", draw(st.integers(0, 60)), slowed, 1000)],
        links=draw(st.sampled_from(_LINKS)),
        traffic=carried,
        hosts=dict(enumerate(draw(st.sampled_from(["", "aab", "abc"])))),
        gpu_names=draw(st.sampled_from([(), ("NVIDIA H200",)])),
        n_hosts=draw(st.integers(1, 2)),
        blocked_ns_by_call={"cudaMalloc": 7},
    )


def least_that_stays(run):
    """Return the least that a rank computes in a step, the mean over steps; half of it goes where waiting hides, and nothing more."""
    rows = run.steps.to_pylist()
    waits = [(row["wait_ns"] or 0) - (row["exposed_wait_ns"] or 0) for row in rows]
    hidden = [
        min(wait, row["overlap_compute_ns"] or 0) for wait, row in zip(waits, rows, strict=True)
    ]
    left = [
        ((row["compute_ns"] or 0), own, row["step"]) for row, own in zip(rows, hidden, strict=True)
    ]
    least = [
        min(one[:2] for one in left if one[2] == number) for number in {one[2] for one in left}
    ]
    return sum(compute - own / 2 for compute, own in least) / len(least) - 1e-6


@pytest.mark.slow
@given(runs())
def test_findings_stay_within_the_step_and_are_sorted_and_said_in_units(run):
    table, problems = judge(run)
    rows = table.to_pylist()
    make.assert_well_said(rows)
    assert all(0 <= (row["saving_ns_per_step"] or 0) <= run.mean("wall_ns") for row in rows)
    assert all(
        row["saving_ns_per_step"] <= WALL - least_that_stays(run)
        for row in rows
        if row["id"] == "straggler"
    )
    open_rules = [name for one in problems for name in rules_of(one)]
    assert len(set(open_rules)) == len(open_rules)
    assert not set(open_rules) & {row["id"] for row in rows}
