"""Processes with kernels on several devices: each of their devices is a rank of its own."""

import json
import random
from types import SimpleNamespace

import pyarrow.compute as pc
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.report import export
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from nsyspipe.run import questions
from nsyspipe.run.rank_names import RankNames
from nsyspipe.store.write import save
from tests.build import nccl_layouts as nccl
from tests.build.tools import codes, problem_of
from tests.build.trace import KERNEL, MEMCPY, MEMSET, TraceBuilder
from tests.golden.words import figures as figures_of

SESSION = 10**18
OF_DEVICES = (KERNEL, MEMCPY, MEMSET)
# What numbers and names a rank, and so differs between a process's rank and one of a report of its
# own.
IDENTITY = {"rank", "process_rank", "report", "device_ids", "rank_source"}


def process(pid=1000, *, rank=0, world_size=1, env=True):
    """Return a builder of one process; `env`: with the variables of a launcher."""
    builder = TraceBuilder(pid=pid).session(SESSION).host("node0")
    for number in range(4):
        builder.gpu(number)
    return builder.env(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=rank) if env else builder


def train(builder, devices, *, n_steps=6, late=0, pid=None, at=0):
    """Add steps of 1000 ns: of each device compute [100, 300), an all-reduce up to 600; the last device is `late`."""
    for step in range(n_steps):
        begin = at + 1000 * step
        builder.range(begin, begin + 900, f"step {step}", pid=pid)
        for place, device in enumerate(devices):
            more = {"device": device, "pid": pid}
            delay = late if place == len(devices) - 1 else 0
            builder.kernel(
                begin + 100 + delay, begin + 300 + delay, launch=begin + 10 + place, **more
            )
            builder.nccl(begin + 300 + delay, begin + 600, launch=begin + 30 + place, **more)
    return builder


def load(folder, *builders, **options):
    for at, builder in enumerate(builders):
        builder.write(folder / f"a_{at}.sqlite")
    return nsyspipe.load(folder, jobs=1, **options)


def at_random(seed, devices):
    """Return a process whose devices do different things at random; communication ends at once on all of them."""
    draw, builder = random.Random(seed), process(env=False)
    for step in range(5):
        at = 10_000 * step
        builder.range(at, at + 9_000, f"step {step}").range(at + 10, at + 400, "forward")
        builder.range(at + 500, at + 4_000, "backward").range(at + 4_100, at + 4_400, "optimizer")
        builder.launch(at + 4_500, api="cudaStreamSynchronize_v3020")
        builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["end"] = at + 6_500
        for device in devices:
            for place in range(draw.randint(2, 6)):
                begin = at + 1_000 * place + draw.randint(0, 900) + 600
                launch, stream = begin - draw.randint(50, 500), draw.choice([7, 8])
                end = begin + draw.randint(1, 1_500)
                builder.kernel(
                    begin,
                    end,
                    f"kernel_{draw.randint(0, 3)}",
                    launch=launch,
                    device=device,
                    stream=stream,
                )
            for place in range(3):
                begin = at + 2_000 * place + draw.randint(1_000, 1_900)
                copied = begin + draw.randint(1, 300)
                builder.copy(
                    begin, copied, kind=draw.choice([1, 2, 8]), launch=begin - 40, device=device
                )
            begin = at + draw.randint(2_000, 4_000)
            builder.nccl(begin, at + 6_000, launch=at + 700 + device, device=device)
            begin = at + draw.randint(6_000, 6_500)
            builder.nccl(begin, at + 7_000, launch=at + 3_000 + device, device=device, stream=20)
    return builder


def on_device(builder, device):
    """Return the same report with the operations of one device alone: the host did what it did."""
    alone = TraceBuilder(builder.version, builder.pid)
    alone.strings = builder.strings
    is_own = {
        table: [row for row in builder.rows.get(table, []) if row["deviceId"] == device]
        for table in OF_DEVICES
    }
    alone.rows = builder.rows | is_own
    return alone


OF_BLOCKING_COPIES = {
    "idle_blocked_by_copies_ns",
    "idle_made_by_calls_ns",
    "idle_made_by_copies_ns",
    "of_copies_ns_per_step",
}


def without_blocking(table):
    return table.drop_columns([*OF_BLOCKING_COPIES.intersection(table.column_names)]).to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_devices", [2, 4])
