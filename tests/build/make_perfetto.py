"""Tables of a few operations, written as plainly as possible, and the trace that is written of them."""

import io
from types import SimpleNamespace

from nsyspipe.model import schema
from nsyspipe.report.perfetto import perfetto
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import RunHeader
from tests.perfetto_reading import ReadTrace


def header(run_id="run-1", label="baseline"):
    return RunHeader(run_id, label, 1, None, [], [], [], [], None, [])


def rank_row(rank, shift=0, gpu="NVIDIA H200", host="node0"):
    return {
        "rank": rank,
        "report": f"r{rank}.sqlite",
        "pid": 77,
        "device_ids": "0",
        "gpu_name": gpu,
        "host": host,
        "rank_source": "order",
        "clock_shift_ns": shift,
        "clock_offset_ns": 0,
    }


def step_row(start, end, step=0, rank=0, **figures):
    fixed = {"is_complete": True, "in_summary": True, "wall_ns": end - start}
    return {"rank": rank, "step": step, "start_ns": start, "end_ns": end, **fixed, **figures}


def op(start, end, category="compute", name="gemm", *, stream=7, device=0, rank=0, **more):
    fixed = {"category": category, "name": name, "device_id": device, "stream_id": stream}
    return {"rank": rank, "start_ns": start, "end_ns": end, "dur_ns": end - start, **fixed, **more}


def comm(start, end, seq=None, step=0, **more):
    more = {"name": "ncclKernel", "stream": 19, "collective": "all_reduce"} | more
    return op(start, end, "comm", step=step, seq=seq, **more)


def collective(start, end, seq=0, step=0, rank=0, *, is_matched=True, **more):
    fixed = {"collective": "all_reduce", "comm_id": "0x1", "in_summary": True}
    times = {"start_ns": start, "end_ns": end, "is_matched": is_matched}
    return {"step": step, "seq": seq, "rank": rank, **fixed, **times, **more}


def host_range(start, end, phase=None, step=0, rank=0, device=(None, None)):
    device_start, device_end = device
    return {
        "rank": rank,
        "step": step,
        "phase": phase,
        "start_ns": start,
        "end_ns": end,
        "n_operations": 1,
        "device_start_ns": device_start,
        "device_end_ns": device_end,
    }


def trace_bytes(
    ops,
    *,
    ranks=None,
    steps=(),
    collectives=(),
    ranges=(),
    family="Batch #",
    run=None,
    counters=None,
    asked=None,
):
    """Write a trace of rows; operations and ranges of a rank are those that name it.

    `counters` are the series of each rank by name, and `asked` are the steps that are asked for.
    """
    ranks = ranks or [rank_row(number) for number in sorted({one["rank"] for one in ops} or {0})]
    kinds = ((schema.EVENTS, ops), (schema.PHASE_RANGES, ranges))
    operations = [
        (
            rank,
            *(kind.from_rows([one for one in rows if one["rank"] == rank]) for kind, rows in kinds),
        )
        for rank in (row["rank"] for row in ranks)
    ]
    tables = (schema.STEPS.from_rows(list(steps)), schema.COLLECTIVES.from_rows(list(collectives)))
    file = io.BytesIO()
    made = a_run(run or header(), schema.RANKS.from_rows(ranks), iter(operations), family, *tables)
    made.counter_samples = lambda rank: (counters or {}).get(rank, {})
    perfetto(made, file, asked)
    return file.getvalue()


def a_run(header, ranks, operations, family=None, steps=None, collectives=None):
    steps, collectives = steps or schema.STEPS.empty(), collectives or schema.COLLECTIVES.empty()
    return SimpleNamespace(
        header=header,
        ranks=ranks,
        step_family=family,
        is_capture=family is None,
        steps=lambda: steps,
        collectives=lambda: collectives,
        operations=lambda *_: operations,
        counter_samples=lambda _: {},
        telling_ranks=lambda _: ranks["rank"].to_pylist(),
        rank_names=RankNames.of(ranks),
    )


def trace(ops, **tables):
    return ReadTrace(trace_bytes(ops, **tables))
