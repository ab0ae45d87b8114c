"""What changed around the step time, and what makes two runs not comparable, or their comparison doubtful."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

import nsyspipe
from nsyspipe.analysis.links import SlowestLink
from nsyspipe.api import compare, diff
from nsyspipe.comparison.changes import StepTable
from nsyspipe.comparison.comparability import check_comparable, check_order
from nsyspipe.comparison.difference import Side
from nsyspipe.comparison.surroundings import CHANGES, GRADIENT_COPIES, _is_alike, surroundings
from nsyspipe.model import schema
from nsyspipe.model.side_files import NcclFacts, RunCapture
from nsyspipe.report.difference import cause_text
from nsyspipe.report.words import opposed_text
from nsyspipe.run.work import Work
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.plain_steps import MS, plain_run
from tests.build.tools import Changed
from tests.build.trace import TraceBuilder, steady_rank
from tests.comparison.conftest import BYTES, COMM, NEW, STEPS, payload_run


def changes(*sides):
    sides = [side if isinstance(side, list) else [side] for side in sides]
    rows = surroundings(*([StepTable(run) for run in side] for side in sides)).to_pylist()
    words, numbers = ("baseline", "candidate"), ("baseline_value", "candidate_value", "delta")
    names = [words if row["delta"] is None else numbers for row in rows]
    return {(row["topic"], row["what"]): tuple(map(row.get, own)) for row, own in zip(rows, names, strict=True)}


def captured(run, **facts):
    return Changed(run, header=replace(run.header, capture=RunCapture(**facts)))


def test_collectives_and_copies_are_counted_per_rank_and_step(run, made):
    assert changes(run, run) == {}

    def with_more_collectives(builder):
        for at in range(1600, 1600 + 3 * 1160, 1160):
            builder.nccl(at + 500, at + 510, launch=at - 5)

    assert changes(run, made(*[[(1000, 100, 0, 60)] * 3] * 2, edit=with_more_collectives)) == {
        ("collectives", "collectives per step"): (1, 2, 1),
        ("copies", "DtoD bytes per step"): (320, 0, -320),
        ("copies", "DtoD copies per step"): (1, 0, -1),
    }


def test_sorts_of_collectives_are_told_apart_where_the_total_does_not(run, made):
    def with_another_sort(builder):
        old, new = (builder.string(f"ncclDevKernel_{one}_RING_LL") for one in ("AllReduce_Sum_f32", "AllGather_f16"))
        for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
            if row["shortName"] == old:
                row["shortName"] = row["demangledName"] = new

    assert changes(run, made(STEPS, STEPS, edit=with_another_sort)) == {
        ("collectives", "all_gather f16 per step"): (0, 1, 1),
        ("collectives", "all_reduce f32 per step"): (1, 0, -1),
    }


LATE, EARLY = (1200, 100, 40, 0), (1000, 300, 40, 0)


@pytest.mark.parametrize(("ranks", "actions", "named"), [
    # Rank 1 computes 200 ns longer, for which rank 0 waits inside of each all-reduce.
    (([EARLY] * 3, [LATE] * 3), ["rank 1 makes the others wait, mostly in backward"], ("none", "rank 1")),
    # Each rank computes 200 ns longer in every other step: neither alone is waited for.
    (([LATE, EARLY] * 3, [EARLY, LATE] * 3), ["ranks 0 and 1 make each other wait"], ("none", "ranks 0, 1")),
    # Rank 1 is late by 25 of 1440 ns in every step: more than a hundredth, and less than a finding needs.
    (([(1000, 300, 40, 0)] * 6, [(1025, 275, 40, 0)] * 6), [], None),
], ids=["one", "in turn", "little"])  # fmt: skip
def test_stragglers_are_named_as_the_finding_names_them(run, made, ranks, actions, named):
    other = made(*ranks)
    assert [row["action"] for row in other.findings().to_pylist() if row["id"] == "straggler"] == actions
    found = changes(run, other)
    assert found.get(("stragglers", "straggler")) == named
    if named:  # of each step the longest, whichever rank makes it
        assert found["stragglers", "longest delay of a step by a rank"] == (0, 200, 200)


def test_versions_and_settings_of_the_capture(run):
    before = captured(run, torch_version="2.4", git_commit="abc", environment={"OMP": "1", "X": "1"})
    after = captured(
        run, torch_version="2.5", git_commit="abc", git_is_dirty=True, environment={"OMP": "2"},
        command=["train.py", "--batch size", "8"],
    )  # fmt: skip
    assert changes(before, after) == {
        ("versions", "torch"): ("2.4", "2.5"),
        ("versions", "commit"): ("abc", "abc with changes"),
        ("capture", "OMP"): ("1", "2"),
        ("capture", "X"): ("1", None),
    }
    # What only one side recorded is not known to have changed.
    assert changes(run, after) == {}


HASHED, OTHER = "hmac:0123abcd", "hmac:89ab0123"


@pytest.mark.parametrize(("keys", "commands", "row"), [
    # one key: a hash says whether its value changed
    (("aa", "aa"), ("--a " + HASHED, "--a " + HASHED), None),
    (("aa", "aa"), ("--a " + HASHED, "--a " + OTHER), ("command", "--a " + HASHED, "--a " + OTHER)),
    # two, or none that is kept: nobody knows
    *(
        (keys, ("--a " + HASHED, "--a " + value), ("command, which may have changed", *["--a hmac:?"] * 2))
        for keys in (("aa", "bb"), ("capture", "capture"), ("aa", "capture"), (None, "aa"))
        for value in (HASHED, OTHER)
    ),
    ((None, None), ("--a ***", "--a ***"), ("command, which may have changed", *["--a hmac:?"] * 2)),
    # but a change of what stands is one
    (("capture", "capture"), (f"--a {HASHED} --lr 1", f"--a {OTHER} --lr 2"),
     ("command", "--a hmac:? --lr 1", "--a hmac:? --lr 2")),
    (("capture", "capture"), ("--lr 1", "--lr 1"), None),
])  # fmt: skip
def test_hashed_values_are_compared_where_one_key_hashed_both(run, keys, commands, row):
    pairs = zip(keys, commands, strict=True)
    found = changes(*(captured(run, command=command.split(), hash_key=key) for key, command in pairs))
    assert found == ({} if row is None else {("capture", row[0]): row[1:]})


def test_hashes_that_say_nothing_may_have_changed_and_look_the_same_in_captures_of_one_side(run):
    one, other = (
        captured(run, command=["--a", value, "--lr", "1"], environment={"NCCL_ALGO": value}, hash_key="capture")
        for value in (HASHED, OTHER)
    )
    assert changes(one, other)["capture", "NCCL_ALGO, which may have changed"] == ("hmac:?", "hmac:?")
    found = changes([one, other], captured(run, command=["--lr", "1"], hash_key="aa"))
    assert found["capture", "command"] == ("--a hmac:? --lr 1", "--lr 1")


def test_the_link_and_what_nccl_was_told(run):
    shm = SlowestLink("shm", 0, 1, None, "host memory", 1, 0, 1, is_of_ring=True)
    links = [SimpleNamespace(slowest=one) for one in (shm, replace(shm, kind="nvlink"))]
    before = Changed(run, link=links[0], nccl=NcclFacts("2.21", {"NCCL_P2P_DISABLE": "1"}, False))
    after = Changed(run, link=links[1], nccl=NcclFacts("2.22", {"NCCL_DEBUG": "INFO"}, True))
    assert changes(before, after) == {
        ("link", "slowest link"): ("shm", "nvlink"),
        ("link", "NVLink SHARP"): ("off", "on"),
        ("link", "NCCL_P2P_DISABLE"): ("1", None),
        ("link", "NCCL_DEBUG"): (None, "INFO"),
        ("versions", "NCCL"): ("2.21", "2.22"),
    }
    # What NCCL uses is not known of a topology alone: no change, and no cause.
    assert (
        changes(Changed(run, link=links[0]), Changed(run, link=SimpleNamespace(slowest=replace(shm, kind="unknown"))))
        == {}
    )


def test_captures_of_a_side_stand_side_by_side_in_words_and_as_means_in_numbers(run, made):
    few = made(*[[(1000, 100, 0, 60)] * 4] * 2)
    one, other = captured(run, torch_version="2.4"), captured(run, torch_version="2.5")
    found = changes([one, other], captured(few, torch_version="2.5"))
    assert found["versions", "torch"] == ("2.4 | 2.5", "2.5")
    assert found["steps", "steps in the figures"] == ("3, 3", "4")
    assert changes(run, few)["steps", "steps in the figures"] == (3, 4, 1)
    assert changes([run, few], run)["copies", "DtoD copies per step"] == (0.5, 1, 0.5)


@pytest.mark.parametrize(("unit", "one", "other", "is_alike"), [
    ("count", 5000.0, 5001.0, False), ("count", 5000.25, 5000.5, True), ("bytes", 0.0, 0.0, True), ("bytes", 0.0, 1.0, False),
    # 1 byte in 7968 is 0.0001, 9 are more than a thousandth.
    ("bytes", 7968.0, 7969.0, True), ("bytes", 7968.0, 7977.0, False),
    ("ns", 4.0, 9.0, True), ("ns", 4.0, 11.0, False),
])  # fmt: skip
def test_one_more_of_many_is_a_change(unit, one, other, is_alike):
    assert _is_alike(unit, one, other, little_ns=10.0) == is_alike


# Whether they can be compared.
def checks(before, after):
    lists = [runs if isinstance(runs, list) else [runs] for runs in (before, after)]
    sides = [SimpleNamespace(name="x", runs=runs, work=Work.of(runs)) for runs in lists]
    # Built runs are one capture but for what a test changes.
    found = [one for one in check_comparable(*sides) if one.check != "same-capture"]
    return {check.check: (check.blocks, check.baseline, check.candidate) for check in found}


def test_a_run_and_itself_leave_no_other_doubt_than_that(run, made):
    assert checks(run, run) == {}
    side = Side("x", (run,))
    for other in (run, nsyspipe.load(run.inputs[0].parent, run_id="another")):  # whatever it is called
        (found,) = check_comparable(side, Side("y", (other,)))
        assert (found.check, found.blocks) == ("same-capture", True)
        assert found.message == f"the same capture is on both sides: {run.header.label}"
        assert diff(run, other).metrics["why"][0].as_py() == "not comparable: the same capture is on both sides"
    # A capture of the same program whose kernels last longer is another one.
    assert check_comparable(side, Side("y", (made(*[[(1900, 100, 40, 60)] * 3] * 2),))) == []


# Compute of 0.001 ms of a kernel "gemm"; a matrix product of another name may be of another precision.
@pytest.mark.parametrize(("compute", "kernel", "shared"), [
    (1_999, "gemm", None), (2_000, "gemm", ""), (500, "gemm", ""), (2_999, "conv", None),
    (3_000, "conv", " (0 % of it in the baseline's kernels)"), (1_001, "softmax", " (0 % of it in the baseline's kernels)"),
])  # fmt: skip
def test_steps_of_other_work_are_told_by_what_they_compute_whatever_they_are_called(run, made, compute, kernel, shared):
    for family in ("step #", "Batch #"):
        other = Changed(made(*[[(compute, 100, 40, 60)] * 3] * 2, kernel=kernel), step_family=family)
        sides = [Side("a", (Changed(run, step_family="step #"),)), Side("b", (other,))]
        found = next((one for one in check_comparable(*sides) if one.check == "other-work"), None)
        assert (found is not None) == (shared is not None)
        if found is not None:
            before, now = (f"{ns / 1e6:.4g} ms of compute in 1 kernel" for ns in (1000, compute))
            assert (found.blocks, found.baseline, found.candidate) == (True, before, now + shared)
            # What seems to do other work has no cause, is no regression, and is not ranked beside it.
            assert (diff(*sides).cause, diff(*sides).verdict) == (None, "inconclusive")
            assert compare(sides).table["why"].to_pylist()[1] == diff(*sides).metrics["why"][0].as_py()
            assert [kind.labels for kind in compare(sides).kinds] == [("a",), ("b",)]
            assert [kind.labels for kind in compare(sides, force=True).kinds] == [("a", "b")]


# Each kernel's time and number in a step, of compute that is the sum: layers, micro-batches, a fused program, a precision.
@pytest.mark.parametrize(("before", "after", "is_other"), [
    ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm": (50, 5), "norm": (6, 2)}, True),
    ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm": (95, 36), "norm": (12, 12)}, False),
    ({"gemm": (60, 9), "add": (20, 30), "norm": (20, 3)}, {"gemm": (60, 9), "triton": (15, 6)}, False),
    ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm_bf16": (40, 9), "norm": (10, 3)}, False),
    ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm_bf16": (40, 20), "norm": (10, 5)}, True),
    ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm_bf16": (80, 9), "conv": (10, 4), "softmax": (10, 5)}, True),
])  # fmt: skip
def test_one_program_stays_comparable_and_programs_part(before, after, is_other):
    works = []
    for kernels in (before, after):
        products = sum(n for name, (_, n) in kernels.items() if name.startswith(("gemm", "conv")))
        launches = {name: n for name, (_, n) in kernels.items() if not name.startswith(("gemm", "conv"))}
        times = {name: ns for name, (ns, _) in kernels.items()}
        works.append(Work(sum(times.values()), times, {"matrix products": products, **launches}, {}))
    assert (works[0].is_other(works[1]), works[1].is_other(works[0])) == (is_other, is_other)


# What two ranks' communicator serves, on either side; null sizes of what serves nobody knows what may be of a model.
@pytest.mark.parametrize(("before", "after", "expected"), [
    ("data", "tensor", (True, "1 (data 2)", "2 (tensor 2)")), ("pipeline", "sharded", (True, "2 (pipeline 2)", "1 (sharded 2)")),
    ("expert data", "tensor other", (True, "1 (expert and data 2)", "2 or more (tensor 2)")),
    ("data other", "tensor", (False, "not known (data 2)", "2 (tensor 2)")), ("data", "other", None),
    ("data", "sharded expert", None), ("tensor", "pipeline", None), ("tensor other", "tensor other", None),
])  # fmt: skip
def test_runs_whose_ranks_share_batches_part_from_others(run, made, before, after, expected):
    own, runs = {"communicator": "0x1", "n_ranks": 2, "ranks": "0,1", "collective": "all_reduce"}, []
    for one, roles in ((run, before), (made(*[[(1900, 100, 40, 60)] * 3] * 2), after)):
        rows = [own | {"role": role} for role in roles.split()]
        runs.append(Changed(one, traffic=partial(schema.TRAFFIC.from_rows, rows)))
    sides, is_parted = [Side("a", runs[:1]), Side("b", runs[1:])], expected is not None and expected[0]
    assert checks(*runs).get("shared-batch") == expected
    assert diff(*sides).is_comparable != is_parted
    assert len(compare(sides).kinds) == 1 + is_parted
    assert diff(*sides, force=True).metrics["why"][0].as_py() != "not comparable: ranks per batch"


@pytest.mark.parametrize(("name", "is_parted", "parallelism"), [
    ("2gpu-tp", True, "tensor 2"), ("2gpu-pp", True, "pipeline 2"), ("2gpu-moe", False, "expert and data 2"), ("2gpu-fsdp2", False, "sharded 2"),
])  # fmt: skip
def test_real_runs_of_tensor_and_pipeline_parallelism_part_from_ddp(runs, name, is_parted, parallelism):
    pair = runs("2gpu-gpt-b25"), runs(name)
    assert ("shared-batch" in checks(*pair)) == is_parted
    assert checks(*pair).get("experts") == ((False, "none", "some") if name == "2gpu-moe" else None)
    assert changes(*pair)["collectives", "parallelism"] == ("data 2", parallelism)


def ms_steps(compute, comm=10, copies=4, idle=6):
    return [[((compute + n % 3) * MS, comm * MS, copies * MS, idle * MS) for n in range(9)]] * 2


@pytest.mark.parametrize(("after", "part", "delta", "facts"), [
    (ms_steps(100), None, 0, []),  # no change
    (ms_steps(70), "compute", -30, []),
    (("conv", ms_steps(70)), "compute", -30, [("kernels that only one side runs", 101, 71)]),
    (ms_steps(100, comm=30), "exposed_comm", 20, []),
    (ms_steps(100, copies=0, idle=0, comm=0), "exposed_comm", -10, [("collectives per step", 1, 0)]),
    (ms_steps(100, copies=0), "exposed_memory", -4, [("DtoD bytes per step", 32e6, 0), ("DtoD copies per step", 1, 0)]),
    (ms_steps(100, idle=26), "idle", 20, [("idle, input", 6, 26)]),
    # A third each is nobody's.
    (ms_steps(100, comm=17, copies=11, idle=13), None, 0, []),
])  # fmt: skip
def test_the_cause_is_the_part_that_changed_most_with_what_it_depends_on(tmp_path, after, part, delta, facts):
    kernel, steps = after if isinstance(after, tuple) else ("gemm", after)
    approx = partial(pytest.approx, rel=1e-5)  # the host pauses for all of a step but the ns of its launches
    before = plain_run(tmp_path / "before", ms_steps(100))
    cause = diff(before, plain_run(tmp_path / "after", steps, kernel=kernel, start=2 * 10**18)).cause
    assert (None if cause is None else cause.part) == part
    if cause is not None:
        assert cause.delta_ns == delta * MS
        scaled = [(what, [value / (MS if unit == "ns" else 1) for value in both]) for what, unit, *both in cause.facts]
        assert [(what, *both) for what, both in scaled] == [(what, *map(approx, both)) for what, *both in facts]


@pytest.mark.parametrize(("after", "verdict", "said"), [
    (ms_steps(60, comm=30), "improvement", "Against that, exposed comm takes 20.00 ms more."),
    (ms_steps(160, idle=0), "regression", "Against that, idle takes 6.000 ms less."),
    (ms_steps(90, comm=20), "no change", "Its parts changed against each other: compute by -10.00 ms, exposed comm by +10.00 ms."),
    (ms_steps(60, comm=12), "improvement", None), (ms_steps(101, comm=9), "no change", None),  # less than 2 % of the step
])  # fmt: skip
def test_what_changed_against_the_step_time_is_said(tmp_path, after, verdict, said):
    before = plain_run(tmp_path / "before", ms_steps(100))
    found = diff(before, plain_run(tmp_path / "after", after, start=2 * 10**18))
    assert (found.verdict, [opposed_text(found.opposed_parts)] if found.opposed_parts else []) == (
        verdict,
        [said][: said is not None],
    )


def test_a_change_of_the_bucket_view_is_named_beside_the_cause(runs, monkeypatch):
    """As where buckets and gradient_as_bucket_view changed at once: copies are no cause of exposed communication."""
    row = {
        "topic": "copies",
        "what": GRADIENT_COPIES,
        "unit": "count",
        "baseline_value": 296.0,
        "candidate_value": 0.0,
        "delta": -296.0,
    }
    both = diff(runs("2gpu-gpt-b25-shm"), runs("2gpu-gpt-b25"))
    found = replace(both)
    vars(found)["changes"] = CHANGES.from_rows([*both.changes.to_pylist(), row])
    assert found.cause.facts == both.cause.facts
    assert (
        " Beside it gradient copies per step 296 -> 0, as by gradient_as_bucket_view: exposed copies by "
        in cause_text(found, found.cause)
    )
    assert both.cause.beside == ()


def bucket_run(folder, n, transfer, size=4_000_000, versions=()):
    """Write two ranks of steps of 100 ms of compute and n all-reduces after it, 4 MB in all or so, and open them."""
    folder.mkdir()
    for rank in range(2):
        builder = steady_rank(rank, 0, version=NEW).domain("NCCL", 1)
        at = 1000
        for step in range(11):
            compute = (100 + step % 3) * MS
            builder.range(at, at + compute + n * transfer + 5 * MS, f"step {step}")
            builder.kernel(at + 10, at + 10 + compute, launch=at + 5)
            for k in range(n):
                launch, start = at + 100 * (k + 1), at + 10 + compute + k * transfer
                builder.nccl_payload(launch, "ncclAllReduce", {COMM: 7, BYTES: size // n}, NCCL_2_21, end=launch + 50)
                builder.nccl(start, start + transfer, launch=launch + 10)
            at += compute + n * transfer + 5 * MS
        builder.write(folder / f"r_{rank}.sqlite")
    return captured(nsyspipe.load(folder, jobs=1), **dict(versions))


GB_S = "bus bandwidth"


@pytest.mark.parametrize(("before", "after", "facts", "words"), [
    # 4 MB in 40 ms are 0.1 GB/s, in 4 x 2 ms 0.5 GB/s: of two ranks the bus has the bytes once.
    ((1, 40), (4, 2), {GB_S: (1e8, 5e8), "collectives per step": (1, 4), "mean message of a collective": (4e6, 1e6)}, "causes"),
    # 4 x 10 ms are as slow as 1 x 40: only the buckets; one matter, in two figures.
    ((1, 40), (4, 5, 2_000_000), {"collectives per step": (1, 4), "mean message of a collective": (4e6, 5e5), "message bytes per step": (4e6, 2e6)}, "cause"),
    # Only the link; and one that became faster explains nothing that got slower.
    ((2, 20), (2, 5), {GB_S: (1e8, 4e8)}, "cause"),
    ((1, 20), (1, 40, 16_000_000), {"mean message of a collective": (4e6, 1.6e7), "message bytes per step": (4e6, 1.6e7)}, "cause"),
    # What is not marked is not said beside what is: 4 % more bandwidth.
    ((1, 40), (4, 5, 2_080_000), {"collectives per step": (1, 4), "mean message of a collective": (4e6, 5.2e5), "message bytes per step": (4e6, 2.08e6)}, "cause"),
    # Another program may be why, whatever else is.
    ((1, 40, 4_000_000, (("git_commit", "a"),)), (1, 10, 4_000_000, (("git_commit", "b"),)), {GB_S: (1e8, 4e8), "commit": ("a", "b")}, "causes"),
])  # fmt: skip
def test_every_change_that_may_explain_communication_is_told_with_the_others(tmp_path, before, after, facts, words):
    runs = [bucket_run(tmp_path / name, n, ms * MS, *more) for name, (n, ms, *more) in (("a", before), ("b", after))]
    difference = diff(*(Side(name, (run,)) for name, run in zip("ab", runs, strict=True)))
    cause = difference.cause
    assert cause.part == "exposed_comm"
    assert {what: pytest.approx(both) if unit else tuple(both) for what, unit, *both in cause.facts} == facts
    text = cause_text(difference, cause)
    assert f" Probable {words}, by what else changed: " in text
    is_one_of_several = text.endswith("; which of them it is cannot be told apart here.")
    assert is_one_of_several == (words == "causes") == (cause.n_matters > 1)
    assert facts.keys() <= {*difference.changes["what"].to_pylist()}


@pytest.mark.parametrize(("before", "after", "is_told"), [
    (["2026-03-02T10:00:00Z"], ["2026-03-01T23:59:59Z"], True), (["2026-03-02"], ["2026-03-03"], False),
    (["2026-03-01", "2026-03-03"], ["2026-03-02", "2026-03-04"], False), (["2026-03-02"], [None], False),
])  # fmt: skip
def test_a_candidate_that_was_captured_first_is_told(run, before, after, is_told):
    runs = (
        [Changed(run, header=replace(run.header, captured_at_utc=time)) for time in side] for side in (before, after)
    )
    found = [one.message for one in check_order(*(SimpleNamespace(runs=side) for side in runs))]
    said = "baseline 2026-03-02 10:00:00 UTC, candidate 2026-03-01 23:59:59 UTC; if the two are the wrong way round, swap them"
    assert found == [f"the candidate was captured before the baseline: {said}"] * is_told


def test_another_world_size_or_gpu_blocks_and_what_was_not_recorded_does_not(run, made):
    assert checks(run, made(*[STEPS] * 3)) == {"world-size": (True, "2", "3")}
    runs = [made(*[STEPS] * n, world_size=None) for n in (2, 3)]
    assert checks(*runs)["world-size"] == (True, "2", "3")  # ranks are counted
    other, unknown = (made(STEPS, STEPS, gpu=gpu) for gpu in ("NVIDIA A100", None))
    assert checks(run, other) == {"gpu-model": (True, "NVIDIA H200", "NVIDIA A100")}
    assert checks(run, unknown)["gpu-model"] == (False, "NVIDIA H200", "not recorded")
    # Of captures of one side that differ each is told.
    assert checks(run, [run, other])["gpu-model"] == (True, "NVIDIA H200", "NVIDIA H200 | NVIDIA A100")


def test_a_rank_that_only_one_side_lacks_blocks(run, made):
    lacking = made(STEPS, world_size=2)
    found = checks(run, lacking)
    assert found["missing-ranks"] == (True, "none", "1")
    assert found["recorded"] == (False, "none", "1 of 2 ranks are not among the reports (rank 1)")
    assert checks(lacking, lacking) == {"missing-ranks": (False, "1", "1")}  # where both lack the same, they are alike
    one, other = made(STEPS, world_size=12), made(STEPS, STEPS, world_size=12)  # many are counted
    assert checks(one, other)["missing-ranks"] == (True, "1, 2, 3, 4, 5, 6 and 5 more", "2, 3, 4, 5, 6, 7 and 4 more")


def test_what_blocks_stands_first(run, made):
    other = made(*[STEPS[:1]] * 3, name="iter")
    found = [check.blocks for check in check_comparable(Side("a", (run,)), Side("b", (other,)))]
    assert found == sorted(found, reverse=True)
    assert found[0]


def with_one_range(builder):
    builder.rows["NVTX_EVENTS"] = builder.rows["NVTX_EVENTS"][:2]


def with_overhead(builder):
    """Let the profiler work in the first step of the figures, [1600, 2800): 120 of 3 x 1200 ns."""
    builder.schema = builder.schema | {"PROFILER_OVERHEAD": {"start": "INT", "end": "INT"}}
    builder.add("PROFILER_OVERHEAD", start=2000, end=2120)


@pytest.mark.parametrize(("steps", "options", "check", "words"), [
    (STEPS, {"name": "iter"}, "step-family", ("'step #'", "'iter #'")),
    (STEPS, {"load": {"skip_first": 0}}, "skipped-steps", ("1", "0")), (STEPS[:2], {}, "few-steps", ("3", "2")),
    (STEPS, {"edit": with_one_range, "load": {"step": "step"}}, "cut-off-steps", ("none", "some")),
    (STEPS, {"without": ("CUPTI_ACTIVITY_KIND_MEMCPY",)}, "recorded", ("none", "calls that copy were made, but the report has no table of copies")),
    (STEPS, {"edit": with_overhead}, "profiler-overhead", ("0.0 %", "3.3 %")),
])  # fmt: skip
def test_what_makes_a_comparison_doubtful_is_named(run, made, steps, options, check, words):
    found = checks(run, made(steps, steps, **options))
    assert found[check] == (False, *words)
    if check in {"step-family", "few-steps"}:
        assert list(found) == [check]


def test_other_message_bytes_are_named(tmp_path):
    runs = [payload_run(tmp_path / str(size), size) for size in (4096, 8192, 4100)]
    assert checks(runs[0], runs[1]) == {"message-bytes": (False, "0.004096 MB", "0.008192 MB")}
    assert checks(runs[0], runs[2]) == {}  # a tenth of a per cent is padding
    assert checks(runs[:2], runs[0])["message-bytes"][1] == "0.006144 MB"  # of several captures their mean


def test_other_traces_are_named_where_both_sides_say_theirs(run):
    cuda, nvtx, osrt = (captured(run, trace=trace.split()) for trace in ("cuda", "cuda nvtx", "nvtx cuda osrt"))
    assert checks(nvtx, osrt) == {"traces": (False, "cuda, nvtx", "cuda, nvtx, osrt")}
    assert checks(cuda, run) == {}


def test_captures_without_gpu_activity_lack_that_and_no_ranks(run, tmp_path):
    for rank in range(2):
        host = TraceBuilder(pid=1000 + rank).session(10**18).host("node0").env(RANK=rank, WORLD_SIZE=2)
        for step in range(3):
            host.range(1000 * step, 1000 * step + 300, f"step {step}")
        host.write(tmp_path / f"host_{rank}.sqlite")
    hosts = nsyspipe.load(tmp_path / "host_*.sqlite", jobs=1)
    assert checks(hosts, hosts) == {"no-gpu-activity": (False, "not recorded", "not recorded")}
    found = checks(run, hosts)
    assert found["no-gpu-activity"] == (True, "recorded", "not recorded")
    assert "missing-ranks" not in found
    assert "few-steps" not in found
    *_, check = check_comparable(Side("a", (hosts,)), Side("b", (hosts,)))
    assert check.message == "GPU activity: baseline not recorded, candidate not recorded"
    row = diff(hosts, hosts).judged_rows[0]
    assert (row["verdict"], row["why"]) == ("inconclusive", "both: no GPU activity was recorded")


def test_what_would_settle_a_finding_is_not_the_command_that_is_running(runs):
    run = runs("2gpu-gpt-b25-shm")
    (fix,) = [row["fix"] for row in run.problems.to_pylist() if "comm-slows-compute" in row["message"]]
    assert fix.endswith("compare their kernels: nsyspipe.diff")
    fixes = {row["fix"] for row in diff(run, run).problems.to_pylist() if "comm-slows-compute" in row["message"]}
    assert fixes == {fix.removesuffix(": nsyspipe.diff")}
