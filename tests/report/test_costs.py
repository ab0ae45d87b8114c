"""What costs most as tables of any width and as CSV: what is left out is said, and nothing stands where nothing was recorded."""

import csv
import io
import re
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Console

from nsyspipe.model import schema
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import words_of
from nsyspipe.report.costs import cost_tables, costs_csv, csv_text, run_id_of_csv
from nsyspipe.report.markdown import as_markdown, markdown
from nsyspipe.report.run import summary_text
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder
from tests.run.test_traffic import grid_rank

MS = 1_000_000
KERNEL = {
    "table": "kernels",
    "phase": "backward",
    "n_calls": 100,
    "calls_per_step": 25.0,
    "n_slowed": 0,
}
COLLECTIVE = {"table": "collectives", "n_calls": 32, "calls_per_step": 8.0, "step_share": 0.1}
TRAFFIC = {"table": "traffic", "calls_per_step": 8.0, "communicator": "0x453723bcfe6ded59"}
WAITS = {"exposed_ns_per_step": 3 * MS, "hidden_ns_per_step": MS, "wait_ns_per_step": 1.5 * MS}
RATES = {"algbw_bytes_per_s": 221.8e9, "busbw_bytes_per_s": 110.9e9}
ROWS = [
    KERNEL
    | {
        "name": "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x256x32_warpgroupsize2x1x1",
        "total_ns": 16 * MS,
        "time_ns_per_step": 4 * MS,
        "step_share": 0.2,
        "beside_comm_ratio": 0.25,
        "slowdown_ratio": 0.04,
        "n_slowed": 50,
    },
    KERNEL
    | {
        "name": "ncclDevKernel_SendRecv",
        "phase": None,
        "total_ns": 8 * MS,
        "time_ns_per_step": 2 * MS,
        "step_share": 0.1,
    },
    KERNEL
    | {
        "name": "relu",
        "total_ns": 4 * MS,
        "time_ns_per_step": MS,
        "step_share": 0.05,
        "beside_comm_ratio": 0.0,
    },
    COLLECTIVE
    | WAITS
    | RATES
    | {
        "name": "all_gather",
        "message_bytes": 2**24,
        "total_ns": 16 * MS,
        "time_ns_per_step": 4 * MS,
        "transfer_ns_per_step": 2.5 * MS,
        "bytes_per_step": 8.0 * 2**24,
    },
    COLLECTIVE | {"name": "send_recv", "total_ns": MS, "time_ns_per_step": MS / 4},
    TRAFFIC
    | WAITS
    | RATES
    | {
        "name": "all_gather",
        "role": "sharded",
        "ranks": "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "time_ns_per_step": 4 * MS,
        "bytes_per_step": 8.0 * 2**24,
    },
    TRAFFIC
    | {
        "name": "send_recv",
        "role": "pipeline",
        "ranks": "0,8",
        "time_ns_per_step": MS / 4,
        "bubble_ns_per_step": MS / 8,
    },
]


def run_with(*rows, is_capture=False, run_id="r1"):
    table = schema.COSTS.from_rows(rows)
    return SimpleNamespace(
        costs=lambda: table, is_capture=is_capture, header=SimpleNamespace(run_id=run_id)
    )


def tables(run, most=15):
    return {
        block.caption: [
            dict(zip((one.heading.replace("\n", " ") for one in block.columns), row, strict=True))
            for row in block.rows
        ]
        for block in cost_tables(run, most).values()
    }


@pytest.mark.parametrize("width", [100, 79, 40])
def test_tables_fit_a_terminal_and_say_what_they_leave_out(width, pinned):
    text = as_text(cost_tables(run_with(*ROWS), 2).values(), Console(width=width))
    assert max(map(len, text.splitlines())) <= width
    pinned(f"costs/{width}", text=text)


def test_tables_in_markdown_have_every_column(pinned):
    pinned(
        "costs/all",
        markdown=as_markdown(cost_tables(run_with(*ROWS), 15).values(), [], "nsyspipe analyze"),
    )


