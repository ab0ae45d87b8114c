"""Backward ranges that modules push on autograd's thread, one per layer."""

import numpy as np
import pyarrow.compute as pc
import pytest

import nsyspipe
from tests.build.trace import TraceBuilder

US, MS = 1_000, 1_000_000
N_LAYERS, LAYER_NS = 6, 8 * MS


def write_rank(directory, rank, layer_names, thread="autograd"):
    """Write a rank of ten steps of 100 ms: kernels of the layers run in [31, 79) ms of a step, communication in [60, 84)."""
    trace = (
        TraceBuilder(pid=4000 + rank)
        .session(10**18)
        .host("node0")
        .gpu()
        .env(RANK=rank, WORLD_SIZE=2)
    )
    for step in range(10):
        begin = step * 100 * MS + 10 * MS
        trace.range(begin, begin + 95 * MS, f"step {step}")
        trace.kernel(begin + MS, begin + 30 * MS, launch=begin + 100 * US)
        for layer in range(N_LAYERS):
            at, start = begin + 9 * MS + layer * MS, begin + 31 * MS + layer * LAYER_NS
            if layer < len(layer_names):
                trace.range(at, at + 900 * US, layer_names[layer], thread=thread)
            trace.kernel(start, start + LAYER_NS, launch=at + 100 * US, thread="autograd")
        trace.nccl(
            begin + 60 * MS, begin + 84 * MS, launch=begin + 14 * MS + 500 * US, thread="autograd"
        )
        trace.kernel(
            begin + 84 * MS, begin + 88 * MS, "FusedAdamMathFunctor", launch=begin + 20 * MS
        )
    return trace.write(directory / f"layers_{rank}.sqlite")


def analyzed(directory, *layer_names, thread="autograd", **options):
    paths = [write_rank(directory, rank, layer_names, thread) for rank in range(2)]
    return nsyspipe.load(paths, **options)


def hidden_by_backward(run):
    return {*run.breakdown()["overlap_backward_ns"].to_pylist()}


def codes(run):
    return {*run.problems["code"].to_pylist()}


ALL_LAYERS = [f"block{5 - layer}.backward" for layer in range(N_LAYERS)]


@pytest.mark.parametrize("names", [ALL_LAYERS, []])
def test_layers_that_are_marked_hide_as_much_as_where_the_thread_tells(tmp_path, names):
    run = analyzed(tmp_path, *names)
    assert hidden_by_backward(run) == {19 * MS}  # [60, 79)
    assert "no-backward" not in codes(run)
    assert ("backward-by-thread" in codes(run)) == (not names)


def test_only_the_layers_that_are_marked_are_backward(tmp_path):
    # Of the last two layers the second last is not marked: [71, 79) of [63, 79) ms is.
    run = analyzed(tmp_path, "x", "x", "x", "x", "x", "block0.backward")
    assert hidden_by_backward(run) == {8 * MS}


def test_a_pattern_with_digits_asks_for_some_of_the_layers(tmp_path):
    names = [f"bprop {5 - layer}" for layer in range(N_LAYERS)]
    run = analyzed(tmp_path, *names, backward=r"bprop [01]$")
    assert hidden_by_backward(run) == {16 * MS}  # [63, 79)
    assert not {"phase-pattern-unmatched", "no-backward"} & codes(run)


def test_ranges_of_a_thread_without_launches_leave_the_answer_as_it_was(tmp_path):
    run = analyzed(tmp_path, *ALL_LAYERS, thread="worker")
    assert hidden_by_backward(run) == {19 * MS}
    assert "backward-by-thread" in codes(run)


def test_layers_of_one_backward_pass_are_one_micro_batch(tmp_path):
    run = analyzed(tmp_path, *ALL_LAYERS)
    assert "no-sync" not in run.findings()["id"].to_pylist()


def test_the_second_reading_finds_the_same_backward(tmp_path):
    run = analyzed(tmp_path, *ALL_LAYERS)
    for _, events, ranges in run.operations():
        launched = events.filter(pc.equal(events["phase"], "backward"))
        assert np.count_nonzero(pc.equal(launched["category"], "compute")) == 10 * N_LAYERS, events
        assert pc.sum(pc.equal(ranges["phase"], "backward")).as_py() == 10 * N_LAYERS, events
