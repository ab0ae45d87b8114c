"""Captures of two and four GPUs, of programs without a range of their own, against what each program knows of itself."""

import json
import lzma
import shutil
import sqlite3
import statistics
from collections import Counter
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.opening import opened_replay

pytestmark = pytest.mark.slow

REAL = Path(__file__).parents[1] / "real"
PROGRAMS = json.loads((REAL / "4gpu" / "programs.json").read_text())
# How the programs call what traffic has other names for.
ROLES = {"shard": "sharded", "replicate (all-reduce)": "data"}
COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
}
# Of two GPUs, nobody's hand in the program: role, calls in a step, and rank 0's steps by its own
# clock (ms). 12 blocks: the block and the root are gathered, and not again for backward; tensor
# parallel sums what o and down give, and the gradients of what q, k, v and up take. Of a block DDP
# makes buckets of up, down and the four of attention.
UNTOUCHED = {
    "fsdp2-keep": ("sharded", {"all_gather": 12 + 1, "reduce_scatter": 12 + 1}, [85.9, 87.3, 83.7]),
    "tp-none": (
        "tensor",
        {"all_reduce": 12 * (2 + 4)},
        [208.2, 179.9, 193.0, 232.6, 224.1, 191.5, 178.3, 194.3, 180.9],
    ),
    "ddp-sync-big": ("data", {"all_reduce": 3 * (12 * 3 + 2)}, [281.1, 206.8]),
    "ddp-nosync-big": ("data", {"all_reduce": 12 * 3 + 2}, [190.1, 198.9]),
    "trainer": ("data", {"all_gather": 1}, []),
}


def unpacked(pattern, folder):
    for packed in REAL.glob(f"{pattern}_*.xz"):
        with lzma.open(packed) as source, (folder / packed.stem).open("wb") as target:
            shutil.copyfileobj(source, target)
    return folder


@pytest.fixture(scope="module", params=PROGRAMS)
def captured(request, captures):
    """Return a run and what its programs said."""
    return captures.run(f"4gpu/{request.param}"), PROGRAMS[request.param]


def test_steps_are_those_that_the_program_counted(captured):
    run, programs = captured
    assert run.header.steps_from == "repetition"
    assert run.summary()["n_steps"].to_pylist() == [programs[0]["n_captured"]]
    # Of the first the program waits for the profiler. Its clock is the host's, ours the device's.
    told = statistics.median(
        max(laps) for laps in zip(*(one["step_ms_captured"][1:] for one in programs), strict=True)
    )
    assert run.summary()["step_time_ns"][0].as_py() / 1e6 == pytest.approx(told, rel=0.1)


def test_communicators_have_the_roles_and_ranks_that_the_program_gave_them(captured):
    run, programs = captured
    groups = [
        (role, ranks) for role, all_ranks in programs[0]["groups"].items() for ranks in all_ranks
    ]
    of_program = {(ROLES.get(role, role), ",".join(map(str, ranks))) for role, ranks in groups}
    rows = [row for row in run.traffic().to_pylist() if row["rank"] is None]
    assert {(row["role"], row["ranks"]) for row in rows} == of_program


def test_calls_are_as_many_as_the_program_made(captured):
    run, programs = captured
    told: Counter[tuple[int, str, str]] = Counter()
    for program in programs:
        for call in program["traffic_per_step"]:
            name = COLLECTIVES.get(call["call"], call["call"])
            told[program["rank"], name, ",".join(map(str, call["ranks"]))] += call["calls"]
    rows = {
        (row["rank"], row["collective"], row["ranks"]): row["calls_per_step"]
        for row in run.traffic().to_pylist()
        if row["rank"] is not None
    }
    # Programs count their own calls; what DDP sends on its own is not among them. Sends and
    # receives may be one operation.
    own = {key: n for key, n in told.items() if key[1] != "send_recv"}
    assert {key: rows[key] for key in own} == own


def test_only_the_program_that_sends_in_every_micro_batch_is_told_so(captured):
    run, programs = captured
    is_broken = programs[0]["job"] == "accum-broken"
    assert ("no-sync" in run.findings()["id"].to_pylist()) == is_broken
    if "data" not in programs[0]["groups"]:
        assert not {"single-bucket", "too-many-buckets", "grad-copy"} & {
            *run.findings()["id"].to_pylist()
        }


@pytest.fixture(scope="module", params=UNTOUCHED)
def untouched(request, captures):
    """Return the name of a capture, its run as it comes and by repetition, and what its program does."""
    name = f"2gpu/{request.param}"
    return request.param, captures.run(name), captures.run(name, step="repetition")


