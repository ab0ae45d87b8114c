"""A run as blocks: the first screen, a row per rank, what to change, and below it the details."""

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from nsyspipe.analysis.kernels import TRAFFIC
from nsyspipe.analysis.summary import HostFigures, host_figures
from nsyspipe.errors import shortened
from nsyspipe.model.figures import FIGURES, OTHER_FIGURES, PLACES, RATIOS
from nsyspipe.model.options import DEFAULT_FINDINGS
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.typed_tables import (
    HostStepsTable,
)
from nsyspipe.report import blocks, first_screen, words
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import Field, barred, of, table_of
from nsyspipe.report.costs import cost_tables, is_more_than_data, traffic_text
from nsyspipe.report.findings import capture_notes, finding_lines, findings_of
from nsyspipe.report.host_lines import line_table
from nsyspipe.report.ladder import ladder_blocks
from nsyspipe.report.memory import memory_texts
from nsyspipe.report.overview import (
    Checks,
    Recommendations,
    checks_of,
    do_ranks_differ,
    has_straggler,
    only_straggler,
    rank_delays,
    recommendations_of,
    step_time_of,
)
from nsyspipe.report.peers import peer_blocks
from nsyspipe.report.subject import title_of
from nsyspipe.report.units import (
    absent,
    bytes_text,
    ms_text,
    percent_text,
    upper_first,
    value_text,
)
from nsyspipe.run.run import Run

LOOP = ("data", "forward", "backward", "optimizer")  # as in a training loop
_STEPS = ("step_time_ns", "throughput_steps_per_s")
_MESSAGES = ("message_bytes_per_step", "busbw_bytes_per_s")
_SIZES = ("collectives_per_step", "dtod_ns_per_step", *_MESSAGES)
# What steps work on. It is shown only if somebody said it.
WORK = ("tokens_per_s", "samples_per_s", "flops_per_s", "mfu")
SHARES = (
    "comm_share",
    "exposed_comm_share",
    "overlap_ratio",
    "backward_overlap_ratio",
    "wait_share",
    "idle_share",
)
_MAX_REASON_CHARS = 90
# Tables show all ranks of a run with at most this many.
_MAX_RANKS_SHOWN_IN_FULL = 16
_N_RANKS_OF_LARGER_RUNS = 8
# Terminal widths from which on columns that can be missed are shown.
_MEDIUM_WIDTH = 60
_STANDARD_WIDTH = 79
_WIDE_WIDTH = 92
_WIDEST_WIDTH = 99
_RANK_TIMES = (
    "wall_ns",
    "compute_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "idle_ns",
    "comm_ns",
    "wait_ns",
)
_TIMES_FROM_WIDTH = {"comm_ns": _STANDARD_WIDTH, "exposed_memory_ns": _MEDIUM_WIDTH}
_STEP_NAME = FIGURES["step_time_ns"].short
_MEANING_OF_TILES = (
    "Times are means over ranks and steps, except the median step time. Percentages are shares of "
    "the step. Those of overlap are shares of total communication. Exposed copies are copies and "
    "memsets that run while neither compute nor communication runs."
)
_ALLOCS_ARE_NOT_SYNC = (
    "This run has the finding alloc-in-step. So calls that allocate or free GPU memory count "
    "there, and not in sync-bound."
)
_WAITS_AND_DELAYS = (
    "wait adds up all collectives of a step. delay caused counts only the longest delay of each "
    "step, for the rank that caused it. The table has the mean of both over the steps used."
)
_PHASE_CPU = OTHER_FIGURES["phase_host"]
_PHASE_GPU = OTHER_FIGURES["phase_device"]
_IDLE_BEFORE = OTHER_FIGURES["idle_before"]
# The length of a step, or of a capture without training steps.
_LENGTH_COLUMN = "length_ns"
# The straggler delay.
_DELAY_COLUMN = "lateness_ns_per_step"
_DELAY_FIGURE = OTHER_FIGURES["straggler_delay"]
# The main questions (exposed, hidden, who waits for whom) keep their columns longest.
_FROM_WIDTH = {
    _DELAY_COLUMN: 44,
    "wait_share": 52,
    "comm_share": 60,
    "compute_share": 70,
    "idle_share": _STANDARD_WIDTH,
    "exposed_memory_share": _WIDE_WIDTH,
}
# Codes of problems that explain why a figure is null, the clearest explanation first.
_NO_STEPS = ("no-steps", "no-common-step", "no-gpu-activity", "captured-without-gpu")
_NO_COMM = ("comm-in-graphs", "no-comm-kernels", "no-kernels", "no-kernel-names")
_NO_BACKWARD = (
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
)
_NO_WAITS = (
    "comm-between-steps",
    "different-runs",
    "unmatched-collectives",
    "no-common-clock",
    *_NO_COMM,
    "ranks-missing",
    "ranks-not-captured",
    "ranks-not-read",
)
_NO_COPIES = ("comm-in-graphs", "graphs-as-a-whole", "no-memcpy", "no-memset", "no-kernels")
_NO_IDLE = ("no-kernels", "no-memcpy", "no-memset")
_NO_IDLE_CAUSES = (*_NO_IDLE, "device-clock-unknown", "no-launches")
_CAUSES = {
    "step_time_ns": _NO_STEPS,
    "comm_share": _NO_COMM,
    "exposed_comm_share": _NO_COMM,
    "overlap_ratio": _NO_COMM,
    "backward_overlap_ratio": _NO_BACKWARD,
    "wait_share": _NO_WAITS,
    "idle_share": _NO_IDLE,
    "idle_causes": _NO_IDLE_CAUSES,
    "exposed_memory_share": _NO_COPIES,
}
_NOT_KNOWN = "not known"


