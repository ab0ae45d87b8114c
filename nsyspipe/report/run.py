"""A run as blocks: verdict first, then what it is, its figures, a row per rank, what to change, and what is missing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from nsyspipe.analysis.kernels import TRAFFIC
from nsyspipe.analysis.summary import host_figures
from nsyspipe.errors import shortened
from nsyspipe.model.figures import FIGURES, OTHER_FIGURES, PLACES, RATIOS
from nsyspipe.model.options import DEFAULT_FINDINGS
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.report import blocks, first_screen, words
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import Field, barred, of, table_of
from nsyspipe.report.costs import cost_tables, is_more_than_data, traffic_text
from nsyspipe.report.findings import (
    Finding,
    finding_lines,
    findings_of,
    is_little,
    of_capture,
    order_notes,
)
from nsyspipe.report.overview import (
    Checks,
    Recommendations,
    checks_of,
    recommendations_of,
    step_time_of,
)
from nsyspipe.report.units import absent, bytes_text, ms_text, percent_text, value_text
from nsyspipe.run.run import Run

LOOP = ("data", "forward", "backward", "optimizer")  # as in a training loop
_STEPS = ("step_time_ns", "throughput_steps_per_s")
_SIZES = ("collectives_per_step", "dtod_ns_per_step", "message_bytes_per_step", "busbw_bytes_per_s")
SHARES = (
    "comm_share",
    "exposed_comm_share",
    "overlap_ratio",
    "backward_overlap_ratio",
    "wait_share",
    "idle_share",
)
_LONGEST_REASON = 90
_MANY_RANKS = 16
_ROOMY = 60
_FULL_WIDTH = 79
_WIDE = 92
_WIDEST = 99
_RANK_TIMES = (
    "wall_ns",
    "compute_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "idle_ns",
    "comm_ns",
    "wait_ns",
)
_TIMES_FROM_WIDTH = {"comm_ns": _FULL_WIDTH, "exposed_memory_ns": _ROOMY}
_STEP_NAME = FIGURES["step_time_ns"].short
_PHASE_CPU, _PHASE_GPU, _IDLE_BEFORE = (
    OTHER_FIGURES[name] for name in ("phase_host", "phase_device", "idle_before")
)
_LENGTH = "length_ns"
_LATENESS = "lateness_ns_per_step"
_DELAY = OTHER_FIGURES["straggler_delay"]
# How wide a terminal has room for a figure of ranks: what is asked for (exposed, hidden, who waits
# for whom) goes last.
_FROM_WIDTH = {
    _LATENESS: 44,
    "wait_share": 52,
    "comm_share": 60,
    "compute_share": 70,
    "idle_share": _FULL_WIDTH,
    "exposed_memory_share": _WIDE,
}
# Which problems explain that a figure is null, the most telling first.
_NO_COMM = ("comm-in-graphs", "no-comm-kernels", "no-kernels", "no-kernel-names")
_CAUSES = {
    "step_time_ns": ("no-steps", "no-common-step", "no-gpu-activity", "captured-without-gpu"),
    **dict.fromkeys(("comm_share", "exposed_comm_share", "overlap_ratio"), _NO_COMM),
    "backward_overlap_ratio": (
        "backward-in-graphs",
        "comm-in-graphs",
        "no-comm-kernels",
        "no-backward",
        "comm-between-steps",
        "no-steps",
        "no-nvtx",
        "no-nvtx-ranges",
        "no-launches",
        "no-kernels",
    ),
    "wait_share": (
        "comm-between-steps",
        "different-runs",
        "unmatched-collectives",
        "no-common-clock",
        *_NO_COMM,
        "ranks-missing",
        "ranks-not-captured",
        "ranks-not-read",
    ),
    "idle_share": ("no-kernels", "no-memcpy", "no-memset"),
    "idle_causes": ("no-kernels", "no-memcpy", "no-memset", "device-clock-unknown", "no-launches"),
    "exposed_memory_share": (
        "comm-in-graphs",
        "graphs-as-a-whole",
        "no-memcpy",
        "no-memset",
        "no-kernels",
    ),
}
_NOT_KNOWN = "not known"
_OF_RANKS = PLACES["ranks"].split()  # the parts of the step come first and sum to it


class Extent(Struct, frozen=True):
    """How much of a run is shown; None for all of it."""

    figures: Sequence[str]
    n_ranks: int
    n_findings: int | None
    n_problems: int | None = None
    is_brief: bool = False  # of findings what to change, in a few words, and no phases
    is_comment: bool = False  # a few dozen lines
    is_verbose: bool = False  # everything below the first screen
    n_top: int | None = (
        None  # of kernels, collectives and communicators the costliest; None for none
    )
    width: int = 80  # of the terminal
    reports: str | None = None  # as they were named, for the next command


COMMENT = Extent((*_STEPS, *SHARES, "grad_copy_ns"), 8, 8, 8, is_comment=True)


def summary_text(
    run: Run,
    console: Console,
    *,
    n_findings: int | None = DEFAULT_FINDINGS,
    n_top: int | None = None,
    is_verbose: bool = False,
    reports: str | None = None,
) -> str:
    """Return a run's summary as text for a console, at most `as_text.MAX_WIDTH` columns wide.

    Parameters
    ----------
    run
        The run.
    console
        The console that the text is for.
    n_findings
        How many recommendations to show; None for all, with what stands behind each.
    n_top
        How many kernels, collectives and communicators to list; None for no lists.
    is_verbose
        Whether everything is shown that is known of the run.
    reports
        The reports as they were named on the command line, for the next command; None where they
        are not worth repeating.
    """
    n_ranks = (
        _MANY_RANKS if run.header.n_ranks <= _MANY_RANKS else COMMENT.n_ranks
    )  # of more those that tell most
    extent = Extent(
        (*_STEPS, *SHARES, *_SIZES),
        n_ranks,
        None if is_verbose else n_findings,
        is_brief=n_findings is not None and not is_verbose,
        n_top=n_top,
        is_verbose=is_verbose,
        width=console.width,
        reports=reports,
    )
    return as_text(run_blocks(run, extent), console)


def run_blocks(run: Run, extent: Extent) -> Iterator[blocks.Block]:
    """Yield what a run says: the first screen, then details if they are wanted, and what to type next."""
    step = step_time_of(run)
    found = recommendations_of(run)
    checks = checks_of(run)
    yield first_screen.title_of(run)
    yield blocks.Sentence(first_screen.headline_of(run, step), "bold")
    yield from first_screen.trust_blocks(run)
    yield from first_screen.step_blocks(run, step)
    if extent.is_verbose or first_screen.do_ranks_differ(run):
        yield rank_time_table(run, extent.n_ranks)
    if first_screen.has_straggler(run) and not extent.is_verbose:
        yield from (blocks.Sentence(text) for text in _straggler_texts(run))
    yield from host_blocks(run.host_steps(), extent.n_ranks)
    if extent.n_findings != 0:
        yield from _recommendation_blocks(run, extent, found, checks)
    if extent.n_top:
        yield from cost_tables(run, extent.n_top).values()
    elif extent.is_comment and is_more_than_data(run.traffic()):
        yield from (blocks.Sentence(text) for text in [traffic_of(run)] if text)
        yield from cost_tables(run, extent.n_ranks, TRAFFIC).values()
    if extent.is_verbose:
        yield from _details(run, extent, checks)
    elif not extent.is_brief and not extent.is_comment:
        yield from _finding_details(run)
    if not extent.is_verbose:
        n_alternatives = None if extent.n_findings is None else max(extent.n_findings - 1, 0)
        yield blocks.Sentence(
            first_screen.closing_text(run, found, checks, n_alternatives), is_close=False
        )
    if extent.is_comment:
        yield blocks.Sentence(_origin_text(run))
    yield first_screen.next_commands(found, step, extent.reports, is_comment=extent.is_comment)


def _origin_text(run: Run) -> str:
    """Return which run a comment is about, and what it was captured with as far as a sidecar records it."""
    versions = words.captured_versions_text(run.header.capture)
    return f"Run {run.header.run_id}{f', captured with {versions}' if versions else ''}."


def _straggler_texts(run: Run) -> Iterator[str]:
    """Yield how late the one late rank is, and where; of several late ranks, by what phases differ between ranks."""
    rank = first_screen.late_rank(run)
    if rank is not None:
        yield from first_screen.delay_texts(run, rank)
    elif text := words.phases_text(run):
        yield text


def _recommendation_blocks(
    run: Run, extent: Extent, found: Recommendations, checks: Checks
) -> Iterator[blocks.Block]:
    """Yield what to change first, the alternatives, and the limit; or that there is nothing to change."""
    n_alternatives = None if extent.n_findings is None else extent.n_findings - 1
    nothing = first_screen.nothing_text(run, found, checks)
    if nothing is not None:
        yield blocks.Sentence(nothing, "bold", is_close=False)
    step_ns = words.mean_step_ns(run.summary().to_pylist()[0])
    if step_ns is not None:
        yield from first_screen.change_blocks(found, step_ns)
    yield from first_screen.alternatives_blocks(found, n_alternatives)


def _details(run: Run, extent: Extent, checks: Checks) -> Iterator[blocks.Block]:
    """Yield everything below the first screen: all figures, what was captured with, what was checked, all problems."""
    (summary,) = run.summary().to_pylist()
    yield blocks.Heading("Details", "bold")
    subject = [*words.subject_parts(run, summary)[1:]]
    yield blocks.Facts([*subject, *words.hosts_text(run)], "Run")
    versions = words.captured_versions_text(run.header.capture)
    if versions:
        yield blocks.Facts((versions,), "Captured with")
    yield from (blocks.Sentence(text) for text in (words.link_text(run), traffic_of(run)) if text)
    has_figures = summary["n_summary_steps"] or run.is_capture
    if has_figures and (tiles := key_figures(run, extent.figures)):
        yield blocks.Tiles(
            [
                replace(tile, name="median step time") if tile.name == _STEP_NAME else tile
                for tile in tiles
            ]
        )
    if has_figures:
        texts = (
            words.idle_text(run.breakdown(), run.idle_calls(), words.unseen_idle(run)),
            words.stream_text(run),
            words.phases_text(run),
        )
        yield from (blocks.Sentence(f"{text[:1].upper()}{text[1:]}") for text in texts if text)
    yield from _finding_details(run)
    if checks.passed:
        yield blocks.Heading("Checks that found nothing", "bold")
        yield blocks.Sentence(", ".join(checks.passed))
    if checks.skipped:
        yield blocks.Heading("Skipped checks", "bold")
        yield blocks.Items([skipped_text(check) for check in checks.skipped])
    told = [row for row in run.problem_rows if row["code"] != "not-judged"]
    yield from _problems(told, extent)


def skipped_text(check: SkippedCheck) -> str:
    """Return which rules could not be judged, why, and what would change that."""
    fix = f" Fix: {check.fix}." if check.fix else ""
    return f"{', '.join(check.rules)}: {check.reason}.{fix}"


def _finding_details(run: Run) -> Iterator[blocks.Block]:
    """Yield the phases, and of each finding its reason, its advice, its bound and what the bound rests on."""
    phases = phase_table(run)
    if phases:
        yield phases
    findings = findings_of(run)
    if findings:
        yield blocks.Heading("All findings", "bold")
    for finding in findings:
        yield finding_lines(finding)
    yield from of_capture(run)


def traffic_of(run: Run) -> str | None:
    """Return what communication serves, and whose most of the exposed communication is that the figures have."""
    exposed = pc.mean(run.breakdown()[RATIOS["exposed_comm_share"][0]], skip_nulls=False).as_py()
    return traffic_text(run.traffic(), run.header.n_ranks, run.header.n_job_ranks, exposed)


def key_figures(run: Run, names: Sequence[str]) -> list[blocks.Tile]:
    """Return figures of the run; one that is null says why. Those of steps, and of sizes of messages, need these."""
    summary = run.summary().to_pylist()[0]
    breakdown = run.breakdown()
    dtod = pc.mean(breakdown["dtod_ns"], skip_nulls=False).as_py()
    texts = {
        name: value_text(FIGURES[name].unit, summary[name]) for name in names if name in FIGURES
    }
    texts["grad_copy_ns"] = ms_text(pc.mean(breakdown["grad_copy_ns"], skip_nulls=False).as_py())
    if summary["dtod_ns_per_step"] is not None:  # which a capture has none of
        dtod = summary["dtod_ns_per_step"]
        texts["dtod_ns_per_step"] = f"{ms_text(dtod)}, {bytes_text(summary['dtod_bytes_per_step'])}"
    more = {
        "throughput_steps_per_s": [
            (
                "that is "
                f"{ms_text(words.mean_step_ns(summary))}{', of each step the slowest rank' * (run.header.n_ranks > 1)}"
            )
        ],
        "backward_overlap_ratio": words.backward_source(run),
        "exposed_memory_share": [f"all D2D memcpy: {ms_text(dtod)}"],
    }
    tiles = []
    for name in names:
        is_of_steps = not name.endswith(("_share", "_ratio"))
        is_of_messages = name in _SIZES[2:]
        if (run.is_capture and is_of_steps) or (
            is_of_messages and not summary["message_bytes_per_step"]
        ):
            continue
        figure = FIGURES.get(name)
        label, meaning = (figure.short, figure.meaning) if figure else ("gradient copies", "")
        meaning = meaning.replace("step time,", "the capture,") if run.is_capture else meaning
        if name == "step_time_ns":  # of one rank, and of one step, as far as there are more
            parts = zip(
                meaning.split(", "), (run.header.n_ranks, summary["n_summary_steps"]), strict=True
            )
            meaning = ", ".join(part for part, n in parts if n != 1)
        meaning = ", ".join(filter(None, [meaning, *more.get(name, ())]))
        missing = None
        time = ""
        if (name in RATIOS or name in _STEPS) and summary[name] is None:
            missing, meaning = why_null(name, run, summary)
        elif name in RATIOS:
            unseen = words.unseen_idle(run) if name == "idle_share" else ""
            time = f"{'at least ' if unseen else ''}{ms_text(pc.mean(breakdown[RATIOS[name][0]]).as_py())}"
            meaning = f"{time} {meaning}{unseen and f', {unseen}'}"
        value, unit = texts[name].rsplit(" ", 1) if " " in texts[name] else (texts[name], "")
        tiles.append(
            blocks.Tile(
                label, value, unit, meaning, missing, figure.category if figure else None, time
            )
        )
    return tiles


def why_null(figure: str, run: Run, summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return what stands for a figure that is null: a dash where nothing could have been recorded; and why."""
    if figure == "wait_share" and run.header.n_ranks == 1 == (run.header.n_job_ranks or 1):
        return "\N{EN DASH}", "there is only one rank"
    if (
        figure in {"wait_share", "overlap_ratio", "backward_overlap_ratio"}
        and summary["comm_share"] == 0
    ):
        return "\N{EN DASH}", "there is no communication"
    reasons = {
        row["code"]: (row["message"], row["fix"] or "") for row in reversed(run.problem_rows)
    }
    if not summary["n_summary_steps"] and "no-steps" not in reasons:
        figure = "step_time_ns"
    codes = _CAUSES.get(figure, _CAUSES["step_time_ns"])
    text, fix = next((reasons[code] for code in codes if code in reasons), ("see Problems", ""))
    text = shortened(
        text.partition(": ")[0], _LONGEST_REASON
    )  # what is missing; which answers that costs is seen
    option = re.search(r"--[a-z-]+=[\w,]+", fix)
    return _NOT_KNOWN, f"{text} (capture with {option[0]})" if option else text


