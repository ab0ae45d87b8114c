"""Kernels by phase and name: what they cost, what they are called, which of them cost most."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.intervals import EMPTY, union
from nsyspipe.analysis.kernels import costliest, kernels_table
from nsyspipe.model import schema
from nsyspipe.model.canonical import GRAPH_NAME_ID
from nsyspipe.model.names import PHASES
from tests.build.make import comm, compute, dtod, ints, operations, windows

NONE = len(PHASES)
COLUMNS = ["phase", "label", "n_kernels", "total_ns", "min_ns", "max_ns", "overlapped_ns"]
SLOWED = ["n_slowed", "slowed_ns", "free_ns"]


def costs(*ops, label, phase, under=(), columns=COLUMNS):
    """Return some columns of each row, kernels being given in order of launch."""
    covered = union(ints(*(a for a, _ in under)), ints(*(b for _, b in under)))
    kernels = sorted((op for op in ops if op.category != "copy"), key=lambda op: (op.launch is None, op.launch or 0))
    named = [op._replace(name_id=number) for op, number in zip(kernels, label, strict=True)]
    texts = {number: f"k{number:08}" for number in label}
    flags = np.array(phase, np.int8)
    table, _ = kernels_table(operations(*reversed(named)), texts, flags, covered, windows())
    assert table.column_names == ["phase", "name", *COLUMNS[2:], *SLOWED]
    numbers = {"phase": [NONE if one is None else PHASES.index(one) for one in table["phase"].to_pylist()]}
    numbers["label"] = [int(one[1:]) for one in table["name"].to_pylist()]
    return list(zip(*(numbers[name] if name in numbers else table[name].to_pylist() for name in columns), strict=True))


def names(*name_ids, texts):
    """Return the name of the kernels of each row, and how many have it."""
    ops = [compute(at, at + 1, at, name_id=one) for at, one in enumerate(name_ids)]
    table, _ = kernels_table(operations(*ops), texts, np.zeros(len(ops), np.int8), EMPTY, windows())
    pairs = zip(table["name"].to_pylist(), table["n_kernels"].to_pylist(), strict=True)
    return dict(pairs)


# --- costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", [(), (dtod(0, 10, 1),)])
def test_without_kernels_there_are_no_rows(ops):
    assert costs(*ops, label=[], phase=[], columns=[*COLUMNS, *SLOWED]) == []


# --- slowed by communication ---------------------------------------------------------------


def row_of_kernels(*durations, covered, grid=8):
    """Return equal kernels one after the other, and the times of some of them."""
    ends = np.cumsum(durations).tolist()
    spans = [(end - length, end) for length, end in zip(durations, ends, strict=True)]
    ops = [compute(*span, at, name_id=5, grid=grid, block=1) for at, span in enumerate(spans)]
    return ops, [spans[at] for at in covered]


def test_slowed_kernels_are_counted_in_the_phase_that_launched_them():
    # The first and the last three lack neighbours. Of the rest 3, 4, 5 ran free for 10; 6, 7, 8, 9
    # under communication for 14, 13, 16, 20, half of them launched in another phase.
    durations = 1, 1, 1, 10, 10, 10, 14, 13, 16, 20, 1, 1, 1
    ops, under = row_of_kernels(*durations, covered=[6, 7, 8, 9])
    phase = [0] * 8 + [1] * 5
    found = costs(*ops, label=[5] * 13, phase=phase, under=under, columns=["n_kernels", *SLOWED])
    assert found == [(8, 2, 27, 20), (5, 2, 36, 20)]


def test_kernels_without_a_grid_are_not_compared():
    ops, under = row_of_kernels(*[10] * 12, covered=[6, 7, 8], grid=None)
    found = costs(*ops, label=[5] * 12, phase=[0] * 12, under=under, columns=["overlapped_ns", *SLOWED])  # fmt: skip
    assert found == [(30, 0, 0, 0)]


# --- names ---------------------------------------------------------------------------------


def test_a_row_says_its_phase_and_name_in_words():
    ops = compute(0, 4, 1, name_id=3), compute(5, 6, 2, name_id=4), comm(4, 6, 3, name_id=9)
    texts = {3: "void gemm<int>(int)", 4: "relu", 9: "ncclKernel(x)"}
    phase, covered = np.array([0, -1, 3], np.int8), union(ints(4), ints(6))
    table, by_window = kernels_table(operations(*ops), texts, phase, covered, windows((0, 5), (5, 6)))
    assert [tuple(row.values())[:4] for row in table.to_pylist()] == [
        ("backward", "gemm", 1, 4), ("data", "ncclKernel", 1, 2), (None, "relu", 1, 1),
    ]  # fmt: skip
    assert table["overlapped_ns"].to_pylist() == [0, 0, 1]
    assert by_window.over(np.array([True, False]))[1].tolist() == [4, 2, 0]
    assert by_window.over(np.array([False, True]))[1].tolist() == [0, 0, 1]


def test_names_that_differ_in_parameters_and_template_arguments_are_one():
    texts = {1: "void gemm<4>(int)", 2: "void gemm<8, true>(float*)", 3: "gemm"}
    assert names(1, 2, 3, 2, texts=texts) == {"gemm": 4}


def test_graphs_and_kernels_without_a_name_have_words_of_their_own():
    assert names(GRAPH_NAME_ID, 7, None, 8, texts={7: "gemm"}) == {
        "CUDA graph": 1, "gemm": 1, "(no name)": 2,
    }  # fmt: skip
    assert names(None, GRAPH_NAME_ID, texts={}) == {"(no name)": 1, "CUDA graph": 1}


@pytest.mark.parametrize("far", [2**22, 2**40, 2**63 - 1, -2, -(2**62)])
def test_far_and_negative_ids_have_their_names_too(far):
    texts = {far: "far", 6: "near"}
    assert names(far, 6, 5, 7, GRAPH_NAME_ID, far - 1, texts=texts) == {
        "far": 1, "near": 1, "(no name)": 3, "CUDA graph": 1,
    }  # fmt: skip


# --- the costliest -------------------------------------------------------------------------


def kept(*rows, n_kept):
    """Return the names kept of rows (rank, phase, name, total)."""
    keys = ("rank", "phase", "name", "total_ns")
    table = schema.KERNEL_COSTS.from_rows([dict(zip(keys, row, strict=True)) for row in rows])
    found = costliest(table, n_kept)
    assert found.schema == schema.KERNEL_COSTS.arrow
    return ["".join(map(str, row)) for row in zip(*(found[name].to_pylist() for name in keys[:3]), strict=True)]  # fmt: skip


def test_of_each_rank_and_phase_the_names_with_most_time_are_kept_in_the_tables_order():
    rows = (
        (0, "backward", "a", 5), (0, "backward", "b", 9), (0, "backward", "c", 7),
        (0, None, "a", 1), (0, None, "b", 2), (0, None, "c", 3), (1, "backward", "z", 1),
    )  # fmt: skip
    assert kept(*rows, n_kept=2) == [
        "0backwardb", "0backwardc", "0Noneb", "0Nonec", "1backwardz",
    ]  # fmt: skip
    assert kept(*rows, n_kept=1) == ["0backwardb", "0Nonec", "1backwardz"]
    assert kept(*rows, n_kept=0) == []


def test_of_names_with_equal_time_the_first_in_the_alphabet_are_kept():
    rows = (0, "data", "a", 5), (0, "data", "b", 9), (0, "data", "c", 5)
    assert kept(*rows, n_kept=2) == ["0dataa", "0datab"]
