"""What becomes of host steps; and what steps and backward are taken to be where no range says it."""

import io
import json
import re

import pytest
from rich.console import Console

from nsyspipe.analysis.steps import STEP_OPTION, Candidate, choose_host
from nsyspipe.analysis.summary import fastest_and_slowest, host_figures
from nsyspipe.api import compare, diff
from nsyspipe.model import schema
from nsyspipe.replay.answer import whatif
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import words_of
from nsyspipe.report.difference import difference_blocks, difference_document
from nsyspipe.report.export import document
from nsyspipe.report.html.difference_page import difference_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.html.scoreboard_page import scoreboard_page
from nsyspipe.report.markdown import as_markdown, markdown
from nsyspipe.report.perfetto import perfetto
from nsyspipe.report.run import host_blocks, summary_text
from nsyspipe.report.scoreboard import scoreboard_blocks, scoreboard_document
from nsyspipe.report.whatif import whatif_blocks, whatif_document
from nsyspipe.report.words import host_notes, idle_text, sources
from tests.build.tools import run_of
from tests.run.test_step_sources import trained


def row_of(rank, step, length, forward=None, *, start=0, **more):
    """Return a host step of a report and a process per rank; one of a length below 0 was never closed."""
    return {
        "rank": rank,
        "report": f"r_{rank}.sqlite",
        "pid": 10 + (rank or 0),
        "step": step,
        "host_start_ns": start,
        "host_end_ns": start + abs(length),
        "host_ns": abs(length),
        "forward_ns": forward,
        "is_complete": length >= 0,
    } | more


def table(*rows):
    return schema.HOST_STEPS.from_rows([row_of(*row) for row in rows])


def cells(host_steps, n_shown=16):
    return [
        [words_of(cell) for cell in row]
        for row in next(iter(host_blocks(host_steps, n_shown))).rows
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # The median of an even number is floored, (4 + 7) / 2; the first of the slowest counts.
        ([(0, 0, 7, 1), (0, 1, 4, 2), (0, 2, 3, 0), (0, 3, 7, 9)], (4, 0, 5, 0, 7)),
        # A step that was never closed is counted apart.
        ([(0, 0, 5, 1), (0, 1, -900, 3)], (1, 1, 5, 0, 5)),
        ([(0, 1, -900, 3)], (0, 1, None, None, None)),
    ],
)
def test_figures_are_of_the_steps_that_were_closed(rows, expected):
    (one,) = host_figures(table(*rows))
    assert (one.n_steps, one.n_open, one.median_ns, one.slowest_step, one.slowest_ns) == expected
    if not one.n_steps:
        assert cells(table(*rows))[0][2:6] == ["0", "-", "-", "-"]
    elif not one.n_open:
        assert one.phase_ns == {"backward": None, "forward": 1, "optimizer": None, "data": None}


@pytest.mark.parametrize(
    ("rows", "pair"),
    [
        ([(0, 0, 5, 1), (1, 0, 9, 1), (2, 0, 5, 1), (3, 0, 9, 1)], (0, 1)),
        ([(0, 0, 5, 1), (1, 0, 5, 1)], None),
        ([(0, 0, 5, 1)], None),
        ([(0, 0, 5, 1), (1, 0, -7, 1)], None),
        ([(0, 0, 0, 1), (1, 0, 6, 1)], (0, 1)),
        ([(0, 0, 100, 1), (1, 0, 104, 1)], None),
        ([(0, 0, 100, 1), (1, 0, 105, 1)], (0, 1)),
        ([(0, 0, 0, 0), (1, 0, 0, 0)], None),
    ],
    ids=[
        "lowest-of-equals",
        "equal",
        "one",
        "one-is-open",
        "zero",
        "below-5-percent",
        "5-percent",
        "all-zero",
    ],
)
def test_the_slowest_and_the_fastest_are_named_only_if_they_differ(rows, pair):
    figures = host_figures(table(*rows))
    found = fastest_and_slowest(figures)
    assert (found and (found[0].rank, found[1].rank)) == pair
    of_ranks = [note for note in host_notes(figures, 16) if re.search(r"\brank \d", note)]
    assert len(of_ranks) == (pair is not None)


MS = 1_000_000


def with_backward(*rows):
    """Return one step of each rank, of (length, backward) in ms, without other phases."""
    found = [
        row_of(rank, 0, length * MS, backward_ns=backward * MS)
        for rank, (length, backward) in enumerate(rows)
    ]
    return schema.HOST_STEPS.from_rows(found)


def test_the_rest_of_a_step_is_in_no_phase_and_unknown_where_there_is_no_phase():
    (row,) = cells(with_backward((100, 60)))
    assert row[-3:] == ["60.00", "-", "40.00"]  # backward, optimizer, other; ms
    assert cells(table((0, 0, 5, None)))[0][-1] == "-"