class Extent(Struct, frozen=True):
    """How much of a run is shown."""

    # Names of the figures that are shown as tiles.
    figures: Sequence[str]
    # The most ranks that a table has.
    n_ranks: int
    # None for all findings, and 0 for none.
    n_findings: int | None
    # None for all problems.
    n_problems: int | None = None
    # Findings only say what to change, and phases are left out.
    is_brief: bool = False
    # A few dozen lines, for a pull request.
    is_comment: bool = False
    # Also everything below the first screen.
    is_verbose: bool = False
    # How many kernels, collectives and communicators are listed. None for no such tables.
    n_top: int | None = None
    # The reports as the user named them, for the next command.
    reports: str | None = None


COMMENT = Extent(
    figures=(*_STEPS, *SHARES, "grad_copy_ns"),
    n_ranks=_N_RANKS_OF_LARGER_RUNS,
    n_findings=8,
    n_problems=8,
    is_comment=True,
)


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
        How many recommendations to show. None for all, with the details of each.
    n_top
        How many kernels, collectives and communicators to list. None for no lists.
    is_verbose
        Whether everything is shown that is known of the run.
    reports
        The reports as they were named on the command line, which the next command names again. If
        None, the next command has the word ``REPORTS``.
    """
    is_large = run.header.n_ranks > _MAX_RANKS_SHOWN_IN_FULL
    max_ranks = _N_RANKS_OF_LARGER_RUNS if is_large else _MAX_RANKS_SHOWN_IN_FULL
    has_all_findings = is_verbose or n_findings is None
    extent = Extent(
        figures=(*_STEPS, *WORK, *SHARES, *_SIZES),
        n_ranks=max_ranks,
        n_findings=None if has_all_findings else n_findings,
        is_brief=not has_all_findings,
        n_top=n_top,
        is_verbose=is_verbose,
        reports=reports,
    )
    return as_text(run_blocks(run, extent), console)


def run_blocks(run: Run, extent: Extent) -> Iterator[blocks.Block]:
    """Yield the blocks of a run: the first screen, then details or a closing sentence.

    A verbose output has all details. Any other output has a closing sentence, and the findings in
    detail unless it is brief or a comment. The last block has the next commands.
    """
    step = step_time_of(run)
    recommendations = recommendations_of(run)
    checks = checks_of(run)
    yield title_of(run)
    headline = first_screen.headline_of(run, step)
    yield blocks.Sentence(headline, "bold")
    yield from first_screen.trust_blocks(run)
    yield from first_screen.step_blocks(run, step)
    yield from _rank_blocks(run, extent)
    yield from host_blocks(run.host_steps(), extent.n_ranks)
    # None stands for all findings.
    has_recommendations = extent.n_findings != 0
    if has_recommendations:
        yield from _recommendation_blocks(run, extent, recommendations, checks)
    yield from _cost_blocks(run, extent)
    if extent.is_verbose:
        yield from _details(run, extent, checks)
    else:
        is_short = extent.is_brief or extent.is_comment
        if not is_short:
            yield from _finding_details(run)
        yield _closing(run, extent, recommendations, checks)
    if extent.is_comment:
        yield blocks.Sentence(_origin_text(run))
    yield first_screen.next_commands(
        recommendations, step, extent.reports, is_comment=extent.is_comment
    )


def _rank_blocks(run: Run, extent: Extent) -> Iterator[blocks.Block]:
    """Yield a table of ranks if they differ, and which rank is late.

    A verbose output always has the table. It does not say here which rank is late, because its
    findings do.
    """
    if extent.is_verbose or do_ranks_differ(run):
        yield rank_time_table(run, extent.n_ranks)
    if extent.is_verbose and _has_waits_and_delays(run):
        yield blocks.Sentence(_WAITS_AND_DELAYS, is_close=False)
    if has_straggler(run) and not extent.is_verbose:
        yield from map(blocks.Sentence, _straggler_texts(run))


def _has_waits_and_delays(run: Run) -> bool:
    """Tell whether the table of ranks has both wait times and the delays that ranks caused."""
    rows = _rank_time_rows(run)
    return _is_known("wait_ns", rows) and _is_known(_DELAY_COLUMN, rows)


def _cost_blocks(run: Run, extent: Extent) -> Iterator[blocks.Block]:
    """Yield the tables of ``--top``: what costs most, and the lines of Python in idle time.

    Without ``--top``, a comment for a pull request has the table of communicators, if communication
    serves more than gradients. No other output has a table then.
    """
    if extent.n_top:
        yield from cost_tables(run, extent.n_top).values()
        lines = line_table(run, extent.n_top)
        if lines is not None:
            yield lines
    elif extent.is_comment and is_more_than_data(run.traffic()):
        traffic = traffic_of(run)
        if traffic:
            yield blocks.Sentence(traffic)
        # The table has as many rows as a table of ranks.
        max_rows = extent.n_ranks
        tables = cost_tables(run, max_rows, TRAFFIC)
        yield from tables.values()


def _closing(
    run: Run, extent: Extent, recommendations: Recommendations, checks: Checks
) -> blocks.Sentence:
    """Return the sentence that ends the screen."""
    max_alternatives = _max_alternatives(extent)
    text = first_screen.closing_text(run, recommendations, checks, max_alternatives)
    return blocks.Sentence(text, is_close=False)


def _max_alternatives(extent: Extent) -> int | None:
    """Return how many alternatives to the first recommendation are shown. None for all."""
    if extent.n_findings is None:
        return None
    n_after_first = extent.n_findings - 1
    return max(n_after_first, 0)


def _origin_text(run: Run) -> str:
    """Return the ID of the run of a comment, and the versions that a sidecar recorded."""
    versions = words.captured_versions_text(run.header.capture)
    captured_with = f", captured with {versions}" if versions else ""
    return f"Run {run.header.run_id}{captured_with}."


def _straggler_texts(run: Run) -> Iterator[str]:
    """Yield how late the late rank is, and in which phases.

    Unless exactly one rank is late, yield how the phases of ranks differ.
    """
    straggler = only_straggler(run)
    if straggler is not None:
        yield from first_screen.straggler_texts(run, straggler)
        return
    phases = words.phases_text(run)
    if phases:
        yield phases


def _recommendation_blocks(
    run: Run, extent: Extent, recommendations: Recommendations, checks: Checks
) -> Iterator[blocks.Block]:
    """Yield what to change first, and a table of the alternatives with notes.

    If there is nothing to change, the first block says so.
    """
    nothing_to_change = first_screen.nothing_text(run, recommendations, checks)
    if nothing_to_change is not None:
        yield blocks.Sentence(nothing_to_change, "bold", is_close=False)
    (summary,) = run.summary().to_pylist()
    step_ns = words.mean_step_ns(summary)
    if step_ns is not None:
        yield from first_screen.change_blocks(recommendations, step_ns)
    yield from first_screen.alternatives_blocks(recommendations, _max_alternatives(extent))


def _details(run: Run, extent: Extent, checks: Checks) -> Iterator[blocks.Block]:
    """Yield everything below the first screen: all figures, versions, checks and problems."""
    (summary,) = run.summary().to_pylist()
    yield blocks.Heading("Details", "bold")
    yield from _origin_blocks(run, summary)
    if summary["n_summary_steps"] or run.is_capture:
        yield from _figure_blocks(run, extent)
    yield from _finding_details(run)
    yield from _check_blocks(run, checks)
    # Rules that were not judged are among the checks already.
    problems = [row for row in run.problem_rows if row["code"] != "not-judged"]
    yield from _problems(problems, extent)


def _origin_blocks(run: Run, summary: Mapping[str, Any]) -> Iterator[blocks.Block]:
    """Yield what a run ran on, the versions, the interconnect, and what communication serves."""
    # The title of the run has its name.
    _name, *subject = words.subject_parts(run, summary)
    subject += words.hosts_text(run)
    yield blocks.Facts(subject, "Run")
    versions = words.captured_versions_text(run.header.capture)
    if versions:
        yield blocks.Facts((versions,), "Captured with")
    for text in (words.link_text(run), traffic_of(run)):
        if text:
            yield blocks.Sentence(text)
    yield from peer_blocks(run)


def _figure_blocks(run: Run, extent: Extent) -> Iterator[blocks.Block]:
    """Yield the figures as tiles, and sentences on idle time, streams, phases, counters, memory."""
    tiles = key_figures(run, extent.figures)
    if tiles:
        named_tiles = [_with_name_of_median(tile) for tile in tiles]
        yield blocks.Tiles(named_tiles)
        yield blocks.Sentence(_MEANING_OF_TILES)
    yield from ladder_blocks(run)
    steps = run.breakdown()
    idle = words.idle_text(steps, run.idle_calls(), words.unseen_idle(run))
    texts = [idle, words.stream_text(run), words.phases_text(run), *words.counter_texts(run)]
    texts += memory_texts(run)
    for text in texts:
        if text:
            yield blocks.Sentence(upper_first(text))


def _with_name_of_median(tile: blocks.Tile) -> blocks.Tile:
    """Return a tile. The tile of the step time is named as a median.

    The first screen has the mean step time, and this tile has the median.
    """
    if tile.name != _STEP_NAME:
        return tile
    return replace(tile, name="median step time")


def _check_blocks(run: Run, checks: Checks) -> Iterator[blocks.Block]:
    """Yield which checks found nothing, and which were skipped and why."""
    if checks.passed:
        yield blocks.Heading("Checks that found nothing", "bold")
        yield blocks.Sentence(", ".join(checks.passed))
    finding_ids = {row["id"] for row in run.finding_rows}
    if "sync-bound" in checks.passed and "alloc-in-step" in finding_ids:
        yield blocks.Sentence(_ALLOCS_ARE_NOT_SYNC)
    if checks.skipped:
        yield blocks.Heading("Skipped checks", "bold")
        skipped = [skipped_text(check) for check in checks.skipped]
        yield blocks.Items(skipped)


def skipped_text(check: SkippedCheck) -> str:
    """Return which rules could not be judged, why, and how to change that."""
    rules = ", ".join(check.rules)
    fix = f" Fix: {check.fix}." if check.fix else ""
    return f"{rules}: {check.reason}.{fix}"


def _finding_details(run: Run) -> Iterator[blocks.Block]:
    """Yield the phases, then each finding with its details, then what distorted the capture."""
    phases = phase_table(run)
    if phases:
        yield phases
    findings = findings_of(run)
    if findings:
        yield blocks.Heading("All findings", "bold")
    for finding in findings:
        yield finding_lines(finding)
    yield from capture_notes(run)


def traffic_of(run: Run) -> str | None:
    """Return what communication serves, and which kind of it has most of the exposed time.

    None if there is nothing to say about it.
    """
    exposed_column, _whole_column = RATIOS["exposed_comm_share"]
    exposed_ns = _mean_of_steps(run, exposed_column)
    n_ranks = run.header.n_ranks
    return traffic_text(run.traffic(), n_ranks, run.header.n_job_ranks, exposed_ns)


def _mean_of_steps(run: Run, column: str) -> float | None:
    """Return the mean of a column over ranks and steps; None if a value is not known."""
    values = run.breakdown().column(column)
    mean: float | None = pc.mean(values, skip_nulls=False).as_py()
    return mean


def key_figures(run: Run, names: Sequence[str]) -> list[blocks.Tile]:
    """Return figures of the run as tiles. The tile of a figure that is null says why.

    Left out are figures per step of a capture without steps, what steps work on if nobody said it,
    and figures of messages whose sizes were not recorded.
    """
    (summary,) = run.summary().to_pylist()
    names_of_tiles = [name for name in names if _has_tile(run, name, summary)]
    return [_tile(run, name, summary) for name in names_of_tiles]


def _has_tile(run: Run, name: str, summary: Mapping[str, Any]) -> bool:
    """Tell whether a figure has a tile, even if the figure is null. See `key_figures`."""
    is_per_step = not name.endswith(("_share", "_ratio"))
    if run.is_capture and is_per_step:
        return False
    if name in WORK:
        # Null unless the user said what steps work on.
        return summary[name] is not None
    if name in _MESSAGES:
        # Null unless the sizes of messages were recorded.
        return bool(summary["message_bytes_per_step"])
    return True


def _tile(run: Run, name: str, summary: Mapping[str, Any]) -> blocks.Tile:
    """Return the tile of a figure: its value with what it means, or why it is null.

    The meaning of a ratio begins with a time: the numerator of the ratio, as a mean per step.
    """
    figure = FIGURES.get(name)
    # The time of gradient copies is the only name that is not among the figures.
    label = figure.short if figure else "gradient copies"
    category = figure.category if figure else None
    text = _figure_text(run, name, summary)
    value, unit = _value_and_unit(text)
    # Only for these figures is it known which problems make them null.
    can_explain_null = name in RATIOS or name in _STEPS
    if can_explain_null and summary[name] is None:
        absence = why_null(name, run, summary)
        reason = absence.reason
        return blocks.Tile(
            label, value, unit, meaning=reason, missing=absence.text, category=category
        )
    meaning = _meaning(run, name, summary)
    # The numerator of the MFU is ideal compute, which is no part of the time that passed.
    if name not in RATIOS or name == "mfu":
        return blocks.Tile(label, value, unit, meaning=meaning, category=category)
    mean_time = _mean_time_text(run, name)
    unseen = words.unseen_idle(run) if name == "idle_share" else ""
    time = f"at least {mean_time}" if unseen else mean_time
    why_at_least = f", {unseen}" if unseen else ""
    timed_meaning = f"{time} {meaning}{why_at_least}"
    return blocks.Tile(label, value, unit, meaning=timed_meaning, category=category, time=time)


def _value_and_unit(text: str) -> tuple[str, str]:
    """Return the figure and the unit in a text; a text of one word has no unit."""
    if " " not in text:
        return text, ""
    value, unit = text.rsplit(" ", 1)
    return value, unit


def _mean_time_text(run: Run, ratio: str) -> str:
    """Return the mean time per step that is the numerator of a ratio."""
    time_column, _whole_column = RATIOS[ratio]
    mean_ns = pc.mean(run.breakdown().column(time_column))
    return ms_text(mean_ns.as_py())


def _figure_text(run: Run, name: str, summary: Mapping[str, Any]) -> str:
    """Return the value of a figure with its unit."""
    if name == "grad_copy_ns":
        return ms_text(_mean_of_steps(run, name))
    value = summary[name]
    if name == "dtod_ns_per_step" and value is not None:
        size = bytes_text(summary["dtod_bytes_per_step"])
        return f"{ms_text(value)}, {size}"
    return value_text(FIGURES[name].unit, value)


def _meaning(run: Run, name: str, summary: Mapping[str, Any]) -> str:
    """Return what a figure means in this run, in a few words."""
    figure = FIGURES.get(name)
    general_meaning = figure.meaning if figure else ""
    if name == "step_time_ns":
        meaning = _meaning_of_step_time(run, general_meaning, summary)
    elif run.is_capture:
        meaning = general_meaning.replace("step time,", "the capture,")
    else:
        meaning = general_meaning
    parts = [meaning, *_remarks(run, name, summary)]
    return ", ".join(filter(None, parts))


def _meaning_of_step_time(run: Run, general_meaning: str, summary: Mapping[str, Any]) -> str:
    """Return how the times of ranks and steps are combined into one step time.

    The general meaning is ``slowest rank, median over steps``. A single rank has no slowest rank,
    and a single step has no median.
    """
    of_ranks, of_steps = general_meaning.split(", ")
    meanings = []
    if run.header.n_ranks != 1:
        meanings.append(of_ranks)
    if summary["n_summary_steps"] != 1:
        meanings.append(of_steps)
    return ", ".join(meanings)


def _remarks(run: Run, name: str, summary: Mapping[str, Any]) -> list[str]:
    """Return what else there is to know of a figure."""
    match name:
        case "throughput_steps_per_s":
            has_several_ranks = run.header.n_ranks > 1
            whose = ", of each step the slowest rank" if has_several_ranks else ""
            mean = ms_text(words.mean_step_ns(summary))
            return [f"that is {mean}{whose}"]
        case "backward_overlap_ratio":
            return words.backward_source(run)
        case "busbw_bytes_per_s":
            return [words.counted_text(run)]
        case "exposed_memory_share":
            copies_ns = summary["dtod_ns_per_step"]
            if copies_ns is None:
                # A capture without steps has no figures per step.
                copies_ns = _mean_of_steps(run, "dtod_ns")
            return [f"all D2D memcpy: {ms_text(copies_ns)}"]
        case _:
            return []


class Absence(NamedTuple):
    """What is shown in place of a figure that is null, and why it is null."""

    text: str  # a dash where nothing could have been recorded
    reason: str


def why_null(figure: str, run: Run, summary: Mapping[str, Any]) -> Absence:
    """Return what is shown in place of a figure that is null, and why the figure is null."""
    # A job of unknown size counts as one rank.
    n_job_ranks = run.header.n_job_ranks or 1
    is_only_rank = run.header.n_ranks == 1 and n_job_ranks == 1
    if figure == "wait_share" and is_only_rank:
        return Absence("\N{EN DASH}", "there is only one rank")
    needs_comm = figure in {"wait_share", "overlap_ratio", "backward_overlap_ratio"}
    if needs_comm and summary["comm_share"] == 0:
        return Absence("\N{EN DASH}", "there is no communication")
    return Absence(_NOT_KNOWN, _reason_of_problems(figure, run, summary))


def _reason_of_problems(figure: str, run: Run, summary: Mapping[str, Any]) -> str:
    """Return why a figure is null by the problems of the run, with the option that records it.

    The reason is the message of the problem that explains the figure best, see `_CAUSES`.
    """
    first_problem_of_code: dict[str, Mapping[str, Any]] = {}
    for row in run.problem_rows:
        first_problem_of_code.setdefault(row["code"], row)
    # If no step can be used, the reason for that explains all figures. Only a run that has no steps
    # at all can still have figures of its whole capture.
    are_steps_unusable = not summary["n_summary_steps"] and "no-steps" not in first_problem_of_code
    explained_figure = "step_time_ns" if are_steps_unusable else figure
    codes_clearest_first = _CAUSES.get(explained_figure, _NO_STEPS)
    codes_of_run = [code for code in codes_clearest_first if code in first_problem_of_code]
    if not codes_of_run:
        return "see Problems"
    problem = first_problem_of_code[codes_of_run[0]]
    # Before the colon a message says what is missing, and after it what is unknown therefore.
    missing_text, *_ = problem["message"].split(": ")
    missing = shortened(missing_text, _MAX_REASON_CHARS)
    option = re.search(r"--[a-z-]+=[\w,]+", problem["fix"] or "")
    if option is None:
        return missing
    return f"{missing} (capture with {option[0]})"


def without_waits(run: Run) -> str:
    """Return why it cannot be shown which ranks wait for which other ranks."""
    (summary,) = run.summary().to_pylist()
    is_wait_known = summary["wait_share"] is not None
    has_comm = bool(summary["comm_share"])
    if is_wait_known and has_comm:
        # Only the steps can be missing.
        return "Not known: who is late is counted in each step, and there are no steps."
    absence = why_null("wait_share", run, summary)
    if absence.text == _NOT_KNOWN:
        return f"Not known: {absence.reason}."
    return f"{absence.reason.capitalize()}."


def rank_rows(run: Run) -> list[dict[str, Any]]:
    """Return the figures of each rank, with two more: the length of its step, and its delay.

    The delay is the straggler delay. Without training steps, the length is that of the capture.
    """
    delay_ns_of_rank = _delay_ns_of_rank(run)
    capture_ns_of_rank = {}
    if run.is_capture:
        captures = run.breakdown().to_pylist()
        capture_ns_of_rank = {row["rank"]: row["wall_ns"] for row in captures}
    rows: list[dict[str, Any]] = [{**row} for row in run.rank_summary().to_pylist()]
    for row in rows:
        rank = row["rank"]
        row[_LENGTH_COLUMN] = capture_ns_of_rank.get(rank, row["step_time_ns"])
        row[_DELAY_COLUMN] = delay_ns_of_rank.get(rank)
    return rows


def _delay_ns_of_rank(run: Run) -> dict[int, float]:
    """Return the straggler delay per step, ns, of each rank for which it is known."""
    return {delay.rank: delay.delay_ns for delay in rank_delays(run)}


def rank_table(run: Run, n_shown: int) -> blocks.Table:
    """Return a row per rank with its shares of a step, for at most `n_shown` ranks."""
    rows = rank_rows(run)
    length_heading = "capture" if run.is_capture else "step\ntime"
    length = Field(length_heading, of(_LENGTH_COLUMN, ms_text))
    fields = [_rank_field(run), length]
    for name in PLACES["ranks"]:
        if _is_shown_share(name, rows):
            from_width = _share_from_width(name, rows)
            fields.append(_share_field(name, from_width))
    if _is_known(_DELAY_COLUMN, rows):
        from_width = _FROM_WIDTH[_DELAY_COLUMN]
        delay = Field(
            _DELAY_FIGURE.heading,
            of(_DELAY_COLUMN, ms_text),
            from_width=from_width,
            hint=_DELAY_FIGURE.meaning,
        )
        fields.append(delay)
    return _table_of_ranks(run, rows, fields, n_shown)


def _rank_field(run: Run) -> Field:
    """Return the column of the ranks."""

    def rank_cell(row: Mapping[str, Any]) -> str:
        return run.rank_names.name(row["rank"])

    return Field("rank", rank_cell)


def _is_known(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a figure is known for any rank."""
    values = [row[name] for row in rows]
    return any(value is not None for value in values)


