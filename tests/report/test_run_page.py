"""The page of a run as text: the same for the same run, complete, and closed to what names hold."""

import json
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console

from nsyspipe import load
from nsyspipe.analysis.summary import telling_ranks
from nsyspipe.model import schema
from nsyspipe.model.problems import EXPORT_AGAIN
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report.blocks import Bar
from nsyspipe.report.findings import evidence_rows, findings_of
from nsyspipe.report.html import run_page as page_of_run
from nsyspipe.report.html.page import LIBRARY, _code, _told, read_asset, run_id_of_page
from nsyspipe.report.html.run_page import by_cause, idle_table, link_table, nccl_rows, run_page, straggler_table
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import left_out_note, summary_text
from nsyspipe.report.verdict import gain_text
from nsyspipe.report.words import troubles
from nsyspipe.run.rank_names import RankNames
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE, hostile_log, write_hostile_run
from tests.build.plain_steps import plain_run
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder, steady_rank


def test_the_same_run_gives_the_same_bytes_saved_or_not(steady_run, tmp_path):
    save(steady_run, tmp_path / "store", events=True)
    again = load(steady_run.inputs[0].parent, run_id=steady_run.header.run_id)
    assert run_page(load(tmp_path / "store")) == run_page(steady_run) == run_page(again)


