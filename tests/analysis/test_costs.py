"""What costs most: sums over ranks and summary steps by hand, what is not known, and the same from the rows of built runs."""

from __future__ import annotations

import pytest

from nsyspipe.analysis.kernels import costs
from nsyspipe.model import schema
from tests.build.tools import run_of
from tests.run.test_traffic import grid_rank

STEPS = [{"rank": rank, "step": step, "wall_ns": 1000, "comm_ns": 100} for rank in (0, 1) for step in (1, 2)]


def kernel(rank, name, n, ns, **more):
    row = {"rank": rank, "phase": "forward", "name": name, "n_kernels": 2 * (n or 1), "total_ns": 2 * (ns or 1)}
    zeros = dict.fromkeys(("overlapped_ns", "n_slowed", "slowed_ns", "free_ns"), 0)
    return row | zeros | {"n_in_summary": n, "in_summary_ns": ns} | more


def collective(rank, step, start, end, *, wait, size=1000, **more):
    own = {"rank": rank, "step": step, "collective": "all_reduce", "message_bytes": size, "bus_bytes": 1.5 * size}
    times = {"start_ns": start, "end_ns": end, "wait_ns": wait, "transfer_ns": end - start - wait, "exposed_ns": 10}
    return own | times | {"in_summary": True} | more


def rows_of(table, kernels=(), collectives=(), traffic=(), steps=STEPS, *, is_capture=False):
    tables = zip(
        (schema.KERNEL_COSTS, schema.COLLECTIVES, schema.TRAFFIC, schema.STEPS),
        (kernels, collectives, traffic, steps),
        strict=True,
    )
    found = costs(*(one.from_rows(rows) for one, rows in tables), is_capture=is_capture)
    return [row for row in found.to_pylist() if row["table"] == table]


def test_kernels_are_summed_over_ranks_and_the_costliest_stands_first():
    under = {"overlapped_ns": 150, "n_slowed": 3, "slowed_ns": 90, "free_ns": 60}
    first, second, nccl = rows_of("kernels", [
        kernel(0, "a", 1, 20), kernel(1, "a", 3, 30), kernel(0, "b", 4, 200, **under), kernel(1, "ncclKernel", 1, 5),
    ])  # fmt: skip
    # Two ranks and two steps: 200 ns are 50 per step, of 4000 ns; 150 of the 400 of the capture lie beside communication.
    assert first == dict.fromkeys(schema.COSTS.names) | {
        "table": "kernels", "name": "b", "phase": "forward", "n_calls": 4, "total_ns": 200, "step_share": 0.05,
        "calls_per_step": 1, "time_ns_per_step": 50, "beside_comm_ratio": 0.375, "slowdown_ratio": 0.5, "n_slowed": 3,
    }  # fmt: skip
    names = ("name", "n_calls", "total_ns", "beside_comm_ratio", "slowdown_ratio")
    assert [second[name] for name in names] == ["a", 4, 50, 0.0, None]
    # What lies beside communication is no question that communication has.
    assert (nccl["name"], nccl["beside_comm_ratio"]) == ("ncclKernel", None)


def test_collectives_are_summed_by_kind_and_size():
    rows = [
        collective(0, 1, 0, 60, wait=20), collective(1, 1, 20, 60, wait=0), collective(0, 1, 100, 110, wait=0, size=8),
        # A send may end before the last rank comes: it waits no longer than it lasts. The skipped step does not count.
        collective(0, 2, 0, 30, wait=50, transfer_ns=0), collective(1, 0, 0, 900, wait=0, in_summary=False),
    ]  # fmt: skip
    large, small = rows_of("collectives", collectives=rows)
    assert large == dict.fromkeys(schema.COSTS.names) | {
        "table": "collectives", "name": "all_reduce", "message_bytes": 1000, "n_calls": 3, "total_ns": 130,
        "step_share": 0.0325, "calls_per_step": 0.75, "time_ns_per_step": 32.5, "bytes_per_step": 750,
        "exposed_ns_per_step": 7.5, "hidden_ns_per_step": 25, "wait_ns_per_step": 12.5, "transfer_ns_per_step": 20,
        "algbw_bytes_per_s": pytest.approx(3000 / 80e-9), "busbw_bytes_per_s": pytest.approx(4500 / 80e-9),
    }  # fmt: skip
    assert (small["message_bytes"], small["n_calls"], small["busbw_bytes_per_s"]) == (8, 1, pytest.approx(12 / 10e-9))


