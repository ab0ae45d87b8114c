"""What rules look at, from a few plain rows; and what holds for whatever a rule says. Times are ns."""

import functools
import json
import re

import pyarrow as pa
import pytest

from nsyspipe.analysis.summary import summary
from nsyspipe.analysis.traffic import CommUse, roles
from nsyspipe.findings.judge import (
    LESSEN_EXPOSURE,
    OF_HOSTS,
    is_by_host,
    is_conditional,
    is_wait_included,
    judge,
)
from nsyspipe.findings.model import Evidence, Finding, NotJudged
from nsyspipe.model import schema
from nsyspipe.run.collectives import stragglers_table

WALL = 1000
# The table of contract.md, and sync-bound.
IDS = (
    *(
        "comm-bound",
        "single-bucket",
        "too-many-buckets",
        "grad-copy",
        "ddp-single-gpu",
        "compress-gradients",
    ),
    *(
        "slow-link",
        "straggler",
        "input-bound",
        "launch-bound",
        "comm-slows-compute",
        "profiler-overhead",
        "sync-bound",
    ),
    *(
        "tensor-comm",
        "shard-prefetch",
        "shard-regather",
        "small-shards",
        "pipeline-bubble",
        "expert-comm",
        "no-sync",
    ),
    *("flat-all-reduce", "serialized-streams", "blocking-launches", "pageable-copy"),
    "alloc-in-step",
)
LONGEST_ACTION = 66
# What a case expects of a rule of which nothing else is of interest.
FIRES = {"fires": True}
NOT_JUDGED = "not judged"
_UNIT = re.compile(
    r"(_ns|_bytes|_bytes_per_s|_ratio|_share)(_per_step)?(_by_[a-z]+)?$|s_per_step$|^n_|(^|_)rank$|^world_size$"
)
_TIMES = [column.name for column in schema.STEPS.columns if column.unit == "ns"]
_COUNTS = [
    *("dtod_bytes", "n_dtod", "n_collectives", "grad_copy_bytes", "n_grad_copies"),
    *("n_blocking_copies", "n_pageable_copies", "blocking_copy_bytes"),
    *("n_allocs", "n_frees", "n_failed_allocs", "alloc_bytes", "freed_bytes"),
]


def step(rank=0, number=1, *, wall=WALL, exposed=0, hidden=0, wait=0, **figures):
    """Return a step; what is neither idle nor exposed is compute. A figure given as None is null."""
    idle = sum(figures.get(name) or 0 for name in schema.IDLE_CAUSES)
    row = dict.fromkeys([*_TIMES, *_COUNTS], 0) | {
        "rank": rank,
        "step": number,
        "start_ns": wall * number,
        "end_ns": wall * (number + 1),
        "wall_ns": wall,
        "compute_ns": wall - exposed - idle,
        "comm_ns": exposed + hidden,
        "exposed_comm_ns": exposed,
        "overlap_compute_ns": hidden,
        "overlap_backward_ns": hidden,
        "idle_ns": idle,
        "wait_ns": wait,
        "exposed_wait_ns": min(wait, exposed),
        "transfer_ns": exposed + hidden - wait,
        "n_collectives": 1 if exposed + hidden else 0,
        "is_complete": True,
        "in_summary": True,
    }
    row |= figures
    return row | ({"exposed_wait_ns": None} if row["wait_ns"] is None else {})


def steps(n_ranks, *numbers, **figures):
    return [step(rank, number, **figures) for rank in range(n_ranks) for number in numbers or (1,)]


def collective(number, starts, end, *, kind="all_reduce", datatype="f32", seq=0, **more):
    """Return a matched collective's rows, one per rank in order of `starts`; the last to start is late by its lead."""
    *_, before, last = sorted([min(starts), *starts])
    common = {
        "step": number,
        "seq": seq,
        "collective": kind,
        "datatype": datatype,
        "comm_id": f"{kind}/0",
        "end_ns": end,
        "is_matched": True,
        "in_summary": True,
        "n_ranks": len(starts),
        "arrival_skew_ns": last - min(starts),
        "transfer_ns": end - last,
        "is_late_significant": True,
        "is_significant": True,
    }
    rows = []
    for rank, start in enumerate(starts):
        held_up = min(last, end) - min(starts) if rank == starts.index(last) else 0
        own = {"rank": rank, "start_ns": start, "wait_ns": last - start, "held_up_ns": held_up}
        rows.append(common | own | {"late_by_ns": last - before if start == last else 0} | more)
    return rows


def unmatched(rows):
    names = (
        "n_ranks",
        "arrival_skew_ns",
        "wait_ns",
        "transfer_ns",
        "late_by_ns",
        "held_up_ns",
        "is_late_significant",
    )
    return [row | dict.fromkeys(names) | {"is_matched": False} for row in rows]