def test_a_capture_has_totals_and_no_column_of_steps(tmp_path, worded):
    of_steps = [name for name in schema.COSTS.names if name.endswith("_per_step")]
    run = run_with(*(row | dict.fromkeys(of_steps) for row in ROWS), is_capture=True)
    kernels, *_ = tables(run).values()
    gemm, nccl, _ = ([words_of(cell) for cell in row.values()] for row in kernels)
    assert {"100", "16.00", "20.0%"} <= {*gemm}
    assert nccl.count("-") == 3
    worded(as_text(cost_tables(run, 15).values(), Console(width=200)))
    # So does a real one, whose text and Markdown have them.
    run = run_of(
        tmp_path,
        TraceBuilder().env(RANK=0).gpu().kernel(0, 600, launch=-10).nccl(600, 1000, launch=-5),
    )
    for text in (summary_text(run, Console(width=100), n_top=3), markdown(run, 3)):
        assert "gemm" in text, text
    assert "gemm" not in summary_text(run, Console(width=100))


@pytest.mark.slow
def test_cost_tables_are_printed_only_on_request(tmp_path, worded):
    run = run_of(tmp_path, *(grid_rank(rank, 2, 8) for rank in range(8)))
    comment = markdown(run)
    (parallelism,) = [
        line for line in comment.splitlines() if "0,2,4,6 / 1,3,5,7" in line and "|" not in line
    ]
    assert re.findall(r"\d+%", parallelism) == ["78%"]
    worded(parallelism)
    assert (
        "| parallelism |" in comment,
        "| kernel |" in comment,
        "| kernel |" in markdown(run, 1),
    ) == (
        True,
        False,
        True,
    )
    plain, shown = (
        summary_text(run, Console(width=100)),
        summary_text(run, Console(width=100), n_top=1),
    )
    assert [text in plain for text in ("\nkernel", "\ncollective  ", "\nparallelism")] == [
        False
    ] * 3
    assert [text in shown for text in ("\nkernel", "\ncollective  ", "\nparallelism")] == [True] * 3
    assert "--csv" in shown
    assert len(comment.splitlines()) < 60


def test_pandas_reads_the_file_as_it_is(tmp_path, steady_run):
    (tmp_path / "costs.csv").write_text(costs_csv(steady_run), encoding="utf-8")
    frame = pd.read_csv(tmp_path / "costs.csv")
    costs = steady_run.costs().to_pylist()
    assert list(frame.columns) == ["run_id", *schema.COSTS.names]
    assert frame["run_id"].unique().tolist() == ["r1"]
    assert frame.groupby("table").size().to_dict() == {"collectives": 1, "kernels": 3, "traffic": 1}
    for row, expected in zip(frame.to_dict("records"), costs, strict=True):
        assert {name: None if pd.isna(row[name]) else row[name] for name in expected} == expected, (
            row
        )
    assert run_id_of_csv(tmp_path / "costs.csv") == "r1"


def test_names_in_a_file_drive_no_spreadsheet_and_what_is_not_known_is_empty(tmp_path):
    text = costs_csv(run_with(KERNEL | {"name": '=cmd|"x"\n'}, run_id="-1"))
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["run_id"], row["name"], row["wait_ns_per_step"]) == (
        "'-1",
        '\'=cmd|"x"\N{REPLACEMENT CHARACTER}',
        "",
    )
    path = tmp_path / "costs.csv"
    for content, expected in (
        (text, "-1"),
        (csv_text(["run_id", "wall_ns"], [["a", 1]]), None),
        ("", None),
        ("run_id,table\n", None),
    ):
        path.write_text(content, encoding="utf-8")
        assert run_id_of_csv(path) == expected, content


@pytest.mark.slow
def test_the_sample_runs_say_what_costs_most(printed, pinned):
    for run in ("before", "after"):
        text = printed(
            "analyze",
            f"sample_reports/ddp-4gpu-{run}_*.sqlite",
            "-j",
            "1",
            "--findings",
            "0",
            "--top",
            "5",
        )
        pinned(f"costs/sample-{run}", text=text)