def test_a_timeline_has_the_slowest_and_the_fastest_step_where_their_operations_are_at_hand(tmp_path):
    # Steps of the figures take 120, 121, 122, 120 ... ms: the median is 121.
    rows = [((90 + number % 3) * 10**6, 20 * 10**6, 4 * 10**6, 6 * 10**6) for number in range(12)]
    run = plain_run(tmp_path / "reports", [rows] * 2)
    save(run, tmp_path / "store")
    choice = re.compile(r'<select id="timeline-step">(.*?)</select>')
    steps = re.findall(r'<option value="(\d+)">[^,]*, ([a-z ]+)<', choice.search(run_page(run))[1])
    walls = dict(zip(*(run.breakdown()[name].to_pylist() for name in ("step", "wall_ns")), strict=True))
    assert [what for _, what in steps] == ["closest to the median", "the slowest", "the fastest"]
    assert [walls[int(step)] // 10**6 for step, _ in steps] == [121, 122, 120]
    assert not choice.search(run_page(load(tmp_path / "store")))


def test_the_page_is_complete_small_fetches_nothing_and_says_which_run_it_is_of(steady_run, tmp_path):
    text = run_page(load(steady_run.inputs[0].parent, run_id='a"<b>'))
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    assert run_id_of_page(tmp_path / "page.html") == 'a"<b>'
    assert len(text.encode()) < 1_400_000
    text = text.replace(read_asset(LIBRARY), "")
    links, ids = re.findall(r'<li><a href="#([a-z-]+)">', text), re.findall(r'\bid="([^"]+)"', text)
    assert (len(links), len(ids)) == (13, len(set(ids)))
    assert set(links) < set(ids)
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert text.count("<link") == 1
    sources = set(re.findall(r'data-source="([a-z-]+)"', text))
    assert sources == {"step-bars", "timeline", "step-columns", "collectives"}
    assert all(f'<script type="application/json" id="data-{source}">' in text for source in sources)
    # Every column's unit and formula.
    assert "start of the step's first compute or comm kernel" in text.replace("&#39;", "'")


@pytest.mark.parametrize(
    ("height", "first", "then"), [(0, ["Time"], "Timeline"), (10_000, ["Time", "Steps"], "Timeline")]
)
def test_beside_a_long_list_of_findings_the_steps_have_room(height, first, then, steady_run, monkeypatch):
    monkeypatch.setattr(page_of_run, "_FINDING_HEIGHT", height)
    text = run_page(steady_run)
    beside, _, rest = text.partition('<div class="first">')[2].partition("</section>\n</div></div>")
    titles = r"<h2[^>]*>([^<]*)</h2>"
    assert (re.findall(titles, beside)[1:], re.findall(titles, rest)[0]) == (first, then)


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
        builder.rows["NVTX_EVENTS"] = [row for row in builder.rows["NVTX_EVENTS"] if row["textId"] != backward]
    return builders


def without_communication():
    builder = TraceBuilder().env(RANK=0).gpu()
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").kernel(at + 100, at + 1050, launch=at + 10)
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


@pytest.mark.parametrize("case", RUNS)
def test_a_built_run_says_in_all_formats_what_it_did(case, tmp_path, pinned, shown):
    for rank, builder in enumerate(RUNS[case]()):
        builder.write(tmp_path / f"r_{rank}.sqlite")
    run = load(tmp_path, label=case, jobs=1)
    pinned(f"run/{case}", text=summary_text(run, Console(width=100)), markdown=markdown(run), page=shown(run_page(run)))


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_a_narrow_terminal_keeps_what_is_asked_for_and_says_what_it_left_out(steady_run, width):
    text = summary_text(steady_run, Console(width=width))
    assert {"exposed", "hidden", "waits", "delay", "it"} <= {*re.search(r"((?:.+\n)+)rank +time.*\n", text)[0].split()}
    assert (re.search(r"Left out at [^:]*: (.*)", text) is None) == (width == 100)


@pytest.mark.parametrize(("key", "value", "rows"), [
    ("exposed_comm_ns_per_step", 1_500_000.0, [("exposed comm per step", "1.500 ms")]),
    ("overlap_ratio", 0.25, [("hidden by compute", "25.0 %")]),
    ("busbw_bytes_per_s", 25e9, [("bus bandwidth", "25.00 GB/s")]),
    ("grad_copy_bytes_per_step", 2e6, [("bytes of gradient copies per step", "2.00 MB")]),
    ("n_arrived_last", 11, [("collectives reached last, in all steps", "11")]), ("link", "SHM", [("link", "SHM")]),
    ("is_estimate", True, [("an estimate", "yes")]), ("ranks", [0, 3], [("ranks", "0, 3")]),
    ("exposed_comm_ns_per_step_by_phase", {"backward": 2e6}, [("exposed comm per step, backward", "2.000 ms")]),
    ("link", None, []), ("bytes_per_step", 2e6, [("bytes per step", "2.00 MB")]),
    ("saving_ns_per_step_by_part", {"longer_window": 1e6}, [("gain at most per step, step shorter than the slowest rank's by", "1.000 ms")]),
    ("n_steps_held_up_by_rank", {"3": 2}, [("number of steps in which others were held up, rank 3", "2")]),
])  # fmt: skip
def test_evidence_is_written_in_words_by_its_unit(key, value, rows):
    assert list(evidence_rows({key: value})) == rows


@pytest.mark.parametrize("name", ["ddp-2gpu-straggler", "ddp-1gpu"])
def test_no_two_figures_of_a_finding_have_one_name(name, real):
    for row in load(real.glob(f"{name}_[0-9].sqlite"), jobs=1).findings().to_pylist():
        names = [name for name, _ in evidence_rows(json.loads(row["evidence"]))]
        assert len({*names}) == len(names)
        assert [one for one in names if any(other.startswith(f"{one}, rank ") for other in names)] == []


@pytest.mark.parametrize(("text", "marked"), [
    ("unset NCCL_P2P_DISABLE <b>", "unset <code>NCCL_P2P_DISABLE</code> &lt;b&gt;"),
    ("lower DDP(bucket_cap_mb=...)", "lower <code>DDP(bucket_cap_mb=...)</code>"),
    ("or pass --ipc=host", "or pass <code>--ipc=host</code>"),
    ("as --step none asks for", "as <code>--step none</code> asks for"),
    ("avoid .item(), set A_CONF=x_y:True.", "avoid <code>.item()</code>, set <code>A_CONF=x_y:True</code>."),
])  # fmt: skip
def test_what_is_to_be_typed_is_code(text, marked):
    assert str(_code(text)) == marked
    # A number keeps its unit on its line.
    assert _told("45 % of 3 kernels, 3.5 ms per step") == "45\xa0% of 3 kernels, 3.5\xa0ms per step"


def told(rows, step_ns):
    names = ("id", "saving_ns_per_step", "expected_ns_per_step", "action", "evidence")
    fixed = {"severity": "high", "title": "t", "advice": "a", "evidence": "{}"}
    findings = schema.FINDINGS.from_rows([fixed | dict(zip(names, row, strict=False)) for row in rows])
    summary = pa.table({"throughput_steps_per_s": [1e9 / step_ns], "step_time_ns": [step_ns]})
    return findings_of(
        SimpleNamespace(finding_rows=findings.to_pylist(), summary=lambda: summary, rank_names=RankNames())
    )


LIMIT, MAY_WAIT = '{"replay_limit_ns_per_step": 40e6}', '{"is_wait_included": true}'
LEVEL = '{{"replay_step_time_ns": {}, "replay_step_time_low_ns": {}, "replay_step_time_high_ns": {}}}'
# A range that holds the captured step time.
UNCLEAR = '{"replay_step_time_low_ns": 630e6, "replay_step_time_high_ns": 650e6}'


@pytest.mark.parametrize(("rows", "step_ns", "says"), [
    # 76.5 of 645 ms are 11.9 %, 71.6 are 11.1 %; what a replay expects is never cut to the bound.
    ([("a", 76.5e6, 71.6e6, "lower x"), ("b", 70e6, None, "y")], 645e6, "Largest gain: lower x: up to 76.50 ms (11.9 %) of each step, likely 71.60 ms (11.1 %)."),
    ([("a", 76.5e6, 90e6, "lower x")], 645e6, "Largest gain: lower x: up to 76.50 ms (11.9 %) of each step, likely 90.00 ms (14.0 %)."),
    ([("a", 76.5e6, 9e6, "lower x", UNCLEAR)], 645e6, "To change first: lower x: up to 76.50 ms (11.9 %) of each step, likely 9.000 ms (1.4 %), not clear: within the error of the replay."),
    ([("a", None, None, "read with care"), ("b", 1e6, -1e6, "y")], 100e6, "Little to gain: y: up to 1.000 ms (1.0 %) of each step."),
    # What rests on what was not recorded may bring more than what is likely.
    ([("a", 35e6, 27e6, "lower x"), ("b", 30e6, 28e6, "y", '{"is_conditional": true}')], 100e6,
     ("To change first: lower x: up to 35.00 ms (35.0 %) of each step, likely 27.00 ms (27.0 %). Or perhaps: y: up to 30.00 ms (30.0 %), then likely 28.00 ms (28.0 %); "
     "nvidia-smi topo -m (--topology) tells.")),
    ([("a", 35e6, 31e6, "lower x"), ("b", 30e6, None, "y", '{"is_conditional": true}')], 100e6,
     "Largest gain: lower x: up to 35.00 ms (35.0 %) of each step, likely 31.00 ms (31.0 %)."),
    # Each lies in the other's range, or not.
    ([("a", 35e6, 27e6, "x", LEVEL.format(73e6, 70e6, 76e6)), ("b", 30e6, 25e6, "y", LEVEL.format(75e6, 72e6, 78e6))], 100e6,
     "Largest gain: x: up to 35.00 ms (35.0 %) of each step, likely 27.00 ms (27.0 %). Level with it: y: likely 25.00 ms (25.0 %)."),
    ([("a", 35e6, 27e6, "x", LEVEL.format(73e6, 70e6, 76e6)), ("b", 30e6, 25e6, "y", LEVEL.format(75e6, 74e6, 78e6))], 100e6,
     "Largest gain: x: up to 35.00 ms (35.0 %) of each step, likely 27.00 ms (27.0 %)."),
    # A bound that stands in front is not what is expected, nor is a limit.
    ([("a", 35e6, None, "lower x"), ("b", 60e6, 30e6, "y"), ("c", 50e6, 20e6, "z")], 100e6,
     "To change first: lower x: up to 35.00 ms (35.0 %) of each step. Largest clear gain of those replayed: y: likely 30.00 ms (30.0 %)."),
    ([("a", 35e6, None, "lower x", '{"replay_limit_ns_per_step": 9e6}')], 645e6,
     "To change first: lower x: up to 35.00 ms (5.4 %) of each step, 9.000 ms (1.4 %) if all of it were hidden (replay)."),
    ([("a", 35e6, None, "x"), ("b", 20e6, 3e6, "y", UNCLEAR)], 645e6,
     "To change first: x: up to 35.00 ms (5.4 %) of each step. No change that was replayed is a clear gain."),
    ([("a", 2e7, None, "x", '{"replay_refused": "hosts are slow"}')], 1e8,
     "To change first: x: up to 20.00 ms (20.0 %) of each step."),
    # What is larger stands behind, as what exposes communication does behind what lessens it; little is all of it.
    ([("a", 2e7, 1e7, "x"), ("b", 5e7, None, "y", LIMIT)], 1e8, "To change first: x: up to 20.00 ms (20.0 %) of each step, likely 10.00 ms (10.0 %)."),
    ([("a", 1e6, None, "x"), ("b", 5e6, None, "y", MAY_WAIT)], 1e8, "To change first: x: up to 1.000 ms (1.0 %) of each step."),
    ([("a", 5e6, None, "x", MAY_WAIT)], 1e8,
     "To change first: x: up to 5.000 ms (5.0 %) of each step, waiting included, which is not known."),
    ([], 100e6, "Nothing to gain was found."),
    ([("a", None, None, "read with care")], 100e6, None),
])  # fmt: skip
def test_the_largest_gain_is_said_with_its_worth_and_none_where_none_is_known(rows, step_ns, says):
    assert (" ".join(gain_text(told(rows, step_ns))) or None) == says


def test_findings_of_one_cause_stand_together_in_the_order_of_the_best():
    names = ("slow-link", "grad-copy", "single-bucket", "input-bound", "unheard-of")
    said = by_cause([SimpleNamespace(id=name) for name in names])
    assert [(cause, [one.id for one in of_cause]) for cause, of_cause in said] == [
        ("communication and late ranks", ["slow-link", "single-bucket"]), ("copies", ["grad-copy"]),
        ("idle devices", ["input-bound"]), ("others", ["unheard-of"]),
    ]  # fmt: skip


def test_the_list_says_its_order_and_below_it_why_a_gain_is_not_known(steady_run, monkeypatch):
    refused = '{"replay_refused": "hosts are slow"}'
    rows = [("launch-bound", 5e7, None, "x"), ("grad-copy", 3e7, None, "y", refused), ("sync-bound", 2e7, None, "z"), ("slow-link", None, None, "w")]  # fmt: skip
    monkeypatch.setattr(page_of_run, "findings_of", lambda _: told(rows, 1e8))
    said = " ".join(re.sub(r"<[^>]+>", "", run_page(steady_run).replace(read_asset(LIBRARY), "")).split())
    assert "overlap. Grouped by cause, groups by their first." in said
    # The two of idle devices stand first; of 3 the reason is told below, and the last has no bound.
    assert "No likely gain is told of 3: hosts are slow." in said
    assert (said.count("likely: not known"), said.count("not bounded in ms")) == (2, 1)


def test_of_kernels_of_one_graph_launch_no_range_tells_backward(real):
    run = load(sorted(real.glob("2gpu-graph-node_[0-9].sqlite")), jobs=1)
    problems = {row["code"]: row["fix"] for row in run.problem_rows}
    assert "no-backward" not in problems
    assert problems["backward-in-graphs"] == "capture some steps without CUDA graphs"


@pytest.mark.parametrize(("slowdown", "n"), [(0.146, 1), (None, 0)])
def test_below_kernels_stands_what_slower_means_where_any_is(slowdown, n, steady_run, monkeypatch):
    costs = steady_run.costs().to_pylist()
    rows = schema.COSTS.from_rows([row | {"slowdown_ratio": slowdown, "n_slowed": 3} for row in costs])
    monkeypatch.setattr(type(steady_run), "costs", lambda _: rows)
    assert run_page(steady_run).count("Slower beside comm: over the whole capture") == n


def test_of_one_step_and_one_rank_nothing_is_said_of_others(tmp_path):
    builder = TraceBuilder().env(RANK=0).gpu()
    for at in (0, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").kernel(at + 100, at + 950, launch=at + 10)
    said = re.sub(r"<[^>]+>", "", run_page(run_of(tmp_path, builder)).replace(read_asset(LIBRARY), ""))
    assert "the only one in the figures." in said
    for words in ("slowest rank", "median over steps", "closest to the median", "mean of the steps"):
        assert words not in said.partition("Definitions")[0]


def test_a_straggler_board_counts_per_step():
    rows = [
        {"rank": 0, "n_arrived_last": 0, "wait_caused_ns": 0, "lateness_ns": 0, "wait_ns": 8_000_000},
        {"rank": 1, "n_arrived_last": 5, "wait_caused_ns": 9_000_000, "lateness_ns": 6_000_000, "wait_ns": 0},
    ]  # fmt: skip
    times = [{"rank": rank, "step_time_ns": 7_000_000} for rank in (0, 1)]
    table = straggler_table(schema.STRAGGLERS.from_rows(rows), schema.RANK_SUMMARY.from_rows(times), 2)
    # Two steps: 6 ms late in all are 3 ms per step; 8 ms of waiting are 4 ms.
    assert table.rows == [
        ["1", "7.000 ms", Bar("3.000 ms", 1.0, "accent"), "4.500 ms", "0 ms", "2.5"],
        ["0", "7.000 ms", "0 ms", "0 ms", Bar("4.000 ms", 1.0, "waiting"), "0"],
    ]
    # One rank, and ranks that could not be matched, have none.
    for rows in ([{"rank": 0}], [{"rank": 0}, {"rank": 1}]):
        assert straggler_table(schema.STRAGGLERS.from_rows(rows), schema.RANK_SUMMARY.from_rows(rows), 2) is None


def test_of_graphs_that_were_captured_as_a_whole_the_page_says_that_hardly_anything_was_judged_and_the_flag(real):
    text = run_page(load(sorted(real.glob("2gpu-graph_[0-9].sqlite")), jobs=1))
    said = re.sub(r"<[^>]+>", "", text)
    what = "Hardly anything could be judged, as communication is not known; fix: capture with nsys profile"
    assert f"{what} --cuda-graph-trace=node." in said
    assert (
        said.count("CUDA graphs were captured as a whole; capture with --cuda-graph-trace=node") == 6
    )  # tiles, and who waits
    # What no flag brings is not promised, nor is a range inside of a graph; and what is known is a least.
    assert "steps run as CUDA graphs, inside which phases cannot be told; capture" not in said
    assert "capture some steps without CUDA graphs" in said
    assert "wrap loss.backward()" not in said
    assert "≥ 1.8" in said
    # Each rank synchronises once, at its end: that ties the clocks, so why devices idle is known.
    assert "Why devices idle is not known" not in said
    assert "exposed and waiting" not in said
    steps = json.loads(re.search(r'id="data-step-columns">(.*?)</script>', text)[1])["parts"]
    assert {name for name, parts in steps.items() if any(parts)} == {"idle"}


def test_causes_of_idle_time_are_sorted_and_zeros_left_out():
    def found_of(whole="step", **causes):
        row = dict.fromkeys(schema.IDLE_CAUSES, 0) | causes
        return idle_table(pa.table({name: [ns] for name, ns in row.items()} | {"wall_ns": [20 * 10**6]}), whole=whole)

    found = found_of(idle_launch_ns=10**6, idle_input_ns=3 * 10**6)
    # Of a step of 20 ms 3 ms are 15 %, 1 ms is 5 %.
    assert [(row[0], row[2]) for row in found.rows] == [("input", "15.0 %"), ("launch", "5.0 %")]
    assert found_of() is found_of(idle_launch_ns=None) is None
    capture = found_of("capture", idle_launch_ns=10**6)  # which has no mean per step
    assert [one.heading for one in capture.columns][1:3] == ["idle per capture", "of the capture"]


def test_links_that_are_alike_are_one_row():
    edge = {"transport": "SHM", "kind": "shm", "path": "NV18", "nominal_bytes_per_s": 63e9}
    (row,) = link_table(schema.LINKS.from_rows([edge | {"from_rank": at, "to_rank": at + 1} for at in range(20)])).rows
    assert [*row[:4], row[5]] == ["shm", "SHM", "NV18", "63.00 GB/s", "20"]
    assert re.fullmatch("0\N{RIGHTWARDS ARROW}1, 1\N{RIGHTWARDS ARROW}2, .* and 8 more", row[6])
    # What NCCL says is listed by name.
    facts = NcclFacts("2.28.9", {"NCCL_B": "1", "NCCL_A": "0"}, nvls=None)
    assert nccl_rows(facts) == [("version", "2.28.9"), ("NVLink SHARP", "not said"), ("NCCL_A", "0"), ("NCCL_B", "1")]


def problem(message, rank=None, severity="warning", fix=None):
    return {"severity": severity, "message": message, "rank": rank, "report": None, "fix": fix}


def test_problems_of_several_ranks_and_those_that_differ_in_numbers_are_told_once():
    late, first = "step {} is late".format, "step 0 is late"
    for rows, said in [
        ([problem("no strings", rank, fix="mend") for rank in range(20)], [("no strings", "ranks 0-19", "mend")]),
        ([problem(late(at)) for at in range(9)], [(first, "the first of 9 alike", None)]),
        ([problem(late(at), at) for at in (9, 10)], [(late(10), "the largest of 2 alike: ranks 9-10", None)]),
        ([problem(late(at)) for at in range(2)], [(late(at), "", None) for at in range(2)]),
    ]:
        assert troubles(rows) == [("warning", *row) for row in said]


BLOBS, PAYLOADS = f"{EXPORT_AGAIN}--include-blobs=true, so that groups are named", f"{EXPORT_AGAIN}nsys export"


@pytest.mark.parametrize(("places", "fixes"), [
    ((None, None, None), (BLOBS, None, None)),  # of all reports
    ((None, 1, 1), (BLOBS, None, None)),
    ((1, 0, 1), (BLOBS, PAYLOADS, None)),
    ((1, None, 0), (BLOBS, PAYLOADS, None)),
])  # fmt: skip
def test_the_export_that_mends_several_problems_is_told_once(places, fixes):
    rows = [problem(f"lack {'abc'[at]}", rank, fix=(BLOBS, PAYLOADS, PAYLOADS)[at]) for at, rank in enumerate(places)]
    assert tuple(fix for *_, fix in troubles([*rows, problem("other", fix="mend")])) == (*fixes, "mend")


@pytest.mark.parametrize(("names", "said"), [
    (["comm-bound", "straggler", "slow-link", "no-sync", "grad-copy"], "comm-bound, straggler, slow-link, no-sync, grad-copy"),
    (["comm-bound", "straggler", "slow-link", "no-sync", "tensor-comm", "single-bucket"], "6 rules about communication"),
    (["comm-bound", "straggler", "slow-link", "no-sync", "tensor-comm", "grad-copy"], "6 rules"),
])  # fmt: skip
def test_many_rules_that_one_cause_keeps_from_being_judged_are_counted(names, said):
    rows = [problem(f"not judged: {', '.join(names)} (communication (of all) not known)")]
    assert troubles(rows) == [("warning", f"not judged: {said} (communication (of all) not known)", "", None)]


def test_of_many_ranks_stragglers_slowest_most_exposed_and_fastest_are_chosen():
    def of_ranks(**columns):
        return pa.table({"rank": list(range(64))} | {name: list(values.values()) for name, values in columns.items()})

    none = dict.fromkeys(range(64), 0.1)
    figures = of_ranks(step_time_ns=none | {17: 90, 40: 0.01}, exposed_comm_share=none | {21: 0.2})
    late, whole = of_ranks(lateness_ns=none | {33: 9}), of_ranks(wall_ns=none | {5: 9})
    assert telling_ranks(figures, late, None, 64) == list(range(64))
    assert 5 in telling_ranks(figures, late, whole, 4)
    chosen = telling_ranks(figures, late, None, 8)
    assert (len(chosen), {17, 21, 33, 40} < set(chosen), chosen) == (8, True, sorted(chosen))
    assert (left_out_note(4, 4), left_out_note(8, 64)[:13]) == ("", "8 of 64 ranks")
