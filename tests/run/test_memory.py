"""Memory of ranks: that of the GPU by the report, peaks of torch by the sidecar, and what is left."""

import json

import pytest

import nsyspipe
from nsyspipe.model import schema
from nsyspipe.store.write import save
from tests.build.tools import run_of
from tests.build.trace import steady_rank

AT = "2001-09-09T01:46:40Z"
GIB = 2**30
COLUMNS = (
    "gpu_memory_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "headroom_bytes",
    "n_alloc_retries",
)
NOT_KNOWN = dict.fromkeys(COLUMNS)
PEAKS = {"peak_allocated_bytes": 10 * GIB, "peak_reserved_bytes": 12 * GIB, "allocator_retries": 3}


def rank_on(total, rank=0, world_size=1):
    """Return a rank on a GPU with so many bytes of memory, None if that is not recorded."""
    builder = steady_rank(rank, world_size=world_size)
    (gpu,) = builder.rows["TARGET_INFO_GPU"]
    if total is not None:
        gpu["totalMemory"] = total
    return builder


def loaded(folder, builders, *memories):
    """Return the run of some ranks, with the memory that the sidecar has of each."""
    entries = []
    for at, (builder, memory) in enumerate(zip(builders, memories, strict=True)):
        builder.write(folder / f"ddp_{at}.sqlite")
        entry = {"rank": at, "report": f"ddp_{at}", "pid": 1000 + at, "memory": memory}
        entries.append(entry)
    content = {"name": "ddp", "captured_at_utc": AT, "ranks": entries}
    (folder / "ddp.capture.json").write_text(json.dumps(content))
    return nsyspipe.load(folder, jobs=1)


def rows(run):
    return [{name: row[name] for name in COLUMNS} for row in run.ranks.to_pylist()]


def test_peaks_and_what_is_left_of_the_memory(tmp_path):
    run = loaded(tmp_path, [rank_on(16 * GIB)], PEAKS)
    assert rows(run) == [
        {
            "gpu_memory_bytes": 16 * GIB,
            "peak_allocated_bytes": 10 * GIB,
            "peak_reserved_bytes": 12 * GIB,
            "headroom_bytes": 4 * GIB,
            "n_alloc_retries": 3,
        }
    ]


def test_each_rank_has_its_own_peaks(tmp_path):
    builders = [rank_on(16 * GIB, rank, world_size=2) for rank in range(2)]
    run = loaded(tmp_path, builders, PEAKS, PEAKS | {"peak_reserved_bytes": 16 * GIB})
    assert [row["headroom_bytes"] for row in rows(run)] == [4 * GIB, 0]


def test_without_a_sidecar_only_the_memory_of_the_gpu_is_known(tmp_path):
    run = run_of(tmp_path, rank_on(16 * GIB))
    assert rows(run) == [NOT_KNOWN | {"gpu_memory_bytes": 16 * GIB}]


def test_a_sidecar_of_an_older_version_has_no_peaks(tmp_path):
    run = loaded(tmp_path, [rank_on(16 * GIB)], None)
    assert rows(run) == [NOT_KNOWN | {"gpu_memory_bytes": 16 * GIB}]


def test_without_the_memory_of_the_gpu_nothing_is_left_to_tell(tmp_path):
    run = loaded(tmp_path, [rank_on(None)], PEAKS)
    assert rows(run)[0] | {"n_alloc_retries": None} == {
        "gpu_memory_bytes": None,
        "peak_allocated_bytes": 10 * GIB,
        "peak_reserved_bytes": 12 * GIB,
        "headroom_bytes": None,
        "n_alloc_retries": None,
    }


def test_what_a_sidecar_leaves_out_is_not_known(tmp_path):
    run = loaded(tmp_path, [rank_on(16 * GIB)], {"allocator_retries": 0})
    assert rows(run) == [NOT_KNOWN | {"gpu_memory_bytes": 16 * GIB, "n_alloc_retries": 0}]


def test_more_reserved_memory_than_there_is_leaves_an_unknown_rest(tmp_path):
    run = loaded(tmp_path, [rank_on(16 * GIB)], PEAKS | {"peak_reserved_bytes": 16 * GIB + 1})
    assert [row["headroom_bytes"] for row in rows(run)] == [None]


@pytest.mark.parametrize("total", [0, -1, 2**44 + 1, 2**63 - 1])
def test_an_impossible_size_of_a_gpu_is_not_known(tmp_path, total):
    run = run_of(tmp_path, rank_on(total))
    assert rows(run) == [NOT_KNOWN]


# Which GPU the process sees is not known, because its ordinal counts only visible GPUs.
def test_gpus_of_different_sizes_need_their_number(tmp_path):
    builder = rank_on(16 * GIB).gpu(1, totalMemory=32 * GIB).env(CUDA_VISIBLE_DEVICES="1")
    assert rows(run_of(tmp_path, builder)) == [NOT_KNOWN]


def test_the_number_of_a_gpu_tells_its_size(tmp_path):
    builder = rank_on(16 * GIB).gpu(1, totalMemory=32 * GIB)
    assert [row["gpu_memory_bytes"] for row in rows(run_of(tmp_path, builder))] == [16 * GIB]


def test_a_gpu_of_unknown_size_may_be_the_one(tmp_path):
    builder = rank_on(16 * GIB).gpu(1).env(CUDA_VISIBLE_DEVICES="1")
    assert rows(run_of(tmp_path, builder)) == [NOT_KNOWN]


def test_peaks_of_a_process_with_several_gpus_are_not_known(tmp_path):
    builder = rank_on(16 * GIB).gpu(1, totalMemory=16 * GIB)
    for step in range(4):
        at = 1000 * step
        builder.kernel(at + 400, at + 600, launch=at + 95, device=1)
    run = loaded(tmp_path, [builder], PEAKS)
    assert rows(run) == [NOT_KNOWN | {"gpu_memory_bytes": 16 * GIB}] * 2


def test_a_saved_run_has_the_same_memory(tmp_path):
    run = loaded(tmp_path, [rank_on(16 * GIB)], PEAKS)
    save(run, tmp_path / "runs")
    assert rows(nsyspipe.load(tmp_path / "runs")) == rows(run)


@pytest.mark.parametrize("name", COLUMNS)
def test_the_columns_are_nullable(name):
    (column,) = [one for one in schema.RANKS.columns if one.name == name]
    assert column.nullable