def test_a_process_on_several_devices_is_as_one_report_per_device(tmp_path, seed, n_devices):
    # What blocks the host is of the process: a call that waits for a copy on one device blocks the
    # others' host too.
    devices = range(n_devices)
    builder = at_random(seed, devices)
    folders = [tmp_path / name for name in ("together", "apart")]
    for folder in folders:
        folder.mkdir()
    together = load(folders[0], builder)
    ranks = {f"a_{device}": device for device in devices}
    apart = load(folders[1], *(on_device(builder, device) for device in devices), rank_map=ranks)
    for name in (
        "steps",
        "collectives",
        "phases",
        "kernels",
        "stragglers",
        "rank_summary",
        "summary",
        "idle_calls",
    ):
        assert without_blocking(together.table(name)) == without_blocking(apart.table(name)), name
    own, others = (run.ranks.drop_columns([*IDENTITY]).to_pylist() for run in (together, apart))
    assert own == others
    pairs = zip(together.operations(), apart.operations(), strict=True)
    assert all(one[1:] == other[1:] for one, other in pairs)


def test_waiting_and_exposure_are_each_devices_own(tmp_path):
    run = load(tmp_path, train(process(), (0, 1), late=150))
    assert (run.steps()["n_collectives"].unique().to_pylist(), run.header.n_ranks) == ([1], 2)
    columns = ("rank", "comm_ns", "exposed_comm_ns", "overlap_compute_ns", "wait_ns")
    rows = {tuple(row[name] for name in columns) for row in run.breakdown().to_pylist()}
    assert rows == {(0, 300, 300, 0, 150), (1, 150, 150, 0, 0)}


def test_ranks_are_counted_by_process_then_by_device(tmp_path):
    first, second = process(1000, rank=1, world_size=2), process(1001, rank=0, world_size=2)
    run = load(tmp_path, train(first, (0, 1)), train(second, (3, 2)))
    columns = ["rank", "process_rank", "pid", "device_id", "device_ids", "rank_source"]
    assert [tuple(row.values()) for row in run.ranks.select(columns).to_pylist()] == [
        (0, 0, 1001, 2, "2,3", "env:RANK"),
        (1, 0, 1001, 3, "2,3", "env:RANK"),
        (2, 1, 1000, 0, "0,1", "env:RANK"),
        (3, 1, 1000, 1, "0,1", "env:RANK"),
    ]
    assert (run.header.n_ranks, run.header.n_processes, run.header.world_size) == (4, 2, 2)
    assert not {"ranks-missing", "more-ranks-than-world"}.intersection(codes(run))
    assert run.breakdown()["wait_ns"].null_count == 0


def test_a_process_of_one_device_stands_beside_one_of_two(tmp_path):
    first, second = process(1000, rank=0, world_size=2), process(1001, rank=1, world_size=2)
    run = load(tmp_path, train(first, (0,)), train(second, (0, 1)))
    columns = ["rank", "process_rank", "pid", "device_id"]
    rows = [tuple(row.values()) for row in run.ranks.select(columns).to_pylist()]
    assert rows == [(0, 0, 1000, 0), (1, 1, 1001, 0), (2, 1, 1001, 1)]


def test_processes_of_one_report_have_several_devices_each(tmp_path):
    builder = train(process(env=False), (0, 1), pid=1000)
    run = load(tmp_path, train(builder, (2, 3), pid=1001, at=20))
    columns = ["rank", "process_rank", "pid", "device_id", "rank_source"]
    rows = [tuple(row.values()) for row in run.ranks.select(columns).to_pylist()]
    assert rows == [
        (0, 0, 1000, 0, "order"),
        (1, 0, 1000, 1, "order"),
        (2, 1, 1001, 2, "order"),
        (3, 1, 1001, 3, "order"),
    ]


def test_a_rank_map_and_chosen_ranks_name_processes(tmp_path):
    for at in range(2):
        train(process(1000 + at, env=False), (0, 1)).write(tmp_path / f"a_{at}.sqlite")
    run = nsyspipe.load(tmp_path, rank_map="a_0=1,a_1=0", jobs=1)
    assert run.ranks["pid"].to_pylist() == [1001, 1001, 1000, 1000]
    assert run.ranks["process_rank"].to_pylist() == [0, 0, 1, 1]
    chosen = nsyspipe.load(tmp_path, rank_map="a_0=1,a_1=0", ranks="1", jobs=1)
    assert (chosen.ranks["pid"].to_pylist(), chosen.ranks["process_rank"].to_pylist()) == (
        [1000, 1000],
        [1, 1],
    )


