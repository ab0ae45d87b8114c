"""Findings, tiles and boards in the words of a run's page."""

from __future__ import annotations

import pytest

from nsyspipe.model import schema
from nsyspipe.model.fabric import NcclFacts
from nsyspipe.report.blocks import Bar
from nsyspipe.report.html.page import _code, _unbroken
from nsyspipe.report.html.run_boards import (
    _sentence,
    evidence_rows,
    idle_table,
    kernel_table,
    link_table,
    nccl_facts,
    phase_table,
    straggler_table,
    troubles,
)
from nsyspipe.report.html.run_page import definitions


@pytest.mark.parametrize(
    ("key", "value", "row"),
    [
        ("exposed_comm_ns_per_step", 1_500_000.0, ("exposed comm per step", "1.500 ms")),
        ("overlap_ratio", 0.25, ("overlap", "25.0 %")),
        ("busbw_bytes_per_s", 25e9, ("busbw", "25.00 GB/s")),
        ("grad_copy_bytes_per_step", 2e6, ("grad copy per step", "2.00 MB")),
        ("n_arrived_last", 11, ("arrived last", "11")),
        ("link", "SHM", ("link", "SHM")),
        ("is_estimate", True, ("is estimate", "yes")),
        ("ranks", [0, 3], ("ranks", "0, 3")),
    ],
)
def test_evidence_is_written_in_words_by_its_unit(key, value, row):
    assert list(evidence_rows({key: value})) == [row]


def test_evidence_by_phase_names_the_phase():
    found = evidence_rows({"exposed_comm_ns_per_step_by_phase": {"backward": 2_000_000.0}})
    assert list(found) == [("exposed comm per step, backward", "2.000 ms")]