def without_waits(run: Run) -> str:
    """Return why there is nothing to show of who waits for whom."""
    summary = run.summary().to_pylist()[0]
    if summary["wait_share"] is not None and summary["comm_share"]:
        return "Not known: who is late is counted in each step, and there are no steps."
    missing, why = why_null("wait_share", run, summary)
    return f"{f'Not known: {why}' if missing == _NOT_KNOWN else why.capitalize()}."


def rank_rows(run: Run) -> list[dict[str, Any]]:
    """Return each rank's figures, how long its step or its capture is, and how late the others wait for it per step."""
    n_steps = run.summary()["n_summary_steps"][0].as_py()
    late = {row["rank"]: row["lateness_ns"] for row in run.stragglers().to_pylist() if n_steps}
    walls = (
        {row["rank"]: row["wall_ns"] for row in run.breakdown().to_pylist()}
        if run.is_capture
        else {}
    )
    rows: list[dict[str, Any]] = run.rank_summary().to_pylist()
    for row in rows:
        row[_LENGTH] = walls.get(row["rank"], row["step_time_ns"])
        row[_LATENESS] = None if (ns := late.get(row["rank"])) is None else ns / n_steps
    return rows


class LatestRank(Struct, frozen=True):
    """The rank that the others wait for longest."""

    rank: int
    delay_ns: float  # mean per step


