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
from nsyspipe.model.figures import FIGURES, PLACES, RATIOS
from nsyspipe.model.options import DEFAULT_FINDINGS
from nsyspipe.report import blocks, words
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import Field, barred, of, table_of
from nsyspipe.report.costs import cost_tables, is_more_than_data, traffic_text
from nsyspipe.report.findings import Finding, findings_of, is_little, of_capture, order_notes
from nsyspipe.report.units import absent, bytes_text, ms_text, percent_text, value_text
from nsyspipe.report.verdict import verdict
from nsyspipe.run.run import Run

LOOP = ("data", "forward", "backward", "optimizer")  # as in a training loop
_STEPS = ("step_time_ns", "throughput_steps_per_s")
_SIZES = ("collectives_per_step", "dtod_ns_per_step", "message_bytes_per_step", "busbw_bytes_per_s")
SHARES = ("comm_share", "exposed_comm_share", "overlap_ratio", "backward_overlap_ratio", "wait_share", "idle_share")
_LONGEST_REASON, _MANY_RANKS = 90, 16
_ROOMY, _FULL_WIDTH, _WIDE, _WIDEST = 60, 79, 92, 99
_LENGTH, _LATENESS = "length_ns", "lateness_ns_per_step"
# How wide a terminal has room for a figure of ranks: what is asked for (exposed, hidden, who waits for whom) goes last.
_FROM_WIDTH = {
    _LATENESS: 44, "wait_share": 52, "comm_share": 60, "compute_share": 70, "idle_share": _FULL_WIDTH,
    "exposed_memory_share": _WIDE,
}  # fmt: skip
# Which problems explain that a figure is null, the most telling first.
_NO_COMM = ("comm-in-graphs", "no-comm-kernels", "no-kernels", "no-kernel-names")
_CAUSES = {
    "step_time_ns": ("no-steps", "no-common-step", "no-gpu-activity", "captured-without-gpu"),
    **dict.fromkeys(("comm_share", "exposed_comm_share", "overlap_ratio"), _NO_COMM),
    "backward_overlap_ratio": (
        "backward-in-graphs", "comm-in-graphs", "no-comm-kernels", "no-backward", "comm-between-steps", "no-steps", "no-nvtx", "no-nvtx-ranges", "no-launches", "no-kernels",
    ),
    "wait_share": (
        "comm-between-steps", "different-runs", "unmatched-collectives", "no-common-clock", *_NO_COMM,
        "ranks-missing", "ranks-not-captured", "ranks-not-read",
    ),
    "idle_share": ("no-kernels", "no-memcpy", "no-memset"),
    "idle_causes": ("no-kernels", "no-memcpy", "no-memset", "device-clock-unknown", "no-launches"),
    "exposed_memory_share": ("comm-in-graphs", "graphs-as-a-whole", "no-memcpy", "no-memset", "no-kernels"),
}  # fmt: skip
_NOT_KNOWN = "not known"
_OF_RANKS = PLACES["ranks"].split()  # the parts of the step come first and sum to it


class Extent(Struct, frozen=True):
    """How much of a run is told: which figures, of how many ranks, and how many findings and problems; None for all."""

    figures: Sequence[str]
    n_ranks: int
    n_findings: int | None
    n_problems: int | None = None
    is_brief: bool = False  # of findings what to change, in a few words, and no phases
    is_comment: bool = False  # a few dozen lines, without problems that are only worth knowing, and no phases
    n_top: int | None = None  # of kernels, collectives and communicators the costliest; None for none


COMMENT = Extent((*_STEPS, *SHARES, "grad_copy_ns"), 8, 8, 8, is_comment=True)


def summary_text(
    run: Run, console: Console, *, n_findings: int | None = DEFAULT_FINDINGS, n_top: int | None = None
) -> str:
    """Return a run's summary as text for a console, at most `as_text.MAX_WIDTH` columns wide."""
    n_ranks = _MANY_RANKS if run.header.n_ranks <= _MANY_RANKS else COMMENT.n_ranks  # of more those that tell most
    extent = Extent((*_STEPS, *SHARES, *_SIZES), n_ranks, n_findings, is_brief=n_findings is not None, n_top=n_top)
    return as_text(run_blocks(run, extent), console)