def test_missing_processes_are_missed_and_nobody_waits_for_a_known_time(tmp_path, worded):
    run = load(tmp_path, train(process(world_size=3), (0, 1)))
    row = problem_of(run, "ranks-missing")
    # How many, of how many, and which.
    assert {"2", "3", "1"} <= figures_of(row["message"])
    worded(row["message"])
    assert (run.header.world_size, run.header.n_processes, run.header.n_job_ranks) == (3, 1, 4)
    assert run.breakdown()["wait_ns"].null_count == run.breakdown().num_rows


def strayed(n_kernels, *, n_stray, stray_ns, copies=0):
    builder = process()
    for step in range(4):
        at = 10_000_000 * step
        builder.range(at, at + 9_000_000, f"step {step}")
        for place in range(n_kernels):
            begin = at + 10_000 * place
            builder.kernel(begin + 100, begin + 1_100, launch=begin + 10)
    for place in range(n_stray):
        builder.kernel(10_000 * place, 10_000 * place + stray_ns, launch=10_000 * place, device=1)
    for place in range(copies):
        builder.copy(10_000 * place, 10_000 * place + 100, 10, launch=10_000 * place, device=1)
    return builder


@pytest.mark.parametrize(
    ("n_stray", "stray_ns", "is_rank"),
    [
        # Of 400 kernels of 1000 ns: with fewer than 1 % of all kernels and of all time a device is
        # no rank.
        (4, 1000, False),  # 4 of 404 kernels: 0.99 %
        (5, 1, True),  # 5 of 405: 1.23 %, of hardly any time
        (1, 4040, False),  # 4040 of 404 040 ns: 0.9999 %
        (1, 4041, True),  # 4041 of 404 041 ns: 1.0001 %
    ],
)
def test_a_device_is_a_rank_from_one_percent_of_kernels_or_their_time_on(
    tmp_path, n_stray, stray_ns, is_rank
):
    run = load(tmp_path, strayed(100, n_stray=n_stray, stray_ns=stray_ns))
    assert (run.ranks["device_id"].to_pylist(), "stray-device" in codes(run)) == (
        [0, 1][: 1 + is_rank],
        not is_rank,
    )


def test_what_ran_on_a_stray_device_is_counted_and_in_no_figure(tmp_path, worded):
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    run = load(tmp_path / "with", strayed(100, n_stray=2, stray_ns=500, copies=3))
    plain = load(tmp_path / "without", strayed(100, n_stray=0, stray_ns=0))
    row = problem_of(run, "stray-device")
    assert (row["rank"], row["severity"]) == (0, "info")
    # 2 kernels and 3 copies, and the device.
    assert {"5", "1"} <= figures_of(row["message"])
    worded(row["message"])
    assert run.ranks.select(["device_id", "device_ids", "n_kernels"]).to_pylist() == [
        {"device_id": 0, "device_ids": "0,1", "n_kernels": 400}
    ]
    assert run.steps() == plain.steps()
    ((_, events, _),) = run.operations()
    assert events["device_id"].unique().to_pylist() == [0]


def test_a_saved_run_keeps_ranks_and_their_processes(tmp_path):
    run = load(tmp_path, train(process(), (0, 1), late=150))
    save(run, tmp_path / "store", events=True)
    saved = nsyspipe.load(tmp_path / "store")
    for name in ("ranks", "steps", "collectives", "problems", "findings"):
        assert saved.table(name) == run.table(name), name
    assert saved.header == run.header
    assert [rank for rank, *_ in saved.operations()] == [0, 1]