def test_evidence_that_is_null_is_left_out():
    assert list(evidence_rows({"link": None})) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hide it", "Hide it"),
        ("bf16_compress_hook halves the bytes", "bf16_compress_hook halves the bytes"),
        ("gradient_as_bucket_view=True: no copies", "gradient_as_bucket_view=True: no copies"),
        ("model.register_comm_hook(None)", "model.register_comm_hook(None)"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_with_code(text, sentence):
    assert _sentence(text) == sentence


def test_what_is_to_be_typed_is_code():
    marked = _code("lower DDP(bucket_cap_mb=...), unset NCCL_P2P_DISABLE or pass --ipc=host <b>")
    assert str(marked) == (
        "lower <code>DDP(bucket_cap_mb=...)</code>, unset <code>NCCL_P2P_DISABLE</code> "
        "or pass <code>--ipc=host</code> &lt;b&gt;"
    )


def test_methods_and_settings_with_colons_are_code():
    marked = str(_code("avoid .item() and set A_CONF=expandable_segments:True."))
    assert marked == "avoid <code>.item()</code> and set <code>A_CONF=expandable_segments:True</code>."


def test_a_number_keeps_its_unit_on_its_line():
    assert str(_unbroken("45 % of <b> 3.5 ms per step")) == ("45&nbsp;% of &lt;b&gt; 3.5&nbsp;ms per step")


def test_a_straggler_board_counts_per_step():
    rows = [
        {"rank": 0, "n_arrived_last": 0, "wait_caused_ns": 0, "lateness_ns": 0, "wait_ns": 8_000_000},
        {"rank": 1, "n_arrived_last": 5, "wait_caused_ns": 9_000_000, "lateness_ns": 6_000_000, "wait_ns": 0},
    ]  # fmt: skip
    times = [{"rank": rank, "step_time_ns": 7_000_000} for rank in (0, 1)]
    table = straggler_table(schema.STRAGGLERS.from_rows(rows), schema.RANK_SUMMARY.from_rows(times), 2)
    # Two steps: 6 ms late in all are 3 ms per step; 8 ms of waiting are 4 ms.
    assert table.rows[1] == [
        "0",
        "7.000 ms",
        "0 ms",
        "0",
        "0 ms",
        Bar("4.000 ms", 1.0, "waiting"),
    ]
    assert table.rows[0] == [
        "1",
        "7.000 ms",
        Bar("3.000 ms", 1.0, "accent"),
        "5",
        "4.500 ms",
        "0 ms",
    ]


def test_one_rank_has_no_straggler_board():
    rows = schema.STRAGGLERS.from_rows([{"rank": 0}])
    assert straggler_table(rows, schema.RANK_SUMMARY.from_rows([{"rank": 0}]), 2) is None


def test_ranks_that_could_not_be_matched_have_no_straggler_board():
    rows = schema.STRAGGLERS.from_rows([{"rank": 0}, {"rank": 1}])
    assert straggler_table(rows, schema.RANK_SUMMARY.empty(), 2) is None


def test_phases_are_in_the_order_of_a_training_loop():
    rows = [{"phase": phase} for phase in ("backward", "data", "forward", "optimizer")]
    table = phase_table(schema.PHASE_SUMMARY.from_rows(rows))
    assert [row[0] for row in table.rows] == ["data", "forward", "backward", "optimizer"]
    assert phase_table(schema.PHASE_SUMMARY.empty()) is None


def test_causes_of_idle_time_are_sorted_and_zeros_left_out():
    causes = dict.fromkeys((f"{name}_per_step" for name in schema.IDLE_CAUSES), 0.0)
    found = idle_table(causes | {"idle_launch_ns_per_step": 1e6, "idle_input_ns_per_step": 3e6, "idle_share": 0.2})
    # 4 ms are 20 % of the step: 3 ms are 15 %, 1 ms is 5 %.
    assert [row[0] for row in found.rows] == ["input", "launch"]
    assert [row[2] for row in found.rows] == ["15.0 %", "5.0 %"]
    assert idle_table(causes | {"idle_share": 0.0}) is None


def test_kernels_are_summed_over_ranks_and_the_longest_stands_first():
    def kernel(rank, name, total, **more):
        zeros = dict.fromkeys(("overlapped_ns", "n_slowed", "slowed_ns", "free_ns"), 0)
        return {"rank": rank, "phase": "forward", "name": name, "n_kernels": 2, "total_ns": total} | zeros | more  # fmt: skip

    table = kernel_table(
        schema.KERNEL_COSTS.from_rows(
            [
                kernel(0, "a", 1_000_000),
                kernel(1, "a", 1_000_000),
                kernel(0, "b", 6_000_000, overlapped_ns=3_000_000, n_slowed=4, slowed_ns=3, free_ns=2),
            ]
        )
    )  # fmt: skip
    assert table.rows[0] == [
        "b", "forward", "2", Bar("6.000 ms", 1.0, "accent"), "75.0 %", "3.000 ms", Bar("50.0 %", 1.0, "hidden"), "50.0 % (4)",
    ]  # fmt: skip
    assert table.rows[1][:3] == ["a", "forward", "4"]
    assert kernel_table(schema.KERNEL_COSTS.empty()) is None


def test_links_that_are_alike_are_one_row():
    rows = [
        {"from_rank": at, "to_rank": at + 1, "transport": "SHM", "kind": "shm", "path": "NV18", "nominal_bytes_per_s": 63e9}
        for at in range(20)
    ]  # fmt: skip
    table = link_table(schema.LINKS.from_rows(rows))
    assert len(table.rows) == 1
    assert table.rows[0][:4] == ["shm", "SHM", "NV18", "63.00 GB/s"]
    assert table.rows[0][-1].endswith("11→12 and 8 more")
    assert link_table(schema.LINKS.empty()) is None


def test_what_nccl_says_is_listed_by_name():
    facts = NcclFacts("2.28.9", {"NCCL_B": "1", "NCCL_A": "0"}, nvls=None)
    assert nccl_facts(facts) == [
        ("version", "2.28.9"),
        ("NVLink SHARP", "not said"),
        ("NCCL_A", "0"),
        ("NCCL_B", "1"),
    ]
    assert nccl_facts(None) == []


def test_a_problem_of_many_ranks_is_told_once():
    same = {"code": "x", "severity": "info", "message": "m", "fix": "f", "report": "r"}
    rows = [same | {"rank": rank} for rank in range(14)]
    (found,) = troubles(schema.PROBLEMS.from_rows(rows))
    assert found == ("info", "m", "rank 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more", "f")


def test_many_problems_that_differ_in_numbers_are_told_once():
    rows = [
        {
            "code": "x",
            "severity": "info",
            "message": f"no name of rank {rank}",
            "fix": None,
            "rank": rank,
        }
        for rank in range(64)
    ]
    assert troubles(schema.PROBLEMS.from_rows(rows)) == [("info", "no name of rank 0; 63 more alike", "", None)]
    assert len(troubles(schema.PROBLEMS.from_rows(rows[:4]))) == 4


def test_every_table_that_the_page_shows_is_defined():
    assert {one.name for one in definitions()} >= {"summary", "steps", "collectives", "timeline"}
    assert all(row[2] for one in definitions() for row in one.table.rows)
