"""The page of a run as text: the same for the same run, complete, and closed to what names hold."""

import html
import json
import re

import pyarrow as pa
import pytest
from rich.console import Console

from nsyspipe import load
from nsyspipe.analysis.summary import telling_ranks
from nsyspipe.model import schema
from nsyspipe.model.problems import EXPORT_AGAIN
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report.blocks import Bar
from nsyspipe.report.findings import evidence_rows
from nsyspipe.report.html.page import LIBRARY, _code, _typeset, read_asset, run_id_of_page
from nsyspipe.report.html.run_page import (
    idle_table,
    link_table,
    nccl_rows,
    run_page,
    straggler_table,
)
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import left_out_note, summary_text
from nsyspipe.report.words import idle_cause, troubles
from nsyspipe.store.write import save
from nsyspipe.version import __version__
from tests.build.hostile import HOSTILE, hostile_log, write_hostile_run
from tests.build.plain_steps import plain_run
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder, steady_rank


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_saved_or_not(steady_run, tmp_path):
    save(steady_run, tmp_path / "store", events=True)
    again = load(steady_run.inputs[0].parent, run_id=steady_run.header.run_id)
    assert run_page(load(tmp_path / "store")) == run_page(steady_run) == run_page(again)


@pytest.mark.slow
def test_a_timeline_has_the_slowest_and_the_fastest_step(tmp_path, worded):
    # Steps of the figures take 120, 121, 122, 120 ... ms: the median is 121.
    rows = [((90 + number % 3) * 10**6, 20 * 10**6, 4 * 10**6, 6 * 10**6) for number in range(12)]
    run = plain_run(tmp_path / "reports", [rows] * 2)
    save(run, tmp_path / "store")
    choice = re.compile(r'<select id="timeline-step">(.*?)</select>')
    steps = re.findall(r'<option value="(\d+)">[^,]*, ([a-z ]+)<', choice.search(run_page(run))[1])
    walls = dict(
        zip(*(run.breakdown()[name].to_pylist() for name in ("step", "wall_ns")), strict=True)
    )
    worded([what for _, what in steps])
    assert [walls[int(step)] // 10**6 for step, _ in steps] == [121, 122, 120]
    assert not choice.search(run_page(load(tmp_path / "store")))


@pytest.mark.slow
def test_a_page_is_complete_and_fetches_nothing(steady_run, tmp_path):
    text = run_page(load(steady_run.inputs[0].parent, run_id='a"<b>'))
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    assert run_id_of_page(tmp_path / "page.html") == 'a"<b>'
    assert len(text.encode()) < 1_400_000
    text = text.replace(read_asset(LIBRARY), "")
    links, ids = re.findall(r'<li><a href="#([a-z-]+)">', text), re.findall(r'\bid="([^"]+)"', text)
    assert (len(links), len(ids)) == (7, len(set(ids)))
    assert set(links) < set(ids)
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert text.count("<link") == 1
    sources = set(re.findall(r'data-source="([a-z-]+)"', text))
    assert sources == {"step-bars", "timeline", "step-columns", "collectives"}
    assert all(f'<script type="application/json" id="data-{source}">' in text for source in sources)
    # Every column's unit and formula.
    (formula,) = [one.doc for one in schema.STEPS.columns if one.name == "start_ns"]
    assert formula in text.replace("&#39;", "'")


@pytest.mark.slow
def test_hostile_names_are_escaped_everywhere(tmp_path):
    log = hostile_log(tmp_path / "nccl.log")
    run = load(write_hostile_run(tmp_path), nccl_log=log, label=HOSTILE[0], run_id=HOSTILE[3])
    text = run_page(run).replace(read_asset(LIBRARY), "")
    assert not [name for name in HOSTILE[:4] if name in text]
    assert "&lt;script&gt;window.attacked=1" in text
    assert text.count("<script") == text.count("</script>") == 2 + text.count("<script type=")
    # Neither templates in names are run, nor long names repeated at full length.
    assert ("{{7*7}}" in text, "long_name_" * 50 in text) == (True, False)


def without_backward():
    builders = [steady_rank(rank) for rank in range(2)]
    for builder in builders:
        backward = builder.string("backward")
        builder.rows["NVTX_EVENTS"] = [
            row for row in builder.rows["NVTX_EVENTS"] if row["textId"] != backward
        ]
    return builders


def without_communication():
    builder = TraceBuilder().env(RANK=0).gpu()
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").kernel(
            at + 100, at + 1050, launch=at + 10
        )
    return [builder]