def run_blocks(run: Run, extent: Extent) -> Iterator[blocks.Block]:
    """Yield what a run says, the verdict first."""
    summary = run.summary().to_pylist()[0]
    said = verdict(run)
    yield from (
        blocks.Sentence(line, "bold") for line in ([said.replace("\n", " ")] if extent.is_comment else said.split("\n"))
    )
    yield blocks.Facts(words.subject_parts(run, summary), "Run")
    captured = words.capture_rows(run.header.capture)
    if versions := [f"{name} {value}" for name, value in captured if name not in {"command", "CUDA"}]:
        yield blocks.Facts((", ".join(versions),), "Captured with")
    of_links = ((words.link_text(run), "dim"), (traffic_of(run), ""))
    yield from (blocks.Sentence(text, style) for text, style in of_links if text)
    if summary["n_summary_steps"] or run.is_capture:
        if tiles := key_figures(run, extent.figures):
            yield blocks.Tiles(tiles)
        idle = words.idle_text(run.breakdown(), run.idle_calls(), words.unseen_idle(run))
        if texts := [f"{text[0].upper()}{text[1:]}" for text in (words.shares_text(run), idle) if text]:
            yield blocks.Sentence(". ".join(texts))
        yield rank_table(run, extent.n_ranks)
        yield from (blocks.Sentence(text) for text in [words.phases_text(run)] if text)
    yield from host_blocks(run.host_steps(), extent.n_ranks)
    is_whole = not (extent.is_brief or extent.is_comment)
    if is_whole and (phases := phase_table(run)):
        yield phases
    if extent.n_top:
        yield from cost_tables(run, extent.n_top).values()
    elif extent.is_comment and is_more_than_data(run.traffic()):
        yield from cost_tables(run, extent.n_ranks, TRAFFIC).values()
    if extent.n_findings != 0:
        yield from change_blocks(findings_of(run), extent, words.mean_step_ns(summary))
        yield from () if extent.is_brief else of_capture(run)
    yield from _problems(run.problem_rows, extent)
    if extent.is_comment:
        yield blocks.Sentence(f"Run {run.header.run_id}. What the figures mean: nsyspipe schema.")


def traffic_of(run: Run) -> str | None:
    """Return what communication serves, and whose most of the exposed communication is that the figures have."""
    exposed = pc.mean(run.breakdown()[RATIOS["exposed_comm_share"][0]], skip_nulls=False).as_py()
    return traffic_text(run.traffic(), run.header.n_ranks, run.header.n_job_ranks, exposed)


def key_figures(run: Run, names: Sequence[str]) -> list[blocks.Tile]:
    """Return figures of the run; one that is null says why. Those of steps, and of sizes of messages, need these."""
    summary, breakdown = run.summary().to_pylist()[0], run.breakdown()
    dtod = pc.mean(breakdown["dtod_ns"], skip_nulls=False).as_py()
    texts = {name: value_text(FIGURES[name].unit, summary[name]) for name in names if name in FIGURES}
    texts["grad_copy_ns"] = ms_text(pc.mean(breakdown["grad_copy_ns"], skip_nulls=False).as_py())
    if summary["dtod_ns_per_step"] is not None:  # which a capture has none of
        dtod = summary["dtod_ns_per_step"]
        texts["dtod_ns_per_step"] = f"{ms_text(dtod)}, {bytes_text(summary['dtod_bytes_per_step'])}"
    more = {
        "throughput_steps_per_s": [
            f"that is {ms_text(words.mean_step_ns(summary))}{', of each step the slowest rank' * (run.header.n_ranks > 1)}"
        ],
        "backward_overlap_ratio": words.backward_source(run),
        "exposed_memory_share": [f"DtoD in all: {ms_text(dtod)}"],
    }
    tiles = []
    for name in names:
        is_of_steps, is_of_messages = not name.endswith(("_share", "_ratio")), name in _SIZES[2:]
        if (run.is_capture and is_of_steps) or (is_of_messages and not summary["message_bytes_per_step"]):
            continue
        figure = FIGURES.get(name)
        label, meaning = (figure.short, figure.meaning) if figure else ("gradient copies", "")
        meaning = meaning.replace("step time,", "the capture,") if run.is_capture else meaning
        if name == "step_time_ns":  # of one rank, and of one step, as far as there are more
            parts = zip(meaning.split(", "), (run.header.n_ranks, summary["n_summary_steps"]), strict=True)
            meaning = ", ".join(part for part, n in parts if n != 1)
        meaning = "; ".join(filter(None, [meaning, *more.get(name, ())]))
        missing, time = None, ""
        if (name in RATIOS or name in _STEPS) and summary[name] is None:
            missing, meaning = why_null(name, run, summary)
        elif name in RATIOS:
            unseen = words.unseen_idle(run) if name == "idle_share" else ""
            time = f"{'at least ' if unseen else ''}{ms_text(pc.mean(breakdown[RATIOS[name][0]]).as_py())}"
            meaning = f"{time} {meaning}{unseen and f'; {unseen}'}"
        value, unit = texts[name].rsplit(" ", 1) if " " in texts[name] else (texts[name], "")
        tiles.append(blocks.Tile(label, value, unit, meaning, missing, figure.category if figure else None, time))
    return tiles