def latest_rank(run: Run) -> LatestRank | None:
    """Return the rank with the largest straggler delay; None for one rank, or where delays are not known."""
    delays = [
        LatestRank(row["rank"], row[_LATENESS])
        for row in rank_rows(run)
        if row[_LATENESS] is not None
    ]
    if len(delays) < 2:  # noqa: PLR2004 - two ranks can wait for each other
        return None
    return max(delays, key=lambda latest: latest.delay_ns)


def rank_table(run: Run, n_shown: int) -> blocks.Table:
    """Return a row per rank, of many ranks only for those that tell most."""
    rows = rank_rows(run)
    known = {name for name in (*_OF_RANKS, _LATENESS) if any(row[name] is not None for row in rows)}
    # As in the verdict: what hides under compute is said where backward was not marked.
    widths = _FROM_WIDTH | {
        "overlap_ratio" if "backward_overlap_ratio" in known else "backward_overlap_ratio": _WIDEST
    }
    fields = [
        Field("rank", lambda row: run.rank_names.name(row["rank"])),
        Field("capture" if run.is_capture else "step\ntime", of(_LENGTH, ms_text)),
        *(
            Field(
                FIGURES[name].short.replace(" ", "\n"),
                of(name, percent_text),
                from_width=widths.get(name, 0),
            )
            for name in _OF_RANKS
            if name != "wait_share" or name in known
        ),
        *(
            [
                Field(
                    _DELAY.heading,
                    of(_LATENESS, ms_text),
                    from_width=_FROM_WIDTH[_LATENESS],
                    hint=_DELAY.meaning,
                )
            ]
            if _LATENESS in known
            else []
        ),
    ]
    shown = set(run.telling_ranks(n_shown))
    unseen = words.unseen_idle(run)
    notes = filter(
        None,
        [
            unseen and f"Idle time is a lower bound, because {unseen}.",
            table_note(len(shown), len(rows)),
        ],
    )
    return table_of(
        "Ranks", [row for row in rows if row["rank"] in shown], fields, " ".join(notes) or None
    )