def phase(name, rank=0, number=1, **figures):
    return {"phase": name, "rank": rank, "step": number, "host_ns": 0} | figures


def kernel(name, n_slowed, slowed, free, rank=0):
    known = {"n_slowed": n_slowed, "slowed_ns": slowed, "free_ns": free, "overlapped_ns": slowed}
    return {"rank": rank, "name": name, "n_kernels": n_slowed} | known


def link(kind, transport=None, path=None, *, nominal=None, edge=(0, 1)):
    said = {"kind": kind, "transport": transport, "path": path, "nominal_bytes_per_s": nominal}
    return {"from_rank": edge[0], "to_rank": edge[1]} | said


def traffic(role, collective, *by_rank, comm_id=None, calls=1.0, n_bytes=None):
    """Return the traffic of one use, a row per rank of (exposed, waiting): waiting of a pipeline is its bubble."""
    figures = [
        {
            "exposed_ns_per_step": exposed,
            "exposed_part_ns_per_step": exposed,
            "comm_ns_per_step": exposed,
            "wait_ns_per_step": wait,
            "bubble_ns_per_step": None,
        }
        | ({"wait_ns_per_step": None, "bubble_ns_per_step": wait} if role == "pipeline" else {})
        for exposed, wait in by_rank
    ]
    ranks = ",".join(map(str, range(len(by_rank))))
    common = {
        "communicator": comm_id or f"{collective}/0",
        "collective": collective,
        "role": role,
        "ranks": ranks,
    }
    common |= {"calls_per_step": calls, "bytes_per_step": n_bytes, "n_ranks": len(by_rank)}
    return [common | {"rank": rank} | own for rank, own in enumerate(figures)]


def served(collectives):
    """Return the traffic of collectives of which none is launched in forward; what it costs is not known."""
    names = sorted({(row["comm_id"], row["collective"]) for row in collectives})
    ranks = tuple(sorted({row["rank"] for row in collectives}))
    uses = [CommUse(comm_id, kind, ranks, 2.0, None, 0.0, 1.0) for comm_id, kind in names]
    costs = [(None, None)] * len(ranks)
    rows = zip(uses, roles(uses), strict=True)
    return [
        row
        for use, role in rows
        for row in traffic(role, use.collective, *costs, comm_id=use.communicator)
    ]


class Later:
    """Evidence that is built when something of it is asked for: most cases are only collected, by every worker."""

    def __init__(self, *rows, **more):
        self._made = functools.cache(lambda: _evidence(*rows, **more))

    def __getattr__(self, name):
        return getattr(self._made(), name)

    def build_again(self):
        """Forget the evidence and the figures that it keeps."""
        self._made.cache_clear()


def evidence(step_rows, collectives=(), **more):
    """Return what rules see; the world is as large as the ranks unless told, its figures are those of the rows."""
    return Later(step_rows, collectives, **more)


def _evidence(
    step_rows, collectives, *, phases=(), kernels=(), links=None, world_size=0, traffic=None, **more
):
    met = schema.COLLECTIVES.from_rows(list(collectives))
    micro_batch = pa.array([row.get("micro_batch") for row in collectives], pa.int64())
    ranks = sorted({row["rank"] for row in step_rows})
    # The capture begins in step 0, which is no rule's business unless a test has one of its own.
    start = min((row["start_ns"] for row in step_rows), default=0) - 1
    began = [step(row["rank"], 0) | {"start_ns": start, "in_summary": False} for row in step_rows]
    began = [] if any(row["step"] == 0 for row in step_rows) else began
    all_steps = schema.STEPS.from_rows([*began, *step_rows])
    table = all_steps.slice(len(began))
    return Evidence(
        n_ranks=len(ranks),
        world_size=len(ranks) if world_size == 0 else world_size,
        summary=summary(table, met).to_pylist()[0],
        steps=table.filter(table["in_summary"]),
        all_steps=all_steps,
        phases=schema.PHASES.from_rows(list(phases)),
        all_collectives=met.append_column("micro_batch", micro_batch),
        traffic=schema.TRAFFIC.from_rows(served(collectives) if traffic is None else traffic),
        stragglers=stragglers_table(met, table, ranks, is_capture=False),
        kernels=schema.KERNEL_COSTS.from_rows(list(kernels)),
        links=None if links is None else schema.LINKS.from_rows(list(links)),
        **more,
    )


def case(what, given, expected=None, **fields):
    """Return what a rule says of a run, for `of`.

    Either fields of its finding (``saving``, else figures of the evidence), or that it cannot be
    judged, or None: nothing. The words are in golden files.
    """
    return what, given, fields or expected