@pytest.mark.parametrize(("unknown", "names"), [
    ("exposed_ns", {"exposed_ns_per_step", "hidden_ns_per_step"}),
    ("wait_ns", {"wait_ns_per_step"}),
    ("transfer_ns", {"transfer_ns_per_step", "algbw_bytes_per_s", "busbw_bytes_per_s"}),
    ("bus_bytes", {"busbw_bytes_per_s"}),
    ("message_bytes", {"message_bytes", "bytes_per_step", "algbw_bytes_per_s"}),
])  # fmt: skip
def test_a_sum_of_which_a_part_is_not_known_is_null(unknown, names):
    whole = [collective(0, 1, 0, 60, wait=20), collective(1, 1, 20, 60, wait=0)]
    lacking = [row | {unknown: None} if unknown == "message_bytes" or row["rank"] else row for row in whole]
    (before,), (after,) = (rows_of("collectives", collectives=rows) for rows in (whole, lacking))
    assert {name for name in before if before[name] is not None and after[name] is None} == names
    assert {name: after[name] for name in after if name not in names} == {
        name: before[name] for name in before if name not in names
    }


def test_without_steps_or_without_a_sight_of_communication_nothing_is_made_up():
    (row,) = rows_of("kernels", [kernel(0, "a", 1, 20)], is_capture=True)
    assert (row["total_ns"], row["step_share"], row["calls_per_step"], row["time_ns_per_step"]) == (
        20, 0.005, None, None,
    )  # fmt: skip
    (row,) = rows_of("kernels", [kernel(0, "a", None, None), kernel(1, "a", 1, 20)])
    assert (row["n_calls"], row["total_ns"], row["step_share"], row["time_ns_per_step"]) == (None,) * 4
    # In a graph that was captured as a whole there may be more.
    hidden = [STEPS[0] | {"comm_ns": None}, *STEPS[1:]]
    assert rows_of("collectives", collectives=[collective(0, 1, 0, 60, wait=20)], steps=hidden) == []
    (row,) = rows_of("kernels", [kernel(0, "CUDA graph", 1, 20)], steps=hidden)
    assert (row["step_share"], row["beside_comm_ratio"]) == (0.005, None)
    assert (
        costs(
            *(one.empty() for one in (schema.KERNEL_COSTS, schema.COLLECTIVES, schema.TRAFFIC, schema.STEPS)),
            is_capture=False,
        ).num_rows
        == 0
    )


def test_a_built_run_has_the_costs_of_its_rows(tmp_path):
    run = run_of(tmp_path, *map(grid_rank, range(4)))
    rows = run.costs().to_pylist()
    steps, n_steps = run.breakdown().to_pylist(), run.breakdown().num_rows
    collectives = [row for row in run.collectives().to_pylist() if row["in_summary"]]
    # Per step on one rank: 4 in its tensor group, each 20 or (the late one) 15 alone, and one of 60 beside a kernel of 40.
    large, small = ([row for row in collectives if row["message_bytes"] == size * 2**20] for size in (4, 1))
    assert {row["exposed_ns"] for row in large} == {20}
    assert {(row["rank"] % 2, row["exposed_ns"]) for row in small} == {(0, 20), (1, 15)}
    of_small, of_large = (row for row in rows if row["table"] == "collectives")
    assert [
        of_small[name] for name in ("calls_per_step", "time_ns_per_step", "exposed_ns_per_step", "wait_ns_per_step")
    ] == [4, 70, 70, 10]
    assert [
        of_large[name] for name in ("calls_per_step", "time_ns_per_step", "exposed_ns_per_step", "hidden_ns_per_step")
    ] == [1, 60, 20, 40]
    assert sum(row["total_ns"] for row in rows if row["table"] == "kernels") == sum(
        row["in_summary_ns"] for row in run.kernels().to_pylist()
    )
    assert of_small["total_ns"] == sum(row["end_ns"] - row["start_ns"] for row in small)
    assert of_small["step_share"] == of_small["total_ns"] / sum(row["wall_ns"] for row in steps)
    assert n_steps == len({(row["rank"], row["step"]) for row in collectives})
    # Those of traffic as the table has them, the costliest first.
    named = ("communicator", "role", "exposed_ns_per_step")
    of_traffic = [tuple(row[name] for name in named) for row in rows if row["table"] == "traffic"]
    assert of_traffic == [("0x10", "tensor", 70), ("0x11", "tensor", 70), ("0x40", "data", 20), ("0x41", "data", 20)]
    assert run.table("costs").equals(run.costs())