def test_attached_ranges_and_repetition_give_the_steps_that_the_program_timed(untouched):
    name, run, by_repetition = untouched
    assert run.header.steps_from == ("repetition" if name == "tp-none" else "ranges")
    tables = (one.steps().to_pylist() for one in (run, by_repetition))
    windows = [[(row["rank"], row["start_ns"], row["end_ns"]) for row in rows] for rows in tables]
    assert windows[0] == windows[1]
    walls = [row["wall_ns"] / 1e6 for row in run.steps().to_pylist() if row["rank"] == 0]
    laps = UNTOUCHED[name][2]
    assert walls[: len(laps)] == pytest.approx(laps, rel=0.02)
    assert run.summary()["step_time_ns"] == by_repetition.summary()["step_time_ns"]


def test_traffic_of_an_unchanged_program_has_its_role(
    untouched,
):
    name, *runs = untouched
    role, calls, _ = UNTOUCHED[name]
    for run in runs:
        rows = {row["collective"]: row for row in run.traffic().to_pylist() if row["rank"] is None}
        assert {row["ranks"] for row in rows.values()} == {"0,1"}, run
        assert {collective: rows[collective]["calls_per_step"] for collective in calls} == calls, (
            run
        )
        assert role in {row["role"] for row in rows.values()} <= {role, "other"}, run
        assert ("no-sync" in run.findings()["id"].to_pylist()) == (name == "ddp-sync-big"), run


def without_payloads(folder):
    for path in folder.glob("*.sqlite"):
        with sqlite3.connect(path) as database:
            database.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
        database.close()
    return folder


def log_of(run):
    """Return what NCCL's log says of the communicators of a run on one host that names them."""
    pids = {row["rank"]: row["pid"] for row in run.ranks.to_pylist()}
    pairs = {(row["comm_id"], row["rank"]) for row in run.collectives().to_pylist()}
    members = {
        comm_id: sorted(rank for one, rank in pairs if one == comm_id) for comm_id, _ in pairs
    }
    lines = []
    for comm_id, ranks in members.items():
        for place, rank in enumerate(ranks):
            comm = (
                f"comm 0x{comm_id[2:6]}{rank} rank {place} nranks {len(ranks)} cudaDev {rank} "
                f"nvmlDev {rank}"
            )
            process = f"node0:{pids[rank]}:{pids[rank]} [{rank}]"
            lines.append(
                f"{process} NCCL INFO ncclCommInitRankConfig {comm} busId {rank} commId "
                f"{comm_id} - Init COMPLETE\n"
            )
    return "".join(lines)


def test_waits_of_tensor_and_data_parallelism_by_the_log_are_those_by_payloads(
    runs, real, tmp_path
):
    by_payload = runs("4gpu-tpddp")
    log = tmp_path / "run.nccl.log"
    log.write_text(log_of(by_payload))
    unnamed = runs("4gpu-tpddp-nsys2024")
    by_log = nsyspipe.load(real / "4gpu-tpddp-nsys2024_?.sqlite", nccl_log=log, jobs=1)
    waits = [run.steps()["wait_ns"].to_pylist() for run in (by_payload, by_log, unnamed)]
    assert waits == [waits[0], waits[0], [None] * len(waits[0])]
    assert None not in waits[0]
    assert by_log.stragglers() == by_payload.stragglers()


def test_waits_of_stages_by_the_log_are_those_by_payloads(tmp_path):
    folder = unpacked("4gpu/pp", tmp_path)
    by_payload = nsyspipe.load(folder, jobs=1)
    steps, stragglers = by_payload.steps(), by_payload.stragglers()
    columns = (
        "step",
        "rank",
        "collective",
        "comm_id",
        "start_ns",
        "wait_ns",
        "transfer_ns",
        "late_by_ns",
    )
    collectives = by_payload.collectives().select(columns)
    log = tmp_path / "run.nccl.log"
    log.write_text(log_of(by_payload))
    by_log = nsyspipe.load(without_payloads(folder), nccl_log=log, jobs=1)
    assert set(collectives["collective"].to_pylist()) == {"send_recv", "all_reduce"}
    assert by_log.collectives().select(columns).to_pylist() == collectives.to_pylist()
    assert by_log.steps().select(["wait_ns", "exposed_wait_ns"]) == steps.select(
        ["wait_ns", "exposed_wait_ns"]
    )
    assert by_log.stragglers() == stragglers


@pytest.mark.parametrize(("name", "is_hybrid"), [("hsdp", True), ("fsdp2", False)])
def test_all_reduces_of_shards_are_not_said_to_be_absent(runs, name, is_hybrid, worded):
    run = runs(f"4gpu/{name}")
    assert opened_replay(run).is_hybrid_sharded is is_hybrid
    changes = {"bucket_mb": 25, "no_grad_copy": True, "no_sync": True, "gradient_dtype": "bf16"}
    for change, value in changes.items():
        worded(whatif(run, **{change: value}).scenarios[0].refused, change)