def rank_time_table(run: Run, n_shown: int) -> blocks.Table:
    """Return a row per rank with the mean times of its steps, of many ranks only for those that tell most."""
    means = run.breakdown().group_by("rank").aggregate([(name, "mean") for name in _RANK_TIMES])
    delays = {row["rank"]: row[_LATENESS] for row in rank_rows(run)}
    rows = [
        {
            **{name: row[f"{name}_mean"] for name in _RANK_TIMES},
            "rank": row["rank"],
            _LATENESS: delays[row["rank"]],
        }
        for row in means.sort_by("rank").to_pylist()
    ]
    headings = {"wall_ns": "capture" if run.is_capture else "step time"}
    headings |= {name: FIGURES[name].short for name in _RANK_TIMES if name in FIGURES}
    headings[_LATENESS] = OTHER_FIGURES["straggler_delay"].short
    known = [name for name in headings if any(row[name] is not None for row in rows)]
    fields = [
        Field("rank", lambda row: run.rank_names.name(row["rank"])),
        *(
            Field(
                _two_lines(headings[name]),
                of(name, ms_text),
                from_width=_TIMES_FROM_WIDTH.get(name, 0),
                unit="ms",
            )
            for name in known
        ),
    ]
    shown = set(run.telling_ranks(n_shown))
    unseen = words.unseen_idle(run)
    notes = filter(
        None,
        [
            unseen and f"Idle time is a lower bound, because {unseen}.",
            table_note(len(shown), len(rows)),
        ],
    )
    caption = "Ranks"
    return table_of(
        caption, [row for row in rows if row["rank"] in shown], fields, " ".join(notes) or None
    )