@pytest.mark.parametrize(
    ("rows", "times"),
    [
        # Rank 1 sleeps 12 of its 100 ms elsewhere, rank 0 waits as long in backward.
        ([(100, 62), (100, 50)], ["62.00", "50.00"]),
        # It sleeps between two steps.
        ([(112, 62), (100, 50)], ["12.00"]),
        ([(112, 55), (100, 50)], ["12.00"]),
        ([(100, 52), (100, 50)], []),
    ],
    ids=["equal-steps", "longer-backward", "longer-elsewhere", "nothing-to-say"],
)
def test_a_rank_that_waits_in_backward_is_not_called_the_slowest(rows, times, worded):
    notes = [*host_notes(host_figures(with_backward(*rows)), 16)]
    assert re.findall(r"([\d.]+) ms", " ".join(notes)) == times
    worded(notes)


def test_of_many_processes_the_slowest_are_shown_in_their_order(worded):
    rows = table((0, 0, 5, 1), (1, 0, 9, 1), (2, 0, 6, 1), (3, 0, 9, 1))
    assert [row[0] for row in cells(rows, 2)] == ["1", "3"]
    assert [row[0] for row in cells(rows, 3)] == ["1", "2", "3"]
    worded([*host_notes(host_figures(rows), 2)][-1])


def family(name, union=100, *, first=0, n_members=2):
    return Candidate(name, 1, union, first, n_members, 0, 0)


@pytest.mark.parametrize(
    ("reports", "chosen"),
    [
        ([[[family("a", 10), family("b", 20)]]], "b"),
        ([[[family("a", 10), family("b", 90)]], [[family("a", 10)]]], "a"),
        ([[[family("a", 10)], [family("b", 8)], [family("b", 8)]]], "b"),
        ([[[family("b", 10), family("a", 10)]]], "a"),
        ([[[family("b", 10, first=3), family("a", 10, first=5)]]], "b"),
        ([[[family("epoch #", 99)]]], "epoch #"),
        ([[[family("epoch #", 99), family("a", 10)]], [[family("epoch #", 99)]]], "a"),
        ([[[family("a", n_members=1)]]], None),
        ([[[family(STEP_OPTION, n_members=1)]], [[]]], STEP_OPTION),
        ([[[]], []], None),
        ([], None),
    ],
    ids=[
        "longest",
        "most-reports",
        "sum-of-a-report",
        "alphabet",
        "earlier",
        "epoch-alone",
        "epoch",
        "one-member",
        "option",
        "no-family",
        "no-report",
    ],
)
def test_the_family_in_most_reports_is_the_steps_then_the_longest(reports, chosen):
    assert choose_host(reports, [0] * len(reports)) == chosen


def in_turn(rank, *spans):
    """Return steps of one rank, of (start, end) in ms."""
    return [
        row_of(rank, step, (end - start) * MS, start=start * MS)
        for step, (start, end) in enumerate(spans)
    ]