RUNS = {
    "without-communication": without_communication,
    "capture-with-communication": lambda: [
        TraceBuilder().env(RANK=0).gpu().kernel(0, 600, launch=-10).nccl(600, 1000, launch=-5)
    ],
    "steady": lambda: [steady_rank(rank) for rank in range(2)],
    "one-rank": lambda: [steady_rank(0, world_size=1)],
    "without-steps": lambda: [TraceBuilder().kernel(10, 50, launch=1).kernel(60, 90, launch=2)],
    "without-gpu-activity": lambda: [TraceBuilder().range(0, 10, "step 1")],
    "without-backward": without_backward,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_a_built_run_says_in_all_formats_what_it_did(case, tmp_path, pinned, shown):
    for rank, builder in enumerate(RUNS[case]()):
        builder.write(tmp_path / f"r_{rank}.sqlite")
    run = load(tmp_path, label=case, jobs=1)
    pinned(
        f"run/{case}",
        text=summary_text(run, Console(width=100)),
        markdown=markdown(run),
        page=shown(run_page(run)),
    )


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_a_narrow_terminal_keeps_what_is_asked_for_and_says_what_it_left_out(steady_run, width):
    text = summary_text(steady_run, Console(width=width), is_verbose=True)
    assert {"compute", "exposed", "idle", "wait", "delay"} <= {
        *re.search(r"((?:.+\n)+)rank +time.*\n", text)[0].split()
    }
    assert ("more columns" in text) == (width < 79)


@pytest.mark.parametrize(
    ("key", "value", "figure"),
    [
        ("exposed_comm_ns_per_step", 1_500_000.0, "1.500 ms"),
        ("overlap_ratio", 0.25, "25.0%"),
        ("busbw_bytes_per_s", 25e9, "25.00 GB/s"),
        ("grad_copy_bytes_per_step", 2e6, "2.00 MB"),
        ("n_arrived_last", 11, "11"),
        ("link", "SHM", "SHM"),
        ("is_estimate", True, "yes"),
        ("ranks", [0, 3], "0, 3"),
        ("exposed_comm_ns_per_step_by_phase", {"backward": 2e6}, "2.000 ms"),
        ("bytes_per_step", 2e6, "2.00 MB"),
        ("saving_ns_per_step_by_part", {"longer_window": 1e6}, "1.000 ms"),
        ("n_steps_held_up_by_rank", {"3": 2}, "2"),
    ],
)
def test_evidence_is_written_in_words_by_its_unit(key, value, figure, worded):
    ((name, text),) = evidence_rows({key: value})
    assert text == figure
    worded(name)


def test_evidence_that_is_not_known_is_left_out():
    assert list(evidence_rows({"link": None})) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-2gpu-straggler", "ddp-1gpu"])
def test_no_two_figures_of_a_finding_have_one_name(name, real):
    for row in load(real.glob(f"{name}_[0-9].sqlite"), jobs=1).findings().to_pylist():
        names = [name for name, _ in evidence_rows(json.loads(row["evidence"]))]
        assert len({*names}) == len(names), row
        assert [
            one for one in names if any(other.startswith(f"{one}, rank ") for other in names)
        ] == [], row


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("unset NCCL_P2P_DISABLE <b>", "unset <code>NCCL_P2P_DISABLE</code> &lt;b&gt;"),
        ("lower DDP(bucket_cap_mb=...)", "lower <code>DDP(bucket_cap_mb=...)</code>"),
        ("or pass --ipc=host", "or pass <code>--ipc=host</code>"),
        ("as --step none does", "as <code>--step none</code> does"),
        (
            "avoid .item(), set A_CONF=x_y:True.",
            "avoid <code>.item()</code>, set <code>A_CONF=x_y:True</code>.",
        ),
    ],
)
def test_what_is_to_be_typed_is_code(text, marked):
    assert str(_code(text)) == marked
    # A number keeps its unit on its line.
    assert (
        _typeset("45 % of 3 kernels, 3.5 ms per step") == "45\xa0% of 3 kernels, 3.5\xa0ms per step"
    )


def without_version(text):
    return re.sub(rf"(nsyspipe \|? ?){re.escape(__version__)}", r"\1VERSION", text)


def section_of(page, anchor="[a-z-]+"):
    """Return the texts of a section of a page, by default of the first, a line for each."""
    section = re.search(rf'<section id="{anchor}".*?</section>', page, re.DOTALL)[0]
    texts = (html.unescape(part) for part in re.split(r"<[^>]+>", section))
    return [" ".join(text.split()) for text in texts if text.strip()]