def _two_lines(heading: str) -> str:
    first, _, rest = heading.partition(" ")
    return f"{first}\n{rest or 'ms'}" + (" ms" if rest else "")


def left_out_note(n_shown: int, n_all: int) -> str:
    """Return which `telling_ranks` are shown; nothing if all are."""
    which = (
        "the ranks with the most straggler delay, the slowest, the most exposed, the fastest, and "
        "some between"
    )
    return "" if n_shown == n_all else f"{n_shown} of {n_all} ranks: {which}."


def table_note(n_shown: int, n_all: int) -> str | None:
    """Return the same below a table; None if it has all ranks."""
    return f"{which} --json has all." if (which := left_out_note(n_shown, n_all)) else None


def phase_table(run: Run) -> blocks.Table | None:
    """Return what each phase takes of a step, in the order of a training loop; None without phases."""
    rows = sorted(run.phase_summary().to_pylist(), key=lambda row: LOOP.index(row["phase"]))
    step_ns = words.rank_step_ns(run)
    medians = words.host_medians_of(run)
    for row in rows:
        of_ranks = medians.get(row["phase"])
        if of_ranks:
            row["host_ns_per_step"] = sum(of_ranks.values()) / len(of_ranks)
    fields = [
        Field("phase", of("phase"), "word"),
        Field(_PHASE_CPU.short, of("host_ns_per_step", ms_text), hint=_PHASE_CPU.definition),
        barred(
            rows,
            _PHASE_GPU.short,
            itemgetter("device_ns_per_step"),
            "compute",
            _PHASE_GPU.definition,
        ),
        Field(
            FIGURES["compute_ns"].short, of("compute_ns_per_step", ms_text), from_width=_FULL_WIDTH
        ),
        Field(FIGURES["comm_ns"].short, of("comm_ns_per_step", ms_text), from_width=_FULL_WIDTH),
        barred(
            rows,
            FIGURES["exposed_comm_ns"].heading,
            itemgetter("exposed_comm_ns_per_step"),
            "exposed",
            "communication of the phase while no compute runs",
        ),
        barred(
            rows,
            _IDLE_BEFORE.short,
            itemgetter("idle_ns_per_step"),
            "idle",
            _IDLE_BEFORE.definition,
        ),
    ]
    fields = [replace(field, decimals_of="time" * (field.heading != "phase")) for field in fields]
    in_host = sum(row["host_ns_per_step"] or 0 for row in rows)
    note = words.host_note(run, in_host) or ""
    of_data = (row["device_ns_per_step"] for row in rows if row["phase"] == "data")
    has_copies = any(of_data) or bool(pc.sum(run.breakdown()["n_blocking_copies"]).as_py())
    ends = words.NEXT_COPIES if has_copies else words.NEXT_IDLE
    # No step begins with backward: of that phase alone, nothing follows from where steps end.
    is_first_shown = any(row["phase"] != "backward" for row in rows)
    notes = [ends] * (bool(step_ns) and is_first_shown) + [note] * bool(note)
    if medians:
        notes.append(words.host_median_note(medians))
    return (
        table_of("Phases, mean per step", rows, fields, " ".join(notes) or None) if rows else None
    )


