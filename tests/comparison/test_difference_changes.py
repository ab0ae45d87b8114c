"""What changed around the step time."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nsyspipe
from nsyspipe.analysis.links import SlowestLink
from nsyspipe.comparison.changes import StepTable
from nsyspipe.comparison.difference import _is_alike, surroundings
from nsyspipe.model.fabric import NcclFacts
from nsyspipe.model.sidecar import RunCapture
from tests.build.changed_run import Changed
from tests.build.plain_steps import plain_rank, plain_run

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


@pytest.fixture
def run(tmp_path):
    return plain_run(tmp_path / "base", [STEPS, STEPS])


def captured(run, **facts):
    """Return the run as if a sidecar said how it was captured."""
    return Changed(run, header=replace(run.header, capture=RunCapture(**facts)))


def test_nothing_changes_from_a_run_to_itself(run):
    assert changes(run, run) == {}


def test_collectives_and_copies_are_counted_per_rank_and_step(run, tmp_path):
    folder = tmp_path / "b"
    folder.mkdir()
    for rank in range(2):
        builder = plain_rank(rank, [(1000, 100, 0, 60)] * 3, world_size=2)
        for step in range(3):
            at = 1600 + 1160 * step
            builder.nccl(at + 500, at + 510, launch=at - 5)
        builder.write(folder / f"run_{rank}.sqlite")
    after = nsyspipe.load(folder, jobs=1)
    assert changes(run, after) == {
        ("collectives", "collectives per step"): (1, 2, 1),
        ("copies", "DtoD bytes per step"): (320, 0, -320),
        ("copies", "DtoD copies per step"): (1, 0, -1),
    }


def test_sorts_of_collectives_are_told_apart_where_the_total_does_not(run, tmp_path):
    folder = tmp_path / "b"
    folder.mkdir()
    for rank in range(2):
        builder = plain_rank(rank, STEPS, world_size=2)
        old = builder.string("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        new = builder.string("ncclDevKernel_AllGather_f16_RING_LL")
        for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
            if row["shortName"] == old:
                row["shortName"] = row["demangledName"] = new
        builder.write(folder / f"run_{rank}.sqlite")
    found = changes(run, nsyspipe.load(folder, jobs=1))
    assert found == {
        ("collectives", "all_gather f16 per step"): (0, 1, 1),
        ("collectives", "all_reduce f32 per step"): (1, 0, -1),
    }


def test_a_straggler_is_named_where_it_costs_a_hundredth_of_a_step(run, tmp_path):
    # Rank 1 computes 200 ns longer, for which rank 0 waits inside of each all-reduce.
    late = [(1200, 100, 40, 0)] * 3
    early = [(1000, 300, 40, 0)] * 3
    found = changes(run, plain_run(tmp_path / "b", [early, late]))
    assert found["stragglers", "the others wait for"] == ("nobody", "rank 1")
    assert found["stragglers", "lateness of the latest rank per step"] == (0, 200, 200)


def test_ranks_that_are_late_in_turn_are_named_as_the_finding_names_them(run, tmp_path):
    # Each rank computes 200 ns longer in every other step: neither alone is waited for.
    late, early = (1200, 100, 40, 0), (1000, 300, 40, 0)
    other = plain_run(tmp_path / "b", [[late, early] * 3, [early, late] * 3])
    (finding,) = [row for row in other.findings().to_pylist() if row["id"] == "straggler"]
    assert finding["action"] == "ranks 0 and 1 make the others wait"
    found = changes(run, other)
    assert found["stragglers", "the others wait for"] == ("nobody", "ranks 0, 1")


def test_nobody_is_named_where_the_finding_names_nobody(run, tmp_path):
    # Rank 1 is late by 25 of 1440 ns in every step: more than a hundredth, and less than a finding needs.
    late, early = [(1025, 275, 40, 0)] * 6, [(1000, 300, 40, 0)] * 6
    other = plain_run(tmp_path / "b", [early, late])
    assert not [row for row in other.findings().to_pylist() if row["id"] == "straggler"]
    assert ("stragglers", "the others wait for") not in changes(run, other)


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


def test_a_hashed_variable_may_have_changed_too(run):
    sides = [
        captured(run, environment={"NCCL_ALGO": value, "NCCL_PROTO": "LL"}, hash_key="capture")
        for value in (HASHED, OTHER)
    ]
    assert changes(*sides) == {("capture", "NCCL_ALGO, which may have changed"): ("hmac:?", "hmac:?")}


def test_captures_of_one_side_whose_hashes_say_nothing_look_the_same(run):
    one, other = (captured(run, command=["--a", value, "--lr", "1"], hash_key="capture") for value in (HASHED, OTHER))
    found = changes([one, other], captured(run, command=["--lr", "1"], hash_key="aa"))
    assert found["capture", "command"] == ("--a hmac:? --lr 1", "--lr 1")


def test_the_link_and_what_nccl_was_told(run):
    shm = SlowestLink("shm", 0, 1, None, "host memory", 1, 0, 1, is_of_ring=True)
    nvlink = replace(shm, kind="nvlink")

    class Link:
        def __init__(self, slowest):
            self.slowest = slowest

    before = Changed(run, link=Link(shm), nccl=NcclFacts("2.21", {"NCCL_P2P_DISABLE": "1"}, False))
    after = Changed(run, link=Link(nvlink), nccl=NcclFacts("2.22", {"NCCL_DEBUG": "INFO"}, True))
    assert changes(before, after) == {
        ("link", "slowest link"): ("shm", "nvlink"),
        ("link", "NVLink SHARP"): ("off", "on"),
        ("link", "NCCL_P2P_DISABLE"): ("1", None),
        ("link", "NCCL_DEBUG"): (None, "INFO"),
        ("versions", "NCCL"): ("2.21", "2.22"),
    }


def test_captures_of_a_side_stand_side_by_side_in_words_and_as_means_in_numbers(run, tmp_path):
    few = plain_run(tmp_path / "b", [[(1000, 100, 0, 60)] * 4] * 2)
    one, other = captured(run, torch_version="2.4"), captured(run, torch_version="2.5")
    found = changes([one, other], captured(few, torch_version="2.5"))
    assert found["versions", "torch"] == ("2.4 | 2.5", "2.5")
    assert found["steps", "summary steps"] == ("3, 3", "4")
    assert changes([run, few], run)["copies", "DtoD copies per step"] == (0.5, 1, 0.5)


def copies(folder, sizes):
    """Return one rank's run whose summary steps copy so many bytes each."""
    builder = plain_rank(0, [(1000, 100, 0, 60)] * len(sizes), world_size=1)
    for step, size in enumerate(sizes):
        at = 1600 + 1160 * step
        builder.copy(at + 500, at + 510, n_bytes=size, launch=at - 5)
    folder.mkdir()
    builder.write(folder / "run_0.sqlite")
    return nsyspipe.load(folder, jobs=1)


def test_means_that_look_the_same_are_no_change(tmp_path):
    before = copies(tmp_path / "a", [7968, 7968, 7968])
    # 1 byte in 7968 is 0.0001, 9 are more than a thousandth.
    assert changes(before, copies(tmp_path / "b", [7968, 7968, 7971])) == {}
    found = changes(before, copies(tmp_path / "c", [7977, 7977, 7977]))
    assert found == {("copies", "DtoD bytes per step"): (7968, 7977, 9)}


def test_one_more_of_many_is_a_change():
    assert not _is_alike("count", 5000.0, 5001.0)
    assert _is_alike("count", 5000.25, 5000.5)
    assert _is_alike("bytes", 0.0, 0.0)
    assert not _is_alike("bytes", 0.0, 1.0)
