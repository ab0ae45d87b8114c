"""A run's figures and each rank's, pooled, and the sentence that a summary leads with."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.summary import evenness, rank_summary, summary, with_ratios
from nsyspipe.model import schema
from nsyspipe.model.figures import RATIOS
from nsyspipe.report.verdict import verdict

PARTS = {
    "wall_ns": 100,
    "compute_ns": 50,
    "comm_ns": 40,
    "exposed_comm_ns": 30,
    "exposed_memory_ns": 5,
    "idle_ns": 15,
    "dtod_ns": 8,
    "dtod_bytes": 64,
    "n_dtod": 1,
    "exposed_dtod_ns": 5,
    "overlap_compute_ns": 10,
    "overlap_backward_ns": 4,
    "n_collectives": 2,
    "wait_ns": 12,
    "transfer_ns": 28,
    "message_bytes": 512,
    "idle_input_ns": 3,
    "idle_launch_ns": 4,
    "idle_blocked_ns": 5,
    "idle_dependency_ns": 2,
    "idle_unknown_ns": 1,
    "ideal_compute_ns": 25,
}
FIGURES = {
    "comm_share": 0.4,
    "exposed_comm_share": 0.3,
    "overlap_ratio": 0.25,
    "backward_overlap_ratio": 0.1,
    "idle_share": 0.15,
    "compute_share": 0.5,
    "exposed_memory_share": 0.05,
    "wait_share": 0.12,
    "transfer_share": 0.28,
    "dtod_ns_per_step": 8.0,
    "dtod_bytes_per_step": 64.0,
    "collectives_per_step": 2.0,
    "idle_input_ns_per_step": 3.0,
    "idle_launch_ns_per_step": 4.0,
    "idle_blocked_ns_per_step": 5.0,
    "idle_dependency_ns_per_step": 2.0,
    "idle_unknown_ns_per_step": 1.0,
    "message_bytes_per_step": 512.0,
    "algbw_bytes_per_s": None,
    "busbw_bytes_per_s": None,
    # Only the ideal compute time is known.
    "flops_per_s": None,
    "mfu": 0.25,
}
NO_FIGURES = dict.fromkeys(FIGURES)

OWN_RATIOS = {name: FIGURES[name] for name in RATIOS}


def step(rank, number, *, chosen=True, **parts):
    return PARTS | {"rank": rank, "step": number, "in_summary": chosen, "is_complete": True} | parts


def of_ranks(ranks, *rows):
    numbers = schema.RANKS.from_rows([{"rank": rank} for rank in ranks])
    return rank_summary(
        schema.STEPS.from_rows(rows), schema.COLLECTIVES.empty(), numbers
    ).to_pylist()


@pytest.mark.parametrize(
    ("parts", "changed"),
    [
        ({}, {}),
        # Null where the denominator is 0 or the numerator is null.
        (
            dict.fromkeys(
                ("comm_ns", "exposed_comm_ns", "overlap_compute_ns", "overlap_backward_ns"), 0
            ),
            {
                "comm_share": 0.0,
                "exposed_comm_share": 0.0,
                "overlap_ratio": None,
                "backward_overlap_ratio": None,
            },
        ),
        (dict.fromkeys(PARTS, 0), dict.fromkeys(RATIOS)),
        (
            {"idle_ns": None, "exposed_memory_ns": None, "overlap_backward_ns": None},
            {"idle_share": None, "exposed_memory_share": None, "backward_overlap_ratio": None},
        ),
    ],
)
def test_each_ratio_is_its_numerator_over_wall_or_communication_time(parts, changed):
    columns = {
        name: pa.chunked_array([[value], [value]], pa.int64())
        for name, value in (PARTS | parts).items()
    }
    found = with_ratios(columns)
    assert list(found) == [*PARTS, *RATIOS]
    assert {name: found[name].to_pylist() for name in found} == {
        name: [value] * 2 for name, value in (PARTS | parts | OWN_RATIOS | changed).items()
    }


RUN = FIGURES | {
    "tokens_per_s": None,
    "samples_per_s": None,
    "n_steps": 1,
    "n_summary_steps": 1,
    "step_time_ns": 100.0,
    "throughput_steps_per_s": 1e7,
}
NO_RUN = NO_FIGURES | {"n_summary_steps": 0, "step_time_ns": None, "throughput_steps_per_s": None}
NULLS = {
    "overlap_backward_ns": "backward_overlap_ratio",
    "idle_ns": "idle_share",
    "wait_ns": "wait_share",
    "exposed_memory_ns": "exposed_memory_share",
    "dtod_ns": "dtod_ns_per_step",
    "dtod_bytes": "dtod_bytes_per_step",
    "message_bytes": "message_bytes_per_step",
    "idle_blocked_ns": "idle_blocked_ns_per_step",
}
ZEROS = dict.fromkeys((name for name in FIGURES if name.endswith("_per_step")), 0.0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # One row has its own figures; steps that are not chosen are counted and nothing more.
        ([step(0, 1)], RUN),
        (
            [
                step(0, 0, chosen=False, wall_ns=10**6),
                step(0, 1),
                step(0, 2, chosen=False, comm_ns=None),
            ],
            RUN | {"n_steps": 3},
        ),
        ([step(0, 0, chosen=False)], NO_RUN | {"n_steps": 1}),
        ([], NO_RUN | {"n_steps": 0}),
        # A null on one row makes the pooled figure null and no other.
        ([step(0, 1), step(1, 1, **dict.fromkeys(NULLS))], RUN | dict.fromkeys(NULLS.values())),
        # Windows of no length have neither shares nor throughput.
        (
            [step(0, 1, **dict.fromkeys(PARTS, 0))],
            NO_RUN | ZEROS | {"n_steps": 1, "n_summary_steps": 1, "step_time_ns": 0.0},
        ),
        # Pooled and no mean of ratios: comm 40 + 10 of wall 100 + 300; the median of one step, its
        # slowest rank.
        (
            [step(0, 1), step(1, 1, wall_ns=300, comm_ns=10)],
            {
                "comm_share": 50 / 400,
                "overlap_ratio": 20 / 50,
                "compute_share": 100 / 400,
                "step_time_ns": 300.0,
            },
        ),
        # Means over ranks and steps.
        (
            [
                step(0, 1),
                step(1, 1, dtod_bytes=65, n_collectives=3, dtod_ns=0),
                step(0, 2),
                step(1, 2, dtod_ns=4),
            ],
            {"dtod_ns_per_step": 5.0, "dtod_bytes_per_step": 64.25, "collectives_per_step": 2.25},
        ),
        # Of the slowest rank, 120, 110, 400, the median is 120 and the mean 210.
        (
            [
                step(rank, at, wall_ns=wall)
                for at, walls in ((1, (100, 120)), (2, (110, 90)), (3, (1, 400)))
                for rank, wall in enumerate(walls)
            ],
            {"n_summary_steps": 3, "step_time_ns": 120.0, "throughput_steps_per_s": 1e9 / 210},
        ),
        (
            [step(0, 1, wall_ns=100), step(0, 2, wall_ns=101)],
            {"step_time_ns": 100.5},
        ),  # not floored
        # Bytes above what a float holds are summed exactly: a float sum would lose the 1 of each.
        (
            [step(0, 1, dtod_bytes=2**53 + 1), step(0, 2, dtod_bytes=1)],
            {"dtod_bytes_per_step": 2.0**52 + 1},
        ),
        (
            [step(0, 1, dtod_bytes=2**61 + 2**9), step(0, 2, dtod_bytes=2**61)],
            {"dtod_bytes_per_step": 2.0**61 + 2**8},
        ),
    ],
)
def test_figures_of_a_run(rows, expected):
    (run,) = summary(schema.STEPS.from_rows(rows), schema.COLLECTIVES.empty()).to_pylist()
    assert {name: run[name] for name in expected} == expected
    assert run.keys() == RUN.keys()


def test_each_rank_has_its_own_figures_over_its_summary_steps():
    # 405 of wall, over which compute has 100 and comm 80; the third rank has no summary step.
    second = step(1, 1, wall_ns=200), step(1, 2, wall_ns=205), step(1, 3, wall_ns=9, chosen=False)
    ranks = of_ranks([0, 1, 2], *second, step(0, 1), step(0, 2), step(2, 1, chosen=False))
    assert ranks[0] == FIGURES | {"rank": 0, "step_time_ns": 100.0}
    expected = {
        "rank": 1,
        "step_time_ns": 202.5,
        "compute_share": 100 / 405,
        "comm_share": 80 / 405,
    }
    assert {name: ranks[1][name] for name in expected} == expected
    assert ranks[2] == NO_FIGURES | {"rank": 2, "step_time_ns": None}


def figures(
    comm,
    exposed,
    *,
    hidden=None,
    backward=None,
    compute=None,
    copies=None,
    idle=None,
    wait=None,
    n_steps=3,
):
    return {
        "n_steps": n_steps,
        "n_summary_steps": n_steps,
        "comm_share": comm,
        "exposed_comm_share": exposed,
        "overlap_ratio": hidden,
        "backward_overlap_ratio": backward,
        "compute_share": compute,
        "exposed_memory_share": copies,
        "idle_share": idle,
        "wait_share": wait,
        "throughput_steps_per_s": None,
    }


HALF, LITTLE = figures(0.5, 0.48, hidden=0.04, backward=0.03), figures(0.5, 0.001, hidden=0.998)
COMPUTE = figures(0.0, 0.0, compute=0.957, idle=0.032)


SHARE_OF_PART = {
    "compute": "compute_share",
    "exposed_comm": "exposed_comm_share",
    "exposed_memory": "exposed_memory_share",
    "idle": "idle_share",
}


def breakdown_of(summary):
    """Return the breakdown of a step of 1000 ms with the shares of a summary; 0 for a share that it does not have."""
    wall_ns = 1_000_000_000
    parts = {
        f"{part}_ns": [round((summary[share] or 0) * wall_ns)]
        for part, share in SHARE_OF_PART.items()
    }
    return pa.table(
        {"rank": [0], "step": [0], "wall_ns": [wall_ns], "comm_on_compute_stream_ns": [0], **parts}
    )


def said_of(summary, n_ranks=2, *, is_capture=False, problems=(), even=None):
    return verdict(
        SimpleNamespace(
            header=SimpleNamespace(
                n_ranks=n_ranks, world_size=n_ranks, n_job_ranks=n_ranks, steps_from="ranges"
            ),
            is_capture=is_capture,
            summary=lambda: pa.Table.from_pylist([summary]),
            problem_rows=[*problems],
            evenness=lambda: even,
            finding_rows=[],
            skipped_checks=(),
            host_steps=schema.HOST_STEPS.empty,
            traffic=schema.TRAFFIC.empty,
            breakdown=lambda: breakdown_of(summary),
        )
    )


def warning(code):
    return {"problems": [{"code": code, "severity": "warning"}]}


VERDICTS = [
    (HALF, {}),
    (HALF | {"wait_share": 0.05}, {}),
    (HALF | {"wait_share": 0.049}, {}),
    # Why nothing is said of backward is the reason.
    (LITTLE, {}),
    (LITTLE, {"is_capture": True}),
    (LITTLE, warning("no-launches")),
    (figures(0.2, 0.0, hidden=1.0, backward=0.0), {}),
    # Whole graphs may hide some idle time.
    (COMPUTE, {}),
    (COMPUTE, warning("graphs-as-a-whole")),
    (figures(0.0, 0.0, compute=0.957), {}),
    (figures(0.0, 0.0, compute=0.001, copies=0.9, idle=0.099), {}),
    (figures(None, None, n_steps=0), {}),
    (figures(None, None), {}),
    (figures(None, None), {"n_ranks": 0}),
]
# Means and shares by hand: half of 132 + 1400; a fifth of 400 + 600; a third of 200 + 180, and 80
# more than 100; 500 less than 600. Of the last two there are no two levels: a quarter of 1500, half
# of 200 + 400; mean and median 195, from 175.5 to 214.5 only that one.
UNEVEN = [
    [132, 1400] * 5,
    [100, 100, 100, 100, 600] * 2,
    [100, 100, 180] * 4,
    [600, 600, 600, 100] * 3,
    [*[100] * 11, 900] * 2,
    [100, 300, 300, 100, 300, 100, 100, 100],
    [100, 200, 400, 800],
    [100, 150, 195, 240, 290],
]


def test_the_verdict_says_what_step_time_goes_to_and_how_steps_are_uneven(pinned):
    sentences = [said_of(summary, **options) for summary, options in VERDICTS]
    every = [
        *UNEVEN,
        [100, 100, 100, 100, 110] * 3,
    ]  # the last: mean 102, and all within 10 % of the median
    judged = (evenness(np.array(steps) * 1e6) for steps in every)
    sentences += [said_of(figures(0.0, 0.0, compute=0.9), even=one) for one in judged]
    # Each begins with the same line where all was judged: there is nothing to gain.
    nothing = said_of(COMPUTE).partition("\n")[0]
    rest = [one.removeprefix(f"{nothing}\n") for one in sentences]
    pinned("names/verdicts.txt", "\n".join([*rest, ""]))