def test_a_group_of_calls_gives_each_device_its_own_message(tmp_path):
    builder = TraceBuilder("3.25.0 2026.2.1 mfu").session(SESSION).gpu().domain("NCCL", 1)
    for rank in range(2):
        fields = {nccl.COMM: 7, nccl.RANKS: 2, nccl.RANK: rank}
        builder.nccl_payload(rank + 1, "ncclCommInitRank", fields, nccl.COMM_INIT)
    for step in range(4):
        at = 1000 * step + 100
        builder.range(at, at + 900, f"step {step}")
        for device, size in enumerate((64, 128)):
            builder.nccl_payload(
                at + device, "ncclAllReduce", {nccl.COMM: 7, nccl.BYTES: size}, nccl.NCCL_2_21
            )
        for device in range(2):
            builder.kernel(at + 20, at + 100, launch=at + 5 + device, device=device)
            builder.nccl(at + 100, at + 200, launch=at + 10 + device, device=device)
    run = load(tmp_path, builder)
    rows = run.collectives().to_pylist()
    assert {
        (row["rank"], row["comm_id"], row["n_ranks"], row["message_bytes"]) for row in rows
    } == {
        (0, "0x7", 2, 64),
        (1, "0x7", 2, 128),
    }


def test_devices_of_one_process_share_the_steps_that_its_launches_repeat(tmp_path):
    builder = process()
    for step in range(8):
        at = 10_000 * step
        for device in range(2):
            for place in range(6):
                begin = at + 500 * place + 100
                builder.kernel(
                    begin, begin + 300, f"layer_{place}", launch=begin - 50 + device, device=device
                )
            builder.nccl(at + 4_000, at + 4_500, launch=at + 3_000 + device, device=device)
        # Only the first device updates weights.
        builder.kernel(
            at + 5_000, at + 5_100, "multi_tensor_apply_kernel_AdamFunctor", launch=at + 4_900
        )
    run = load(tmp_path, builder)
    assert run.header.steps_from == "repetition"
    by_rank = [run.steps().filter(pc.equal(run.steps()["rank"], rank)) for rank in range(2)]
    assert by_rank[0]["step"] == by_rank[1]["step"]
    assert by_rank[0]["wall_ns"].to_pylist()[:-1] == by_rank[1]["wall_ns"].to_pylist()[:-1]
    assert run.breakdown()["wait_ns"].unique().to_pylist() == [0]


NAME = "1 (process 0, GPU 1)"


def perfetto(run, folder):
    export.write(run, folder / "run.pftrace")
    return (folder / "run.pftrace").read_bytes().decode("latin-1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    [
        lambda run, _: summary_text(run, Console(width=100)),
        lambda run, _: run_page(run),
        lambda run, _: run._repr_html_(),
        lambda run, _: json.dumps(run.finding_rows),
        perfetto,
    ],
)
def test_every_output_calls_such_a_rank_by_process_and_gpu(tmp_path, written):
    run = load(tmp_path, train(process(), (0, 1), late=150))
    assert f"rank {NAME}" in " ".join(written(run, tmp_path).split()) or NAME in written(
        run, tmp_path
    )


def test_a_comment_never_calls_such_a_rank_by_its_number_alone(tmp_path):
    text = markdown(load(tmp_path, train(process(), (0, 1), late=150)))
    assert text.count("rank 1") == text.count(f"rank {NAME}")


def test_ranks_of_processes_with_one_device_have_no_other_name(tmp_path):
    ranks = [train(process(1000 + rank, rank=rank, world_size=2), (0,)) for rank in range(2)]
    run = load(tmp_path, *ranks)
    assert (run.rank_names.names, run.rank_names.in_text("rank 1 waits")) == ({}, "rank 1 waits")


def test_names_in_quotes_and_names_that_are_whole_stay_as_they_are():
    names = RankNames({1: NAME})
    text = f"rank 1, 'rank 1', rank {NAME}, ranks 1 and 2, rank 2"
    assert names.in_text(text) == f"rank {NAME}, 'rank 1', rank {NAME}, ranks 1 and 2, rank 2"


def test_windows_of_a_process_count_once_also_if_its_last_device_has_fewer(tmp_path):
    builder = train(process(env=False), (0, 1), n_steps=3)
    train(builder, (0,), n_steps=3, at=3000).write(tmp_path / "a_0.sqlite")
    (digest,) = nsyspipe.load(tmp_path, jobs=1)._gathered.digests
    assert [rank.windows.num_rows for rank in digest.processes] == [6, 3]
    assert questions._count_windows(SimpleNamespace(digest=digest)) == 6
