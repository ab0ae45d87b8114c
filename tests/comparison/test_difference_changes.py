"""What changed around the step time, and the cause of its change."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

import nsyspipe
from nsyspipe.analysis.links import SlowestLink
from nsyspipe.api import diff
from nsyspipe.comparison.side import Side
from nsyspipe.comparison.surroundings import (
    ALL_COLLECTIVES,
    CHANGES,
    DTOD_BYTES,
    DTOD_COPIES,
    GRADIENT_COPIES,
    LONGEST_DELAY as DELAY,
    MAY_HAVE,
    MEAN_MESSAGE,
    MESSAGE_BYTES,
    _is_alike,
)
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report.difference import cause_text
from nsyspipe.report.words import opposed_text
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.plain_steps import MS, plain_run
from tests.build.tools import Changed
from tests.build.trace import steady_rank
from tests.comparison.conftest import BYTES, COMM, NEW, STEPS, captured, changes

COLLECTIVES = ALL_COLLECTIVES.what


def test_collectives_and_copies_are_counted_per_rank_and_step(run, made):
    assert changes(run, run) == {}

    def with_more_collectives(builder):
        for at in range(1600, 1600 + 3 * 1160, 1160):
            builder.nccl(at + 500, at + 510, launch=at - 5)

    assert changes(run, made(*[[(1000, 100, 0, 60)] * 3] * 2, edit=with_more_collectives)) == {
        ("collectives", COLLECTIVES): (1, 2, 1),
        ("copies", DTOD_BYTES): (320, 0, -320),
        ("copies", DTOD_COPIES): (1, 0, -1),
    }


def test_sorts_of_collectives_are_told_apart_where_the_total_does_not(run, made):
    def with_another_sort(builder):
        old, new = (
            builder.string(f"ncclDevKernel_{one}_RING_LL")
            for one in ("AllReduce_Sum_f32", "AllGather_f16")
        )
        for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
            if row["shortName"] == old:
                row["shortName"] = row["demangledName"] = new

    assert changes(run, made(STEPS, STEPS, edit=with_another_sort)) == {
        ("collectives", "all_gather f16 per step"): (0, 1, 1),
        ("collectives", "all_reduce f32 per step"): (1, 0, -1),
    }


LATE, EARLY = (1200, 100, 40, 0), (1000, 300, 40, 0)


@pytest.mark.parametrize(
    ("ranks", "actions", "named"),
    [
        # Rank 1 computes 200 ns longer, for which rank 0 waits inside of each all-reduce. Its host
        # launches as long as the step lasts: evening out the ranks gains nothing, so nobody is
        # named.
        (([EARLY] * 3, [LATE] * 3), [], None),
        # Each rank computes 200 ns longer in every other step: neither alone is waited for.
        (([LATE, EARLY] * 3, [EARLY, LATE] * 3), [], None),
        # Rank 1 is late by 25 of 1440 ns in every step: more than a hundredth, and less than a
        # finding needs.
        (([(1000, 300, 40, 0)] * 6, [(1025, 275, 40, 0)] * 6), [], None),
    ],
    ids=["one", "in turn", "little"],
)
def test_stragglers_are_named_as_the_finding_names_them(run, made, ranks, actions, named):
    other = made(*ranks)
    assert [
        row["action"] for row in other.findings().to_pylist() if row["id"] == "straggler"
    ] == actions
    found = changes(run, other)
    assert found.get(("stragglers", "straggler")) == named
    if named:  # of each step the longest, whichever rank makes it
        assert found["stragglers", DELAY] == (0, 200, 200)


def test_versions_and_settings_of_the_capture(run):
    before = captured(
        run, torch_version="2.4", git_commit="abc", environment={"OMP": "1", "X": "1"}
    )
    after = captured(
        run,
        torch_version="2.5",
        git_commit="abc",
        git_is_dirty=True,
        environment={"OMP": "2"},
        command=["train.py", "--batch size", "8"],
    )
    assert changes(before, after) == {
        ("versions", "torch"): ("2.4", "2.5"),
        ("versions", "commit"): ("abc", "abc with uncommitted changes"),
        ("capture", "OMP"): ("1", "2"),
        ("capture", "X"): ("1", None),
    }
    # What only one side recorded is not known to have changed.
    assert changes(run, after) == {}


HASHED, OTHER = "hmac:0123abcd", "hmac:89ab0123"


@pytest.mark.parametrize(
    ("keys", "commands", "row"),
    [
        # one key: a hash says whether its value changed
        (("aa", "aa"), ("--a " + HASHED, "--a " + HASHED), None),
        (
            ("aa", "aa"),
            ("--a " + HASHED, "--a " + OTHER),
            ("command", "--a " + HASHED, "--a " + OTHER),
        ),
        # two, or none that is kept: nobody knows
        *(
            (keys, ("--a " + HASHED, "--a " + value), (f"command{MAY_HAVE}", *["--a hmac:?"] * 2))
            for keys in (("aa", "bb"), ("capture", "capture"), ("aa", "capture"), (None, "aa"))
            for value in (HASHED, OTHER)
        ),
        ((None, None), ("--a ***", "--a ***"), (f"command{MAY_HAVE}", *["--a hmac:?"] * 2)),
        # but a change of what stands is one
        (
            ("capture", "capture"),
            (f"--a {HASHED} --lr 1", f"--a {OTHER} --lr 2"),
            ("command", "--a hmac:? --lr 1", "--a hmac:? --lr 2"),
        ),
        (("capture", "capture"), ("--lr 1", "--lr 1"), None),
    ],
)
def test_hashed_values_are_compared_where_one_key_hashed_both(run, keys, commands, row):
    pairs = zip(keys, commands, strict=True)
    found = changes(
        *(captured(run, command=command.split(), hash_key=key) for key, command in pairs)
    )
    assert found == ({} if row is None else {("capture", row[0]): row[1:]})


def test_hashes_may_have_changed_and_look_equal_within_one_side(run):
    one, other = (
        captured(
            run,
            command=["--a", value, "--lr", "1"],
            environment={"NCCL_ALGO": value},
            hash_key="capture",
        )
        for value in (HASHED, OTHER)
    )
    assert changes(one, other)["capture", f"NCCL_ALGO{MAY_HAVE}"] == ("hmac:?", "hmac:?")
    found = changes([one, other], captured(run, command=["--lr", "1"], hash_key="aa"))
    assert found["capture", "command"] == ("--a hmac:? --lr 1", "--lr 1")


def test_the_link_and_what_nccl_was_told(run):
    shm = SlowestLink("shm", 0, 1, None, "host memory", 1, 0, 1, is_of_ring=True)
    links = [SimpleNamespace(slowest=one) for one in (shm, replace(shm, kind="nvlink"))]
    before = Changed(run, link=links[0], nccl=NcclFacts("2.21", {"NCCL_P2P_DISABLE": "1"}, False))
    assert changes(
        before, Changed(run, link=links[1], nccl=NcclFacts("2.22", {"NCCL_DEBUG": "INFO"}, True))
    ) == {
        ("link", "slowest link"): ("shm", "nvlink"),
        ("link", "NVLink SHARP"): ("off", "on"),
        ("link", "NCCL_P2P_DISABLE"): ("1", None),
        ("link", "NCCL_DEBUG"): (None, "INFO"),
        ("versions", "NCCL"): ("2.21", "2.22"),
    }
    # What NCCL uses is not known of a topology alone: no change, and no cause.
    unknown = SimpleNamespace(slowest=replace(shm, kind="unknown"))
    assert changes(Changed(run, link=links[0]), Changed(run, link=unknown)) == {}


def of_topic(found, topic):
    return [values for (of_one, _), values in found.items() if of_one == topic]


def test_captures_of_a_side_are_listed_in_words_and_averaged_in_numbers(run, made):
    few = made(*[[(1000, 100, 0, 60)] * 4] * 2)
    one, other = captured(run, torch_version="2.4"), captured(run, torch_version="2.5")
    found = changes([one, other], captured(few, torch_version="2.5"))
    assert found["versions", "torch"] == ("2.4 | 2.5", "2.5")
    assert of_topic(found, "steps") == [("3, 3", "4")]
    assert of_topic(changes(run, few), "steps") == [(3, 4, 1)]
    assert changes([run, few], run)["copies", DTOD_COPIES] == (0.5, 1, 0.5)


@pytest.mark.parametrize(
    ("unit", "one", "other", "is_alike"),
    [
        ("count", 5000.0, 5001.0, False),
        ("count", 5000.25, 5000.5, True),
        ("bytes", 0.0, 0.0, True),
        ("bytes", 0.0, 1.0, False),
        # 1 byte in 7968 is 0.0001, 9 are more than a thousandth.
        ("bytes", 7968.0, 7969.0, True),
        ("bytes", 7968.0, 7977.0, False),
        ("ns", 4.0, 9.0, True),
        ("ns", 4.0, 11.0, False),
    ],
)
def test_one_more_of_many_is_a_change(unit, one, other, is_alike):
    assert _is_alike(unit, one, other, min_late_ns=10.0) == is_alike


def ms_steps(compute, comm=10, copies=4, idle=6):
    return [[((compute + n % 3) * MS, comm * MS, copies * MS, idle * MS) for n in range(9)]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "part", "delta", "facts"),
    [
        (ms_steps(100), None, 0, []),  # no change
        (ms_steps(70), "compute", -30, []),
        # Kernels that only one side runs.
        (("conv", ms_steps(70)), "compute", -30, [(101, 71)]),
        (ms_steps(100, comm=30), "exposed_comm", 20, []),
        # Collectives.
        (ms_steps(100, copies=0, idle=0, comm=0), "exposed_comm", -10, [(1, 0)]),
        # Bytes and copies.
        (ms_steps(100, copies=0), "exposed_memory", -4, [(32e6, 0), (1, 0)]),
        # Idle for input.
        (ms_steps(100, idle=26), "idle", 20, [(6, 26)]),
        # A third each is nobody's.
        (ms_steps(100, comm=17, copies=11, idle=13), None, 0, []),
    ],
)
def test_the_cause_is_the_part_that_changed_most_with_what_it_depends_on(
    tmp_path, after, part, delta, facts, worded
):
    kernel, steps = after if isinstance(after, tuple) else ("gemm", after)
    approx = partial(
        pytest.approx, rel=1e-5
    )  # the host pauses for all of a step but the ns of its launches
    before = plain_run(tmp_path / "before", ms_steps(100))
    cause = diff(
        before, plain_run(tmp_path / "after", steps, kernel=kernel, start=2 * 10**18)
    ).cause
    assert (None if cause is None else cause.part) == part
    if cause is not None:
        assert cause.delta_ns == delta * MS
        scaled = [
            [value / (MS if unit == "ns" else 1) for value in both]
            for _, unit, *both in cause.facts
        ]
        assert scaled == [[*map(approx, both)] for both in facts]
        if facts:
            worded([what for what, *_ in cause.facts])


@pytest.mark.parametrize(
    ("after", "verdict", "times"),
    [
        (ms_steps(60, comm=30), "improvement", ["20.0"]),
        (ms_steps(160, idle=0), "regression", ["6.00"]),
        (ms_steps(90, comm=20), "no change", ["-10.00", "+10.00"]),
        (ms_steps(60, comm=12), "improvement", None),
        (ms_steps(101, comm=9), "no change", None),  # less than 2 % of the step
    ],
    ids=["comm against", "idle against", "parts against", "little against", "little"],
)
def test_what_changed_against_the_step_time_is_said(tmp_path, after, verdict, times, worded):
    before = plain_run(tmp_path / "before", ms_steps(100))
    found = diff(before, plain_run(tmp_path / "after", after, start=2 * 10**18))
    assert found.verdict == verdict
    assert bool(found.opposed_parts) == (times is not None)
    if times is not None:
        text = opposed_text(found.opposed_parts)
        assert re.findall(r"([+-]?[\d.]+) ms", text) == times
        worded(text)


@pytest.mark.parametrize(
    ("after", "parts"),
    [
        # Half as much as the part that changed most, and less than that
        (ms_steps(88, comm=18, idle=10), [("compute", -12), ("exposed_comm", 8), ("idle", 4)]),
        (ms_steps(88, comm=19, idle=9), [("compute", -12), ("exposed_comm", 9)]),
        (
            ms_steps(112, comm=2, copies=0),
            [("exposed_comm", -8), ("exposed_memory", -4), ("compute", 12)],
        ),
    ],
)
def test_parts_that_changed_half_as_much_as_another_are_named_with_it(tmp_path, after, parts):
    found = diff(
        plain_run(tmp_path / "before", ms_steps(100)),
        plain_run(tmp_path / "after", after, start=2 * 10**18),
    )
    assert [(name, ns / MS) for name, ns in found.opposed_parts] == parts


@pytest.mark.slow
def test_a_change_of_the_bucket_view_is_named_beside_the_cause(runs, monkeypatch, worded):
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
    assert found.cause.beside != ()
    worded(cause_text(found.cause))
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
                builder.nccl_payload(
                    launch, "ncclAllReduce", {COMM: 7, BYTES: size // n}, NCCL_2_21, end=launch + 50
                )
                builder.nccl(start, start + transfer, launch=launch + 10)
            at += compute + n * transfer + 5 * MS
        builder.write(folder / f"r_{rank}.sqlite")
    return captured(nsyspipe.load(folder, jobs=1), **dict(versions))


LINK = SimpleNamespace(
    slowest=SlowestLink("shm", 0, 1, None, "host memory", 1, 0, 1, is_of_ring=True)
)


@pytest.mark.slow
@pytest.mark.parametrize("is_link_known", [True, False])
def test_a_bandwidth_that_was_measured_is_no_cause(tmp_path, is_link_known):
    """4 MB in 2 x 20 ms are 0.1 GB/s, in 2 x 5 ms 0.4 GB/s."""
    runs = [bucket_run(tmp_path / name, 2, ms * MS) for name, ms in (("a", 20), ("b", 5))]
    if is_link_known:
        runs = [Changed(run, link=LINK) for run in runs]
    cause = diff(*(Side(name, (run,)) for name, run in zip("ab", runs, strict=True))).cause
    assert (cause.part, cause.facts, cause.n_matters) == ("exposed_comm", (), 0)
    assert cause.bandwidth == ("bus bandwidth", "bytes/s", pytest.approx(1e8), pytest.approx(4e8))
    assert cause.is_link_compared == is_link_known


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "facts", "n_matters"),
    [
        # 4 MB in 40 ms are 0.1 GB/s, in 4 x 2 ms 0.5 GB/s: of two ranks the bus has the bytes once.
        ((1, 40), (4, 2), {COLLECTIVES: (1, 4), MEAN_MESSAGE: (4e6, 1e6)}, 1),
        # 4 x 10 ms are as slow as 1 x 40: only the buckets; one matter, in two figures.
        (
            (1, 40),
            (4, 5, 2_000_000),
            {COLLECTIVES: (1, 4), MEAN_MESSAGE: (4e6, 5e5), MESSAGE_BYTES: (4e6, 2e6)},
            1,
        ),
        # A link that became faster explains nothing that got slower.
        (
            (1, 20),
            (1, 40, 16_000_000),
            {MEAN_MESSAGE: (4e6, 1.6e7), MESSAGE_BYTES: (4e6, 1.6e7)},
            1,
        ),
        # What is not marked is not said beside what is: 4 % more bandwidth.
        (
            (1, 40),
            (4, 5, 2_080_000),
            {COLLECTIVES: (1, 4), MEAN_MESSAGE: (4e6, 5.2e5), MESSAGE_BYTES: (4e6, 2.08e6)},
            1,
        ),
        # Another program may be why, whatever else is.
        (
            (1, 40, 4_000_000, (("git_commit", "a"),)),
            (1, 10, 4_000_000, (("git_commit", "b"),)),
            {"commit": ("a", "b")},
            1,
        ),
        # Two matters
        (
            (1, 40, 4_000_000, (("git_commit", "a"),)),
            (1, 10, 2_000_000, (("git_commit", "b"),)),
            {MEAN_MESSAGE: (4e6, 2e6), MESSAGE_BYTES: (4e6, 2e6), "commit": ("a", "b")},
            2,
        ),
    ],
)
def test_every_change_that_may_explain_communication_is_told_with_the_others(
    tmp_path, before, after, facts, n_matters, worded
):
    runs = [
        bucket_run(tmp_path / name, n, ms * MS, *more)
        for name, (n, ms, *more) in (("a", before), ("b", after))
    ]
    difference = diff(*(Side(name, (run,)) for name, run in zip("ab", runs, strict=True)))
    cause = difference.cause
    assert (cause.part, cause.n_matters) == ("exposed_comm", n_matters)
    assert {
        what: pytest.approx(both) if unit else tuple(both) for what, unit, *both in cause.facts
    } == facts
    worded(cause_text(cause))
    assert facts.keys() <= {*difference.changes["what"].to_pylist()}


def test_equal_bytes_in_messages_of_other_sizes_are_no_equal_sizes(tmp_path):
    """4 MB a step on both sides: in one message, and in four of 1 MB."""
    runs = [bucket_run(tmp_path / name, n, 40 // n * MS) for name, n in (("a", 1), ("b", 4))]
    difference = diff(*(Side(name, (run,)) for name, run in zip("ab", runs, strict=True)))
    of_collectives = [row for row in difference.facts.to_pylist() if row["topic"] == "collectives"]
    is_same = {
        row["what"]: row["is_same"] for row in of_collectives if row["recorded_on"] == "both"
    }
    assert is_same == {COLLECTIVES: False, MESSAGE_BYTES: True}
    changed = {
        row["what"]: (row["baseline_value"], row["candidate_value"])
        for row in difference.changes.to_pylist()
    }
    assert changed[MEAN_MESSAGE] == (4e6, 1e6)