def host_blocks(host_steps: pa.Table, n_shown: int) -> Iterator[blocks.Block]:
    """Yield a row per process, of many those with the slowest median steps, and what is to be said of them."""
    figures = host_figures(host_steps)
    if not figures:
        return
    slowest = sorted(range(len(figures)), key=lambda at: (-(figures[at].median_ns or 0), at))[
        :n_shown
    ]
    shown = [figures[at] for at in sorted(slowest)]
    # One name is enough where there is little room: the rank where every process has one, else the
    # report.
    of_rank, of_report = (
        (0, _WIDE) if all(figure.rank is not None for figure in figures) else (_WIDE, 0)
    )
    fields = [
        Field(
            "rank", lambda one: absent if one.rank is None else str(one.rank), from_width=of_rank
        ),
        Field("report", words.report_name, "name", from_width=of_report),
        Field(
            "steps",
            lambda one: str(one.n_steps),
            hint="step ranges that were closed",
            from_width=_FULL_WIDTH,
        ),
        barred(
            shown,
            "median\nstep",
            lambda one: one.median_ns,
            "accent",
            "from the start to the end of the NVTX range, on the host",
            write=_short_ms,
        ),
        Field("slowest\nstep", lambda one: _short_ms(one.slowest_ns), from_width=_FULL_WIDTH),
        Field(
            "at\nstep",
            lambda one: absent if one.slowest_step is None else str(one.slowest_step),
            hint="number of the slowest step",
            from_width=_WIDE,
        ),
        *(
            Field(
                name,
                partial(lambda name, one: _short_ms(one.phase_ns[name]), name),
                hint="median on the host, inside the step",
                from_width=0 if name == "backward" else _FULL_WIDTH,
            )
            for name in LOOP
        ),
        Field("other", lambda one: _short_ms(one.other_ns), hint="median of the rest of the step"),
    ]
    yield table_of(
        "Host steps", shown, fields, "Times in ms. Phases and the rest (other) are medians."
    )
    yield from map(blocks.Sentence, words.host_notes(figures, n_shown))