def threshold(what, fires, silent):
    """Return two cases: a run that just fires, and one that just does not."""
    return case(what, fires, FIRES), case(f"{what}, not quite", silent)


def of(rule, *cases):
    """Return the parameters of `answers`."""
    return [
        pytest.param(rule, given, expected, id=f"{rule.__name__}, {what}")
        for what, given, expected in cases
    ]


def answers(rule, given, expected, worded):
    if expected is NOT_JUDGED:
        found, (rows, problems) = rule(given), judge(given)
        assert isinstance(found, NotJudged), found
        worded(found.reason)
        (said,) = [one for one in problems if found.reason in one.message]  # the run says so
        assert (said.code, said.severity, said.fix) == ("not-judged", "info", found.fix)
        name = rule.__name__.replace("_", "-")
        assert (name in said.message, name in rows["id"].to_pylist()) == (True, False)
    elif expected is None:
        assert rule(given) is None
    else:
        found = fired(rule, given)
        for name, value in expected.items():
            if name == "saving":
                assert found.saving_ns_per_step == (
                    value if value is None else pytest.approx(value)
                ), name
            elif name != "fires":
                assert found.evidence.get(name) == (
                    pytest.approx(value) if isinstance(value, float) else value
                ), name


def fired(rule, given):  # after checking what holds for every finding
    found = rule(given)
    assert isinstance(found, Finding), found
    assert found.title and found.advice and len(found.action) <= LONGEST_ACTION  # noqa: PT018
    assert "\n" not in found.title + found.action + found.advice
    if found.saving_ns_per_step is not None:
        assert 0 <= found.saving_ns_per_step <= given.mean("wall_ns")
    assert json.loads(json.dumps(dict(found.evidence), allow_nan=False)) == found.evidence
    if parts := found.evidence.get("saving_ns_per_step_by_part"):
        assert sum(parts.values()) == pytest.approx(found.saving_ns_per_step)
    if slower := found.evidence.get("slowdown_at_most_ratio"):
        overlap, later = (
            found.evidence[f"{name}_at_most_ns_per_step"]
            for name in ("overlap_compute", "comm_delay")
        )
        assert overlap * slower / (1 + slower) + later == pytest.approx(found.saving_ns_per_step)
    assert_named_with_units(found.evidence)
    return found


def findings(run):
    return {
        row["id"]: row | {"evidence": json.loads(row["evidence"])}
        for row in run.findings().to_pylist()
    }


def assert_named_with_units(figures):
    for name, value in figures.items():
        one = next(iter(value.values()), None) if isinstance(value, dict) else value
        if isinstance(one, bool):
            assert name.startswith("is_") or "_is_" in name, name
        elif isinstance(one, int | float):
            assert _UNIT.search(name), name


def assert_well_said(rows):
    """Check that findings have short actions and named figures, and stand by their worth, `comm-bound` after what lessens it."""
    ids = [row["id"] for row in rows]
    assert set(ids) <= set(IDS)
    assert len(set(ids)) == len(ids)
    for row in rows:
        assert 0 < len(row["action"]) <= LONGEST_ACTION, row
        assert_named_with_units(json.loads(row["evidence"]))
    conditional = [row["id"] for row in rows if is_conditional(row)]
    bounds = [
        row for row in rows if row["expected_ns_per_step"] is None and row["id"] not in conditional
    ]
    waiting = [row["id"] for row in bounds if is_wait_included(row)]
    causes = [ids.index(one) for one in ids if one in LESSEN_EXPOSURE and one not in conditional]
    if "comm-bound" in ids and causes:
        assert ids.index("comm-bound") > max(causes)
    moved = {"comm-bound"} if causes else set()
    if (
        "straggler" in ids
        and OF_HOSTS & {*ids}
        and is_by_host(rows[late := ids.index("straggler")])
    ):
        assert OF_HOSTS.isdisjoint(ids[late:])
        moved.add("straggler")
    with_bound = []
    for is_waiting in (False, True):  # a bound that may be waiting comes behind what is not
        told = [
            row
            for row in rows
            if row["id"] not in conditional and (row["id"] in waiting) == is_waiting
        ]
        told = [row for row in told if row["id"] not in moved]
        names = ("saving_ns_per_step", "expected_ns_per_step")
        worth = [row[names[row["expected_ns_per_step"] is not None]] for row in told]
        known = [one for one in worth if one is not None]
        assert worth == sorted(known, reverse=True) + [None] * (len(worth) - len(known)), ids
        with_bound += [row["id"] for row in told if row["saving_ns_per_step"] is not None]
    with_bound = [
        one for one in [*with_bound, *conditional] if one not in {"comm-bound", "straggler"}
    ]
    assert with_bound == [one for one in ids if one in with_bound], ids