def why_null(figure: str, run: Run, summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return what stands for a figure that is null: a dash where nothing could have been recorded; and why."""
    if figure == "wait_share" and run.header.n_ranks == 1 == (run.header.n_job_ranks or 1):
        return "\N{EN DASH}", "one rank: there is nobody to wait for"
    if figure in {"wait_share", "overlap_ratio", "backward_overlap_ratio"} and summary["comm_share"] == 0:
        return "\N{EN DASH}", "there is no communication"
    reasons = {row["code"]: (row["message"], row["fix"] or "") for row in reversed(run.problem_rows)}
    if not summary["n_summary_steps"] and "no-steps" not in reasons:
        figure = "step_time_ns"
    codes = _CAUSES.get(figure, _CAUSES["step_time_ns"])
    text, fix = next((reasons[code] for code in codes if code in reasons), ("see Problems", ""))
    text = shortened(text.partition(": ")[0], _LONGEST_REASON)  # what is missing; which answers that costs is seen
    option = re.search(r"--[a-z-]+=[\w,]+", fix)
    return _NOT_KNOWN, f"{text}; capture with {option[0]}" if option else text


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
    walls = {row["rank"]: row["wall_ns"] for row in run.breakdown().to_pylist()} if run.is_capture else {}
    rows: list[dict[str, Any]] = run.rank_summary().to_pylist()
    for row in rows:
        row[_LENGTH] = walls.get(row["rank"], row["step_time_ns"])
        row[_LATENESS] = None if (ns := late.get(row["rank"])) is None else ns / n_steps
    return rows


def rank_table(run: Run, n_shown: int) -> blocks.Table:
    """Return a row per rank, of many ranks only for those that tell most."""
    rows = rank_rows(run)
    known = {name for name in (*_OF_RANKS, _LATENESS) if any(row[name] is not None for row in rows)}
    # As in the verdict: what hides under compute is said where backward was not marked.
    widths = _FROM_WIDTH | {"overlap_ratio" if "backward_overlap_ratio" in known else "backward_overlap_ratio": _WIDEST}
    fields = [
        Field("rank", lambda row: run.rank_names.name(row["rank"])),
        Field("capture" if run.is_capture else "step\ntime", of(_LENGTH, ms_text)),
        *(Field(FIGURES[name].short.replace(" ", "\n"), of(name, percent_text), from_width=widths.get(name, 0)) for name in _OF_RANKS if name != "wait_share" or name in known),
        *([Field("mean\ndelay\nby it", of(_LATENESS, ms_text), from_width=_FROM_WIDTH[_LATENESS], hint="mean of the longest delay of each step, for the rank that made it: 0 where another did")] if _LATENESS in known else []),
    ]  # fmt: skip
    shown, unseen = set(run.telling_ranks(n_shown)), words.unseen_idle(run)
    notes = filter(None, [unseen and f"Idle is at least that: {unseen}.", table_note(len(shown), len(rows))])
    return table_of("Ranks", [row for row in rows if row["rank"] in shown], fields, " ".join(notes) or None)


def left_out_note(n_shown: int, n_all: int) -> str:
    """Return which `telling_ranks` are shown; nothing if all are."""
    which = "the most waited for, the slowest, the most exposed, the fastest, and some between"
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
        if of_ranks := medians.get(row["phase"]):
            row["host_ns_per_step"] = sum(of_ranks.values()) / len(of_ranks)
    fields = [
        Field("phase", of("phase"), "word"),
        Field("host", of("host_ns_per_step", ms_text), hint="the host is in the phase's ranges"),
        barred(rows, "device", itemgetter("device_ns_per_step"), "compute", "operations launched in the phase run"),
        Field("compute", of("compute_ns_per_step", ms_text), from_width=_FULL_WIDTH),
        Field("communication", of("comm_ns_per_step", ms_text), from_width=_FULL_WIDTH),
        barred(rows, "exposed\ncomm", itemgetter("exposed_comm_ns_per_step"), "exposed", "communication of the phase beside no compute of any"),
        barred(rows, "idle before", itemgetter("idle_ns_per_step"), "idle", "idle time that an operation of this phase ends"),
    ]  # fmt: skip
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
    return table_of("Phases, mean per step", rows, fields, " ".join(notes) or None) if rows else None


def host_blocks(host_steps: pa.Table, n_shown: int) -> Iterator[blocks.Block]:
    """Yield a row per process, of many those with the slowest median steps, and what is to be said of them."""
    if not (figures := host_figures(host_steps)):
        return
    slowest = sorted(range(len(figures)), key=lambda at: (-(figures[at].median_ns or 0), at))[:n_shown]
    shown = [figures[at] for at in sorted(slowest)]
    # One name is enough where there is little room: the rank where every process has one, else the report.
    of_rank, of_report = (0, _WIDE) if all(one.rank is not None for one in figures) else (_WIDE, 0)
    fields = [
        Field("rank", lambda one: absent if one.rank is None else str(one.rank), from_width=of_rank),
        Field("report", words.report_name, "name", from_width=of_report),
        Field("steps", lambda one: str(one.n_steps), hint="step ranges that were closed", from_width=_FULL_WIDTH),
        barred(shown, "median\nstep", lambda one: one.median_ns, "accent", "from the start to the end of the NVTX range, on the host", write=_short_ms),
        Field("slowest\nstep", lambda one: _short_ms(one.slowest_ns), from_width=_FULL_WIDTH),
        Field("at\nstep", lambda one: absent if one.slowest_step is None else str(one.slowest_step), hint="number of the slowest step", from_width=_WIDE),
        *(Field(name, partial(lambda name, one: _short_ms(one.phase_ns[name]), name), hint="median on the host, inside the step", from_width=0 if name == "backward" else _FULL_WIDTH) for name in LOOP),
        Field("other", lambda one: _short_ms(one.other_ns), hint="median of the rest of the step"),
    ]  # fmt: skip
    yield table_of("Host steps", shown, fields, "Times in ms; of phases and the rest (other) the median.")
    yield from map(blocks.Sentence, words.host_notes(figures, n_shown))


def _short_ms(ns: float | None) -> str:
    return words.host_ms(ns).removesuffix(" ms")


def change_blocks(findings: Sequence[Finding], extent: Extent, step_ns: float | None) -> Iterator[blocks.Block]:
    """Yield what to change first, each with the most that it could bring."""
    if not (shown := findings[: extent.n_findings]):
        return
    is_replayed = any(one.expected for one in shown)

    def what(one: Finding) -> str:
        return f"{one.id}: {one.action if extent.is_brief else f'{one.title}. {one.advice}'}"

    fields = [
        Field("up to", attrgetter("share_text")),
        Field("in ms", attrgetter("saving"), from_width=_ROOMY, unit="ms"),
        Field("likely", attrgetter("likely")),
        Field("in ms", lambda one: one.expected[1] if one.expected else absent, from_width=_ROOMY, unit="ms"),
        Field("what to change", what, "prose"),
    ]
    if not is_replayed:
        del fields[2:4]
    n_more = len(findings) - len(shown)
    parts = filter(None, [f"{n_more} more" if n_more else "", "why" if extent.is_brief else ""])
    hint = f" ({more}: --findings all)" if (more := ", and ".join(parts)) else ""
    notes = [f"of the mean step time, {ms_text(step_ns)}"] if step_ns else []
    bounds = [] if extent.is_brief or extent.is_comment else shown
    notes += [f"up to, of {ids}{text}" for text, ids in _alike(bounds, "assumed")]
    notes += [f"up to, of {ids}: {text}" for text, ids in _alike(bounds, "parts")]
    reasons = [f"no likely gain of {ids}: {text}" for text, ids in _alike(shown, "refused")]
    notes += ["likely: by a replay"] if is_replayed else reasons[:1]
    notes += [f"likely, of {ids}, if {text}" for text, ids in _alike(shown, "replay_assumes")]
    notes += [f"hidden, of {one.id}: were all of it hidden, which no setting does" for one in shown if one.is_limit]
    notes += [f"{words.NOT_CLEAR}: within its error"] if not all(one.is_clear or one.is_limit for one in shown) else []
    if len(shown) > 1:
        notes += (order := order_notes(shown))[:: len(order) - 1 if extent.is_comment else 1]
    note = "; ".join(notes)
    little = "Little to gain. " if is_little(findings) else ""
    yield blocks.Heading(f"{little}What to change first, and what it gives back per step{hint}", "bold")
    yield table_of("Findings", shown, fields, f"{note[:1].upper()}{note[1:]}." if note else None, is_close=True)


def _alike(findings: Sequence[Finding], name: str) -> list[tuple[str, str]]:
    texts = [getattr(one, name) for one in findings]
    ids = {text: [one.id for one in findings if getattr(one, name) == text] for text in texts if text}
    return [(text, ", ".join(names)) for text, names in ids.items()]


def _problems(problems: Sequence[Mapping[str, Any]], extent: Extent) -> Iterator[blocks.Block]:
    rows = words.troubles(problems, 4 if extent.is_comment else 12)
    grave = [row for row in rows if row[0] != "info"]
    if rows and not extent.is_comment:
        yield blocks.Troubles(rows)
    elif grave:
        yield blocks.Heading("Problems")
        yield blocks.Troubles(grave, extent.n_problems, is_close=True)
    if extent.is_comment and (n_infos := len(rows) - len(grave)):
        what = f"{n_infos} of severity info" if grave else f"No errors or warnings; {n_infos} of severity info"
        yield blocks.Sentence(f"{what} left out: nsyspipe analyze shows all.")