def test_time_between_steps_is_probably_the_loaders(worded):
    slow = in_turn(0, (0, 100), (150, 250), (302, 400), (455, 500))  # 50, 52 and 55 ms between
    first, second = host_figures(
        schema.HOST_STEPS.from_rows(slow + in_turn(1, (0, 100), (101, 200), (202, 300)))
    )
    assert (first.between_ns, second.between_ns) == (52 * MS, 3 * MS // 2)
    (note,) = [one for one in host_notes([first, second], 16) if "52.00 ms" in one]
    worded(note)
    assert not [*host_notes([second], 16)]
    (alone,) = host_figures(schema.HOST_STEPS.from_rows(in_turn(0, (0, 100))))
    assert alone.between_ns is None


CAUSES = ("input", "launch", "blocked", "dependency", "unknown")
CALLS = ["cudaMalloc", "cudaFree"]


def step(*causes, wall=10_000, **known):
    columns = {
        f"idle_{name}_ns": None if us is None else 1000 * us
        for name, us in zip(CAUSES, causes, strict=True)
    }
    idle = known.get("idle", sum(us or 0 for us in causes))
    return {"wall_ns": 1000 * wall, "idle_ns": None if idle is None else 1000 * idle} | columns


LONG_CALL = "\x1b[31mcall" + "x" * 500
# Steps, calls that block, and the times and shares that are told: idle time, then its causes.
IDLE = {
    # The largest first, and none under 0.1%.
    "all causes": (
        [step(290, 400, 110, 540, 9)],
        CALLS,
        [
            "1.349 ms (13.5%",
            "0.5400 ms (5.4%",
            "0.4000 ms (4.0%",
            "0.2900 ms (2.9%",
            "0.1100 ms (1.1%",
        ],
    ),
    "dependency": (
        [step(0, 0, 0, 200, 10)],
        CALLS,
        ["0.2100 ms (2.1%", "0.2000 ms (2.0%", "0.01000 ms (0.1%"],
    ),
    # Steps are pooled.
    "two steps": (
        [step(100, 0, 0, 0, 0, wall=1000), step(0, 200, 0, 0, 0, wall=3000)],
        CALLS,
        ["0.1500 ms (7.5%", "0.1000 ms (5.0%", "0.05000 ms (2.5%"],
    ),
    # Under 2% is not explained.
    "2 %": ([step(200, 0, 0, 0, 0)], CALLS, ["0.2000 ms (2.0%", "0.2000 ms (2.0%"]),
    # Causes that cannot be told apart stand together.
    "not told apart": (
        [step(30, None, None, 20, 0, wall=1000, idle=200)],
        [],
        ["0.2000 ms (20.0%", "0.1500 ms (15.0%", "0.03000 ms (3.0%", "0.02000 ms (2.0%"],
    ),
    "not known": ([step(*[None] * 5, wall=1000, idle=50)], [], ["0.05000 ms (5.0%"]),
    # Names of calls are made fit to show.
    "a long call": ([step(0, 0, 500, 0, 0)], [LONG_CALL], ["0.5000 ms (5.0%", "0.5000 ms (5.0%"]),
    "no call": ([step(0, 0, 500, 0, 0)], [], ["0.5000 ms (5.0%", "0.5000 ms (5.0%"]),
}


def idle_line(rows, calls):
    named = [{"call": call, "blocked_ns_per_step": 9.0 - at} for at, call in enumerate(calls)]
    return idle_text(schema.STEPS.from_rows(rows), schema.IDLE_CALLS.from_rows(named))


@pytest.mark.parametrize("case", IDLE)
def test_idle_time_is_explained_by_its_causes(case, worded):
    rows, calls, figures = IDLE[case]
    line = idle_line(rows, calls)
    assert re.findall(r"[\d.]+ ms \([\d.]+%", line) == figures
    worded(line)


@pytest.mark.parametrize(
    "rows",
    [
        [step(199, 0, 0, 0, 0)],
        [step(0, 0, 0, 0, 0)],
        [],
        [step(*[None] * 5, wall=1000, idle=None)],
        [step(0, 0, 0, 0, 0, wall=0)],
    ],
    ids=["under 2 %", "none", "no steps", "not recorded", "no time"],
)
def test_idle_time_that_is_little_or_not_known_is_not_explained(rows):
    assert idle_line(rows, CALLS) is None


CODES = {"steps-by-repetition", "backward-by-thread"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("marked", "bare")]
    return [
        run_of(
            folder,
            *(trained(rank, 8, is_marked=is_marked) for rank in range(2)),
            label=folder.name,
            jobs=1,
        )
        for folder, is_marked in zip(folders, (True, False), strict=True)
    ]


def text_of(blocks):
    return as_text(blocks, Console(width=100))


def texts_of(run):
    board, answer, change = compare([run]), whatif(run), diff(run, run)
    return {
        "text": summary_text(run, Console(width=100)),
        "Markdown": markdown(run),
        "page": run_page(run).replace("&#39;", "'"),
        "diff": text_of(difference_blocks(change)),
        "diff's Markdown": as_markdown(difference_blocks(change), [], ""),
        "diff's page": difference_page(change).replace("&#39;", "'"),
        "compare": text_of(scoreboard_blocks(board)),
        "compare's page": scoreboard_page(board).replace("&#39;", "'"),
        "whatif": text_of(whatif_blocks(answer, run)),
        "whatif's Markdown": as_markdown(whatif_blocks(answer, run), [], ""),
    }


@pytest.mark.slow
def test_every_text_says_it_of_a_run_without_ranges_and_of_no_other(runs):
    marked, bare = (
        {
            name: " ".join(text.replace("\N{ZERO WIDTH SPACE}", "").split())
            for name, text in texts_of(run).items()
        }
        for run in runs
    )
    of_steps, of_backward = sources(runs[1])
    assert sources(runs[0]) == []
    assert [name for name, text in bare.items() if of_steps not in text] == []
    # A first screen names the note by its code.
    lacking = [name for name, text in bare.items() if of_backward not in text]
    assert [name for name in lacking if "backward-by-thread" not in bare[name]] == []
    assert [name for name, text in marked.items() if of_steps in text or of_backward in text] == []
    assert "none marked" not in bare["page"]


@pytest.mark.slow
def test_every_document_says_it_of_a_run_without_ranges_and_of_no_other(runs):
    for run, codes, source in zip(runs, (set(), CODES), ("ranges", "repetition"), strict=True):
        documents = [
            document(run),
            scoreboard_document(compare([run])),
            whatif_document(whatif(run)),
            difference_document(diff(run, run)),
        ]
        assert [CODES & {row["code"] for row in one["problems"]} for one in documents] == [
            codes
        ] * 4, run
        assert json.dumps(documents[0]["run"]["steps_from"]) == f'"{source}"', run


@pytest.mark.slow
def test_steps_of_a_trace_are_steps(runs):
    for run in runs:
        file = io.BytesIO()
        perfetto(run, file)
        assert (b"step 1" in file.getvalue(), b"whole capture" in file.getvalue()) == (
            True,
            False,
        ), run


def test_a_difference_says_that_sides_take_steps_and_backward_from_elsewhere(runs):
    checks = {
        row["check"]: (row["baseline"], row["candidate"])
        for row in diff(*runs).comparability.to_pylist()
    }
    assert checks["steps-from"] == ("ranges", "repetition")
    assert checks["step-family"] == ("'step #'", "repetition")
    assert checks["backward-from"] == ("ranges", "thread")
    assert "backward-from" not in {
        row["check"] for row in diff(runs[1], runs[1]).comparability.to_pylist()
    }