def _is_shown_share(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a share has a column. Only wait time has none if it is not known."""
    return name != "wait_share" or _is_known(name, rows)


def _share_from_width(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the terminal width from which on a share is shown.

    Only the widest terminals show both overlaps. All others show the overlap with backward. If that
    is not known for any rank, they show the overlap with all compute.
    """
    has_backward = _is_known("backward_overlap_ratio", rows)
    less_important_overlap = "overlap_ratio" if has_backward else "backward_overlap_ratio"
    if name == less_important_overlap:
        return _WIDEST_WIDTH
    return _FROM_WIDTH.get(name, 0)


def _share_field(name: str, from_width: int) -> Field:
    label = FIGURES[name].short
    heading = label.replace(" ", "\n")
    return Field(heading, of(name, percent_text), from_width=from_width)


def rank_time_table(run: Run, n_shown: int) -> blocks.Table:
    """Return a row per rank with the mean times of its steps, for at most `n_shown` ranks."""
    rows = _rank_time_rows(run)
    heading_of_column = {"wall_ns": "capture" if run.is_capture else "step time"}
    for name in _RANK_TIMES:
        # `wall_ns` is not a figure.
        if name in FIGURES:
            heading_of_column[name] = FIGURES[name].short
    heading_of_column[_DELAY_COLUMN] = _DELAY_FIGURE.short
    fields = [_rank_field(run)]
    for name, heading in heading_of_column.items():
        if _is_known(name, rows):
            fields.append(_time_field(name, heading))
    return _table_of_ranks(run, rows, fields, n_shown)


def _rank_time_rows(run: Run) -> list[dict[str, Any]]:
    """Return the mean times of the steps of each rank, and its straggler delay."""
    mean_of_each = [(name, "mean") for name in _RANK_TIMES]
    means = run.breakdown().group_by("rank").aggregate(mean_of_each)
    names = [name.removesuffix("_mean") for name in means.column_names]
    sorted_means = means.rename_columns(names).sort_by("rank")
    rows: list[dict[str, Any]] = sorted_means.to_pylist()
    delay_ns_of_rank = _delay_ns_of_rank(run)
    for row in rows:
        rank = row["rank"]
        row[_DELAY_COLUMN] = delay_ns_of_rank.get(rank)
    return rows


def _time_field(name: str, heading: str) -> Field:
    from_width = _TIMES_FROM_WIDTH.get(name, 0)
    return Field(_two_lines(heading), of(name, ms_text), from_width=from_width, unit="ms")


def _table_of_ranks(
    run: Run, rows: Sequence[Mapping[str, Any]], fields: Sequence[Field], n_shown: int
) -> blocks.Table:
    """Return a table of the ranks that differ most, with notes about what it leaves out."""
    shown_ranks = set(run.telling_ranks(n_shown))
    shown = [row for row in rows if row["rank"] in shown_ranks]
    notes = []
    unseen = words.unseen_idle(run)
    if unseen:
        notes.append(f"Idle time is a lower bound, because {unseen}.")
    left_out = table_note(len(shown_ranks), len(rows))
    if left_out:
        notes.append(left_out)
    text = " ".join(notes)
    return table_of("Ranks", shown, fields, text or None)


def _two_lines(heading: str) -> str:
    """Return a heading in two lines: its first word, and the rest with the unit."""
    first_word, _, rest = heading.partition(" ")
    return f"{first_word}\n{rest} ms" if rest else f"{first_word}\nms"


def left_out_note(n_shown: int, n_all: int) -> str:
    """Return which ranks are shown (`Run.telling_ranks`); empty if all are."""
    if n_shown == n_all:
        return ""
    which = (
        "the ranks with the most straggler delay, the slowest, the most exposed, the fastest, and "
        "some between"
    )
    return f"{n_shown} of {n_all} ranks: {which}."


def table_note(n_shown: int, n_all: int) -> str | None:
    """Return which ranks a table shows, and where the rest is; None if it has all ranks."""
    note = left_out_note(n_shown, n_all)
    return f"{note} --json has all." if note else None


def phase_table(run: Run) -> blocks.Table | None:
    """Return what each phase takes of a step, in the order of a training loop.

    None without phases.
    """
    host_medians = words.host_medians_of(run)
    rows = _phase_rows(run, host_medians)
    if not rows:
        return None
    phase_field, *time_fields = _phase_fields(rows)
    fields = [phase_field, *map(_as_time, time_fields)]
    notes = " ".join(_phase_notes(run, rows, host_medians))
    return table_of("Phases, mean per step", rows, fields, notes or None)


def _as_time(field: Field) -> Field:
    """Return a column whose decimals are those of all other columns of times."""
    return replace(field, decimals_of="time")


def _phase_rows(run: Run, host_medians: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return the figures of each phase, in the order of a training loop.

    `host_medians` has the median CPU time of each rank, ns, by phase and rank. The CPU time of a
    phase in `host_medians` is the mean of its medians.
    """
    rows = run.phase_summary().to_pylist()
    rows.sort(key=lambda row: LOOP.index(row["phase"]))
    for row in rows:
        median_of_rank = host_medians.get(row["phase"])
        if median_of_rank:
            total_ns = sum(median_of_rank.values())
            row["host_ns_per_step"] = total_ns / len(median_of_rank)
    return cast("list[dict[str, Any]]", rows)


def _phase_fields(rows: Sequence[Mapping[str, Any]]) -> list[Field]:
    """Return the columns of the table of phases: the name first, and then only times."""
    phase = Field("phase", of("phase"), kind="word")
    host_text = of("host_ns_per_step", ms_text)
    host = Field(_PHASE_CPU.short, host_text, hint=_PHASE_CPU.definition)
    device = barred(
        rows,
        heading=_PHASE_GPU.short,
        value=itemgetter("device_ns_per_step"),
        category="compute",
        hint=_PHASE_GPU.definition,
    )
    compute_text = of("compute_ns_per_step", ms_text)
    compute_label = FIGURES["compute_ns"].short
    compute = Field(compute_label, compute_text, from_width=_STANDARD_WIDTH)
    comm_text = of("comm_ns_per_step", ms_text)
    comm_label = FIGURES["comm_ns"].short
    comm = Field(comm_label, comm_text, from_width=_STANDARD_WIDTH)
    exposed = barred(
        rows,
        heading=FIGURES["exposed_comm_ns"].heading,
        value=itemgetter("exposed_comm_ns_per_step"),
        category="exposed",
        hint="communication of the phase while no compute runs",
    )
    idle = barred(
        rows,
        heading=_IDLE_BEFORE.short,
        value=itemgetter("idle_ns_per_step"),
        category="idle",
        hint=_IDLE_BEFORE.definition,
    )
    return [phase, host, device, compute, comm, exposed, idle]


def _phase_notes(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    host_medians: Mapping[str, Mapping[int, float]],
) -> Iterator[str]:
    """Yield notes: where a step ends, why CPU times may exceed a step, and which are medians.

    `rows` are those of the table of phases. `host_medians` has the median CPU time of each rank, by
    phase and rank, for the phases whose CPU time is shown as a median.
    """
    has_steps = bool(words.rank_step_ns(run))
    # If backward is the only phase, where a step ends changes nothing in the table.
    has_other_phases = any(row["phase"] != "backward" for row in rows)
    if has_steps and has_other_phases:
        has_copies = _has_data_copies(run, rows)
        yield words.WHERE_STEPS_END_WITH_COPIES if has_copies else words.WHERE_STEPS_END
    elif rows:
        yield words.IDLE_BEFORE
    host_ns = sum(row["host_ns_per_step"] or 0 for row in rows)
    host_note = words.host_note(run, host_ns)
    if host_note:
        yield host_note
    if host_medians:
        yield words.host_median_note(host_medians)


def _has_data_copies(run: Run, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether batches are copied to the GPU, in the data phase or by blocking copies."""
    data_rows = [row for row in rows if row["phase"] == "data"]
    if any(row["device_ns_per_step"] for row in data_rows):
        return True
    n_blocking_copies = pc.sum(run.breakdown()["n_blocking_copies"]).as_py()
    return bool(n_blocking_copies)


def host_blocks(host_steps: HostStepsTable, n_shown: int) -> Iterator[blocks.Block]:
    """Yield a table of the steps of processes on the CPU, and notes. Nothing without processes.

    The table has a row per process. If there are more than `n_shown` processes, the table has those
    with the slowest median steps.
    """
    processes = host_figures(host_steps)
    if not processes:
        return
    shown = _slowest(processes, n_shown)
    note = "Times in ms. Phases and the rest (other) are medians."
    fields = _host_fields(processes, shown)
    yield table_of("Host steps", shown, fields, note)
    for sentence in words.host_notes(processes, n_shown):
        yield blocks.Sentence(sentence)


def _slowest(processes: Sequence[HostFigures], n_shown: int) -> list[HostFigures]:
    """Return the processes with the slowest median steps, in the order of all."""

    def median_ns(index: int) -> float:
        return processes[index].median_ns or 0

    indices = range(len(processes))
    slowest_first = sorted(indices, key=median_ns, reverse=True)
    slowest_in_order_of_all = sorted(slowest_first[:n_shown])
    return [processes[index] for index in slowest_in_order_of_all]


def _host_fields(processes: Sequence[HostFigures], shown: Sequence[HostFigures]) -> list[Field]:
    """Return the columns of the table of steps on the CPU.

    `processes` are all processes, and `shown` are those that the table has.
    """
    # A narrow terminal names a process in one way: by its rank if every process has a rank, or else
    # by its report.
    has_ranks = all(process.rank is not None for process in processes)
    rank_from_width = 0 if has_ranks else _WIDE_WIDTH
    report_from_width = _WIDE_WIDTH if has_ranks else 0
    n_steps = Field(
        "steps", _n_steps_cell, hint="step ranges that were closed", from_width=_STANDARD_WIDTH
    )
    median = barred(
        shown,
        heading="median\nstep",
        value=lambda process: process.median_ns,
        category="accent",
        hint="from the start to the end of the NVTX range, on the host",
        write=_short_ms,
    )
    slowest_step = Field(
        "at\nstep",
        _slowest_step_cell,
        hint="number of the slowest step",
        from_width=_WIDE_WIDTH,
    )
    fields = [
        Field("rank", _rank_cell, from_width=rank_from_width),
        Field("report", words.report_name, kind="name", from_width=report_from_width),
        n_steps,
        median,
        Field("slowest\nstep", _slowest_cell, from_width=_STANDARD_WIDTH),
        slowest_step,
    ]
    fields += [_host_phase_field(phase) for phase in LOOP]
    fields.append(Field("other", _rest_cell, hint="median of the rest of the step"))
    return fields


def _rank_cell(process: HostFigures) -> str:
    if process.rank is None:
        return absent
    return str(process.rank)


def _n_steps_cell(process: HostFigures) -> str:
    return str(process.n_steps)


def _slowest_cell(process: HostFigures) -> str:
    return _short_ms(process.slowest_ns)


def _rest_cell(process: HostFigures) -> str:
    return _short_ms(process.other_ns)


def _slowest_step_cell(process: HostFigures) -> str:
    if process.slowest_step is None:
        return absent
    return str(process.slowest_step)


def _host_phase_field(phase: str) -> Field:
    """Return the column of the median time of a phase."""
    # Ranks wait for each other in backward, so narrow terminals show this phase too.
    from_width = 0 if phase == "backward" else _STANDARD_WIDTH
    hint = "median on the host, inside the step"

    def cell(process: HostFigures) -> str:
        return _short_ms(process.phase_ns[phase])

    return Field(phase, cell, hint=hint, from_width=from_width)


def _short_ms(ns: float | None) -> str:
    return words.host_ms(ns).removesuffix(" ms")


def _problems(problems: Sequence[Mapping[str, Any]], extent: Extent) -> Iterator[blocks.Block]:
    """Yield the problems below a heading. Nothing if there are none."""
    rows = words.troubles(problems)
    if rows:
        yield blocks.Heading("Warnings and notes", "bold")
        yield blocks.Troubles(rows, extent.n_problems, is_close=True)
