"""What changed around the step time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from nsyspipe.analysis.links import SlowestLink
from nsyspipe.comparison.changes import StepTable
from nsyspipe.comparison.difference import _is_alike, surroundings
from nsyspipe.model.side_files import NcclFacts, RunCapture
from tests.build.changed_run import Changed

STEPS = [(1000, 100, 40, 60)] * 3


def changes(*sides):
    sides = [side if isinstance(side, list) else [side] for side in sides]
    rows = surroundings(*([StepTable(run) for run in side] for side in sides)).to_pylist()
    return {
        (row["topic"], row["what"]): (row["baseline_value"], row["candidate_value"], row["delta"])
        if row["delta"] is not None
        else (row["baseline"], row["candidate"])
        for row in rows
    }


@pytest.fixture(scope="module")
def run(made):
    return made(STEPS, STEPS)


def captured(run, **facts):
    """Return the run as if a sidecar said how it was captured."""
    return Changed(run, header=replace(run.header, capture=RunCapture(**facts)))


def test_nothing_changes_from_a_run_to_itself(run):
    assert changes(run, run) == {}


def test_collectives_and_copies_are_counted_per_rank_and_step(run, made):
    def with_more_collectives(builder):
        for at in range(1600, 1600 + 3 * 1160, 1160):
            builder.nccl(at + 500, at + 510, launch=at - 5)

    after = made(*[[(1000, 100, 0, 60)] * 3] * 2, edit=with_more_collectives)
    assert changes(run, after) == {
        ("collectives", "collectives per step"): (1, 2, 1),
        ("copies", "DtoD bytes per step"): (320, 0, -320),
        ("copies", "DtoD copies per step"): (1, 0, -1),
    }


def test_sorts_of_collectives_are_told_apart_where_the_total_does_not(run, made):
    def with_another_sort(builder):
        old, new = map(
            builder.string, ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_f16_RING_LL")
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
        # Rank 1 computes 200 ns longer, for which rank 0 waits inside of each all-reduce.
        (([EARLY] * 3, [LATE] * 3), ["rank 1 makes the others wait, mostly in backward"], ("nobody", "rank 1")),
        # Each rank computes 200 ns longer in every other step: neither alone is waited for.
        (([LATE, EARLY] * 3, [EARLY, LATE] * 3), ["ranks 0 and 1 make the others wait"], ("nobody", "ranks 0, 1")),
        # Rank 1 is late by 25 of 1440 ns in every step: more than a hundredth, and less than a finding needs.
        (([(1000, 300, 40, 0)] * 6, [(1025, 275, 40, 0)] * 6), [], None),
    ],
    ids=["one", "in turn", "little"],
)
def test_stragglers_are_named_as_the_finding_names_them(run, made, ranks, actions, named):
    other = made(*ranks)
    assert [row["action"] for row in other.findings().to_pylist() if row["id"] == "straggler"] == actions
    found = changes(run, other)
    assert found.get(("stragglers", "the others wait for")) == named
    if named == ("nobody", "rank 1"):
        assert found["stragglers", "lateness of the latest rank per step"] == (0, 200, 200)


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


@pytest.mark.parametrize(
    ("keys", "commands", "row"),
    [
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
    ],
)  # fmt: skip
def test_hashed_values_are_compared_where_one_key_hashed_both(run, keys, commands, row):
    before, after = (
        captured(run, command=command.split(), hash_key=key) for key, command in zip(keys, commands, strict=True)
    )
    found = changes(before, after)
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


def test_captures_of_a_side_stand_side_by_side_in_words_and_as_means_in_numbers(run, made):
    few = made(*[[(1000, 100, 0, 60)] * 4] * 2)
    one, other = captured(run, torch_version="2.4"), captured(run, torch_version="2.5")
    found = changes([one, other], captured(few, torch_version="2.5"))
    assert found["versions", "torch"] == ("2.4 | 2.5", "2.5")
    assert found["steps", "summary steps"] == ("3, 3", "4")
    assert changes([run, few], run)["copies", "DtoD copies per step"] == (0.5, 1, 0.5)


def test_means_that_look_the_same_are_no_change(made):
    def copies(*sizes):
        def with_copies(builder):
            for step, size in enumerate(sizes):
                at = 1600 + 1160 * step
                builder.copy(at + 500, at + 510, n_bytes=size, launch=at - 5)

        return made([(1000, 100, 0, 60)] * 3, edit=with_copies)

    before = copies(7968, 7968, 7968)
    # 1 byte in 7968 is 0.0001, 9 are more than a thousandth.
    assert changes(before, copies(7968, 7968, 7971)) == {}
    assert changes(before, copies(7977, 7977, 7977)) == {("copies", "DtoD bytes per step"): (7968, 7977, 9)}


@pytest.mark.parametrize(
    ("unit", "one", "other", "is_alike"),
    [("count", 5000.0, 5001.0, False), ("count", 5000.25, 5000.5, True), ("bytes", 0.0, 0.0, True), ("bytes", 0.0, 1.0, False)],
)  # fmt: skip
def test_one_more_of_many_is_a_change(unit, one, other, is_alike):
    assert _is_alike(unit, one, other) == is_alike
