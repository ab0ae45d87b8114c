"""Sentences and the table about GPU memory: what is shown of a run, by what is known of it."""

import json

import pytest

import nsyspipe
from nsyspipe.report.memory import memory_texts, rank_tables
from nsyspipe.store.write import save
from tests.build.tools import run_of
from tests.build.trace import steady_rank
from tests.findings.test_memory import freeing_rank

GIB = 2**30
PEAKS = {"peak_allocated_bytes": 10 * GIB, "peak_reserved_bytes": 12 * GIB, "allocator_retries": 3}


def loaded(folder, builder, *memories):
    """Return the run of ranks on GPUs of 16 GiB, with the memory that the sidecar has of each."""
    entries = []
    for at, memory in enumerate(memories):
        trace = builder(rank=at, world_size=len(memories))
        trace.rows["TARGET_INFO_GPU"][0]["totalMemory"] = 16 * GIB
        trace.write(folder / f"ddp_{at}.sqlite")
        entries.append({"rank": at, "report": f"ddp_{at}", "pid": 1000 + at, "memory": memory})
    content = {"name": "ddp", "captured_at_utc": "2001-09-09T01:46:40Z", "ranks": entries}
    (folder / "ddp.capture.json").write_text(json.dumps(content))
    return nsyspipe.load(folder, jobs=1)


MORE = PEAKS | {"peak_reserved_bytes": 13 * GIB, "allocator_retries": 4}


@pytest.mark.parametrize(
    "memories",
    [
        (PEAKS,),
        (PEAKS | {"allocator_retries": 0},),
        ({"peak_reserved_bytes": 12 * GIB},),
        (PEAKS, MORE),
        (PEAKS, None),
    ],
    ids=["one rank", "no retries", "reserved memory alone", "two ranks", "one of two ranks"],
)
def test_peaks_in_words(tmp_path, memories, worded):
    worded(memory_texts(loaded(tmp_path, steady_rank, *memories)))


def test_calls_in_words(tmp_path, worded):
    worded(memory_texts(run_of(tmp_path, freeing_rank())))


def test_calls_that_fail_in_words(tmp_path, worded):
    worded(memory_texts(run_of(tmp_path, freeing_rank(result=2))))


def test_nothing_is_said_if_nothing_is_known(tmp_path):
    assert memory_texts(run_of(tmp_path, steady_rank(0, world_size=1))) == []


def test_several_ranks_have_a_table(tmp_path):
    (table,) = rank_tables(loaded(tmp_path, steady_rank, PEAKS, MORE), 8)
    assert [len(row) for row in table.rows] == [5, 5]


def test_one_rank_needs_no_table(tmp_path):
    assert [*rank_tables(loaded(tmp_path, steady_rank, PEAKS), 8)] == []


def test_unknown_peaks_have_no_table(tmp_path):
    assert [*rank_tables(loaded(tmp_path, steady_rank, None, None), 8)] == []


@pytest.mark.slow
def test_a_saved_run_says_the_same(tmp_path):
    run = loaded(tmp_path, freeing_rank, PEAKS)
    save(run, tmp_path / "runs")
    assert memory_texts(nsyspipe.load(tmp_path / "runs")) == memory_texts(run)
