"""Runs that are laid out by hand, each made once for all tests."""

from dataclasses import replace

import pytest

import nsyspipe
from nsyspipe.comparison.changes import StepTable
from nsyspipe.comparison.surroundings import surroundings
from nsyspipe.model.captured import RunCapture
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.plain_steps import plain_rank
from tests.build.tools import Changed
from tests.build.trace import steady_rank

NEW = "3.25.0 2026.2.1 mfu"
COMM, BYTES = "NCCL communicator ID", "Message size [bytes]"
STEPS = [(1000, 100, 40, 60)] * 3


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a function that makes a run of a list of steps per rank; `edit` changes a rank's report before it is written."""
    runs = {}

    def make(*ranks, edit=None, without=(), load=None, **options):
        options = {"world_size": len(ranks), **options}
        key = (
            repr((ranks, without, load, options)),
            edit,
        )  # kept, so that no other function is taken for it
        if key not in runs:
            folder = tmp_path_factory.mktemp("made")
            for rank, steps in enumerate(ranks):
                builder = plain_rank(rank, steps, **options)
                if edit is not None:
                    edit(builder)
                builder.write(folder / f"run_{rank}.sqlite", without=without)
            runs[key] = nsyspipe.load(folder, jobs=1, **load or {})
        return runs[key]

    return make


def payload_run(folder, size):
    """Write two ranks of six steps with an all-reduce of 60 ns whose size NCCL says, and open them."""
    folder.mkdir()
    for rank in range(2):
        builder = steady_rank(rank, 6, version=NEW).domain("NCCL", 1)
        for step in range(6):
            builder.nccl_payload(
                1000 * step + 80, "ncclAllReduce", {COMM: 7, BYTES: size}, NCCL_2_21
            )
        builder.write(folder / f"r_{rank}.sqlite")
    return nsyspipe.load(folder, jobs=1)


@pytest.fixture(scope="session")
def run(made):
    """Return two ranks of equal steps: windows [1000, 1600), skipped, three of 1200, and one that is cut off."""
    return made(STEPS, STEPS)


def changes(*sides):
    sides = [side if isinstance(side, list) else [side] for side in sides]
    rows = surroundings(*([StepTable(run) for run in side] for side in sides)).changes.to_pylist()
    words, numbers = ("baseline", "candidate"), ("baseline_value", "candidate_value", "delta")
    names = [words if row["delta"] is None else numbers for row in rows]
    return {
        (row["topic"], row["what"]): tuple(map(row.get, own))
        for row, own in zip(rows, names, strict=True)
    }


def captured(run, **facts):
    return Changed(run, header=replace(run.header, capture=RunCapture(**facts)))