def test_of_kernels_of_one_graph_launch_no_range_tells_backward(real):
    run = load(sorted(real.glob("2gpu-graph-node_[0-9].sqlite")), jobs=1)
    problems = {row["code"]: row["fix"] for row in run.problem_rows}
    assert "no-backward" not in problems
    assert problems["backward-in-graphs"] is not None


@pytest.mark.parametrize("slowdown", [0.146, None])
def test_below_kernels_stands_what_slower_means_where_any_is(
    slowdown, steady_run, monkeypatch, worded
):
    costs = steady_run.costs().to_pylist()
    rows = schema.COSTS.from_rows(
        [row | {"slowdown_ratio": slowdown, "n_slowed": 3} for row in costs]
    )
    monkeypatch.setattr(type(steady_run), "costs", lambda _: rows)
    worded(section_of(run_page(steady_run), "kernels"))


@pytest.mark.slow
def test_of_one_step_and_one_rank_nothing_is_said_of_others(tmp_path, shown, worded):
    builder = TraceBuilder().env(RANK=0).gpu()
    for at in (0, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").kernel(at + 100, at + 950, launch=at + 10)
    page = run_page(run_of(tmp_path, builder, label="one", run_id="r1"))
    worded(without_version(shown(page)).split("\n"))


def test_a_straggler_board_counts_per_step():
    rows = [
        {
            "rank": 0,
            "n_arrived_last": 0,
            "wait_caused_ns": 0,
            "lateness_ns": 0,
            "wait_ns": 8_000_000,
        },
        {
            "rank": 1,
            "n_arrived_last": 5,
            "wait_caused_ns": 9_000_000,
            "lateness_ns": 6_000_000,
            "wait_ns": 0,
        },
    ]
    times = [{"rank": rank, "step_time_ns": 7_000_000} for rank in (0, 1)]
    table = straggler_table(
        schema.STRAGGLERS.from_rows(rows), schema.RANK_SUMMARY.from_rows(times), 2
    )
    # Two steps: 6 ms late in all are 3 ms per step; 8 ms of waiting are 4 ms.
    assert table.rows == [
        ["1", "7.000 ms", Bar("3.000 ms", 1.0, "accent"), "4.500 ms", "0 ms", "2.5"],
        ["0", "7.000 ms", "0 ms", "0 ms", Bar("4.000 ms", 1.0, "waiting"), "0"],
    ]
    # One rank, and ranks that could not be matched, have none.
    for rows in ([{"rank": 0}], [{"rank": 0}, {"rank": 1}]):
        assert (
            straggler_table(
                schema.STRAGGLERS.from_rows(rows), schema.RANK_SUMMARY.from_rows(rows), 2
            )
            is None
        ), rows


@pytest.mark.slow
def test_of_graphs_that_were_captured_as_a_whole_the_page_names_the_flag(real, shown, worded):
    text = run_page(load(sorted(real.glob("2gpu-graph_[0-9].sqlite")), jobs=1))
    assert "--cuda-graph-trace=node" in text
    # What is known is a least.
    assert "≥ 1.8" in text
    # What no flag brings is not promised, nor is a range inside of a graph. Each rank synchronises
    # once, at its end: that ties the clocks, so why devices idle is known.
    lines = without_version(shown(text)).split("\n")
    worded([line for line in lines if not line.startswith("data-")])
    steps = json.loads(re.search(r'id="data-step-columns">(.*?)</script>', text)[1])["parts"]
    assert {name for name, parts in steps.items() if any(parts)} == {"idle"}


def test_causes_of_idle_time_are_sorted_and_zeros_left_out():
    def found_of(whole="step", **causes):
        row = dict.fromkeys(schema.IDLE_CAUSES, 0) | causes
        return idle_table(
            pa.table({name: [ns] for name, ns in row.items()} | {"wall_ns": [20 * 10**6]}),
            whole=whole,
        )

    found = found_of(idle_launch_ns=10**6, idle_input_ns=3 * 10**6)
    # Of a step of 20 ms 3 ms are 15 %, 1 ms is 5 %.
    assert [(row[0], row[2]) for row in found.rows] == [
        (idle_cause("idle_input_ns"), "15.0%"),
        (idle_cause("idle_launch_ns"), "5.0%"),
    ]
    assert found_of() is found_of(idle_launch_ns=None) is None
    capture = found_of("capture", idle_launch_ns=10**6)  # which has no mean per step
    assert [one.heading for one in capture.columns][1:3] == ["idle per capture", "of the capture"]


def test_links_that_are_alike_are_one_row(worded):
    edge = {"transport": "SHM", "kind": "shm", "path": "NV18", "nominal_bytes_per_s": 63e9}
    (row,) = link_table(
        schema.LINKS.from_rows([edge | {"from_rank": at, "to_rank": at + 1} for at in range(20)])
    ).rows
    assert [*row[:4], row[5]] == ["shm", "SHM", "NV18", "63.00 GB/s", "20"]
    worded(row[6])


def test_settings_of_nccl_are_listed_by_name(worded):
    facts = NcclFacts("2.28.9", {"NCCL_B": "1", "NCCL_A": "0"}, nvls=None)
    version, sharp, *settings = nccl_rows(facts)
    assert version[1] == "2.28.9"
    assert settings == [("NCCL_A", "0"), ("NCCL_B", "1")]
    worded(sharp)


def problem(message, rank=None, severity="warning", fix=None):
    return {"severity": severity, "message": message, "rank": rank, "report": None, "fix": fix}


def test_problems_that_differ_only_in_rank_or_number_appear_once():
    late, first = "step {} is late".format, "step 0 is late"
    for rows, said in [
        (
            [problem("no strings", rank, fix="mend") for rank in range(20)],
            [("no strings", "ranks 0-19", "mend")],
        ),
        ([problem(late(at)) for at in range(9)], [(first, "the first of 9 alike", None)]),
        (
            [problem(late(at), at) for at in (9, 10)],
            [(late(10), "the largest of 2 alike: ranks 9-10", None)],
        ),
        ([problem(late(at)) for at in range(2)], [(late(at), "", None) for at in range(2)]),
    ]:
        assert troubles(rows) == [("warning", *row) for row in said], rows


BLOBS, PAYLOADS = (
    f"{EXPORT_AGAIN}--include-blobs=true, so that groups are named",
    f"{EXPORT_AGAIN}nsys export",
)


@pytest.mark.parametrize(
    ("places", "fixes"),
    [
        ((None, None, None), (BLOBS, None, None)),  # of all reports
        ((None, 1, 1), (BLOBS, None, None)),
        ((1, 0, 1), (BLOBS, PAYLOADS, None)),
        ((1, None, 0), (BLOBS, PAYLOADS, None)),
    ],
)
def test_the_export_that_mends_several_problems_is_told_once(places, fixes):
    rows = [
        problem(f"lack {'abc'[at]}", rank, fix=(BLOBS, PAYLOADS, PAYLOADS)[at])
        for at, rank in enumerate(places)
    ]
    assert tuple(fix for *_, fix in troubles([*rows, problem("other", fix="mend")])) == (
        *fixes,
        "mend",
    )


@pytest.mark.parametrize(
    ("names", "is_named"),
    [
        (["comm-bound", "straggler", "slow-link", "no-sync", "grad-copy"], True),
        (
            ["comm-bound", "straggler", "slow-link", "no-sync", "tensor-comm", "single-bucket"],
            False,
        ),
        (["comm-bound", "straggler", "slow-link", "no-sync", "tensor-comm", "grad-copy"], False),
    ],
    ids=["few", "about-communication", "many"],
)
def test_many_checks_that_one_cause_skips_are_counted(names, is_named, worded):
    rows = [problem(f"skipped checks: {', '.join(names)} (communication (of all) not known)")]
    ((severity, message, *_),) = troubles(rows)
    assert severity == "warning"
    assert [name for name in names if name in message] == (names if is_named else [])
    worded(message)


def test_of_many_ranks_stragglers_slowest_most_exposed_and_fastest_are_chosen():
    def of_ranks(**columns):
        return pa.table(
            {"rank": list(range(64))}
            | {name: list(values.values()) for name, values in columns.items()}
        )

    none = dict.fromkeys(range(64), 0.1)
    figures = of_ranks(step_time_ns=none | {17: 90, 40: 0.01}, exposed_comm_share=none | {21: 0.2})
    late, whole = of_ranks(lateness_ns=none | {33: 9}), of_ranks(wall_ns=none | {5: 9})
    assert telling_ranks(figures, late, None, 64) == list(range(64))
    assert 5 in telling_ranks(figures, late, whole, 4)
    chosen = telling_ranks(figures, late, None, 8)
    assert (len(chosen), {17, 21, 33, 40} < set(chosen), chosen) == (8, True, sorted(chosen))
    assert (left_out_note(4, 4), left_out_note(8, 64)[:13]) == ("", "8 of 64 ranks")