def _short_ms(ns: float | None) -> str:
    return words.host_ms(ns).removesuffix(" ms")


def change_blocks(
    findings: Sequence[Finding], extent: Extent, step_ns: float | None
) -> Iterator[blocks.Block]:
    """Yield what to change first, each with the most that it could bring."""
    shown = findings[: extent.n_findings]
    if not shown:
        return
    is_replayed = any(one.expected for one in shown)

    def what(one: Finding) -> str:
        return f"{one.id}: {one.action if extent.is_brief else f'{one.title}. {one.advice}'}"

    fields = [
        Field("at most", attrgetter("share_text")),
        Field("in ms", attrgetter("saving"), from_width=_ROOMY, unit="ms"),
        Field("estimated", attrgetter("likely")),
        Field(
            "in ms",
            lambda one: one.expected[1] if one.expected else absent,
            from_width=_ROOMY,
            unit="ms",
        ),
        Field("recommendation", what, "prose"),
    ]
    if not is_replayed:
        del fields[2:4]
    n_more = len(findings) - len(shown)
    parts = filter(None, [f"{n_more} more" if n_more else "", "why" if extent.is_brief else ""])
    hint = f" ({more}: --findings all)" if (more := ", and ".join(parts)) else ""
    notes = [f"shares are of the mean step time, {ms_text(step_ns)}"] if step_ns else []
    bounds = [] if extent.is_brief or extent.is_comment else shown
    notes += [f"the upper bound of {ids} holds{text}" for text, ids in _alike(bounds, "assumed")]
    notes += [f"upper bound of {ids}: {text}" for text, ids in _alike(bounds, "parts")]
    reasons = [f"no estimate for {ids}: {text}" for text, ids in _alike(shown, "refused")]
    notes += ["estimates are simulated"] if is_replayed else reasons[:1]
    notes += [
        f"the estimate for {ids} holds if {text}" for text, ids in _alike(shown, "replay_assumes")
    ]
    notes += [
        f"{one.id}: with perfect overlap, which is a limit and not a setting"
        for one in shown
        if one.is_limit
    ]
    notes += (
        ["within noise: the range of the estimate includes the captured step time"]
        if not all(one.is_clear or one.is_limit for one in shown)
        else []
    )
    if len(shown) > 1:
        notes += (order := order_notes(shown))[:: len(order) - 1 if extent.is_comment else 1]
    note = ". ".join(f"{text[:1].upper()}{text[1:]}" for text in notes)
    little = "Little to gain. " if is_little(findings) else ""
    yield blocks.Heading(f"{little}Recommendations, and what they save per step{hint}", "bold")
    yield table_of(
        "Findings", shown, fields, f"{note[:1].upper()}{note[1:]}." if note else None, is_close=True
    )


def _alike(findings: Sequence[Finding], name: str) -> list[tuple[str, str]]:
    texts = [getattr(finding, name) for finding in findings]
    ids = {
        text: [finding.id for finding in findings if getattr(finding, name) == text]
        for text in texts
        if text
    }
    return [(text, ", ".join(names)) for text, names in ids.items()]


def _problems(problems: Sequence[Mapping[str, Any]], extent: Extent) -> Iterator[blocks.Block]:
    rows = words.troubles(problems)
    if rows:
        yield blocks.Heading("Warnings and notes", "bold")
        yield blocks.Troubles(rows, extent.n_problems, is_close=True)
