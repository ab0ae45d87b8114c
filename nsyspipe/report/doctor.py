"""Words of ``nsyspipe doctor``.

They are about what a machine has, what reports can answer, or which runs a run store has.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

import pyarrow.compute as pc
from msgspec import structs

from nsyspipe.model.figures import METRICS
from nsyspipe.model.names import counted, few, grouped, listed
from nsyspipe.model.typed_tables import RunsColumn
from nsyspipe.nsys.machine import Check
from nsyspipe.report.blocks import (
    Block,
    Cell,
    Facts,
    Field,
    Heading,
    Sentence,
    Table,
    Troubles,
    Word,
    table_of,
)
from nsyspipe.report.formats import Format, dumps
from nsyspipe.report.html.page import blocks_page
from nsyspipe.report.markdown import as_markdown
from nsyspipe.report.units import bytes_text, count_text, ms_text
from nsyspipe.report.words import Trouble, troubles
from nsyspipe.run.doctor import Capability, Examination
from nsyspipe.run.questions import NO, PARTLY, YES
from nsyspipe.run.run import job_ranks
from nsyspipe.store.index import StoredRuns, Unreadable
from nsyspipe.version import __version__

_STEP_TIME = METRICS["step_time"]
_CAPTURED: Final = "captured_at_utc"
# Of the rows of a store.
_RUN_COLUMNS: list[RunsColumn] = [
    "run_id",
    "label",
    _CAPTURED,
    "n_ranks",
    "n_processes",
    "world_size",
    "n_summary_steps",
    "step_time_ns",
]
_HEAD = {"schema_version": 1, "tool_version": __version__}
# Columns of characters. A narrower terminal gets fewer columns of a table.
_MIN_WIDTH_FOR_ALL_COLUMNS = 79
_MAX_WIDTH_OF_NEEDED_FOR = 36
_MAX_WIDTH_OF_MISSING_NAMES = 28
# More names are counted, unless the output is verbose.
_MAX_NAMED_RUNS = 4
_MAX_NAMED_REPORTS = 3
# The values of the option in a fix.
_TRACE_VALUES = re.compile(r"(?<=--trace=)[a-z][a-z,-]*[a-z]")

_ACRONYMS = {"cpu", "cuda", "gpu", "nccl", "nvtx", "os"}
# Names of checks and questions that are shown by other words.
_DISPLAY_NAMES = {
    "one_clock": "clock alignment of ranks",
    "device_clock": "clocks of CPU and GPU",
    "link": "interconnect",
    "message_bytes": "message sizes",
    "trace_values": "--trace values",
    "python_lines": "Python lines",
    "python_lock": "Python lock",
}
# The launchers can capture if these are missing, with a restriction.
_RESTRICTIONS_ON_CAPTURE = {
    "cuda_driver": " only on its CPUs (--cpu)",
    "torch": " with a Python that has torch (PYTHON=...)",
}
# Tasks of a machine, in words of the first line.
_TASKS = {
    "analyze": "analyze reports",
    "convert": "convert .nsys-rep files",
    "capture": "capture runs",
}


class _Ability(NamedTuple):
    """Whether a machine can do some tasks, in words."""

    start: str
    # Before the last task.
    joint: str


_CAN = _Ability("This machine can", "and")
_UNCLEAR = _Ability("It is unclear whether this machine can", "or")
_CANNOT = _Ability("This machine cannot", "or")


def machine_blocks(checks: Sequence[Check], *, is_verbose: bool = False) -> Iterator[Block]:
    """Yield what a machine has, and what it can do with that."""
    yield Sentence(_machine_verdict(checks), "bold")
    rows: list[list[Cell]] = []
    for check in checks:
        n_bytes = check.found_bytes
        size = "" if n_bytes is None else f"{bytes_text(n_bytes)} "
        found_text = f"{size}{check.found}"
        name = _display_name(check.name)
        rows.append([Word(check.status), name, found_text, check.needed_for])
    yield _table("What this machine has", rows, has_all_columns=is_verbose)
    fixes = [(_display_name(check.name), check.fix) for check in checks if check.fix]
    yield from _fix_list(fixes)


def reports_blocks(examination: Examination, *, is_verbose: bool = False) -> Iterator[Block]:
    """Yield what reports can answer, what only Nsight Systems shows, and how to add the rest.

    A verbose output names all reports and runs, and leaves out no column.
    """
    capabilities = examination.capabilities
    used = [capability for capability in capabilities if capability.is_used]
    unused = [capability for capability in capabilities if not capability.is_used]
    names = [_display_name(capability.name) for capability in capabilities]
    # The names have the same width in both tables.
    name_width = max(map(len, names))
    yield Sentence(_reports_verdict(examination), "bold")
    yield Facts(_facts_of_reports(examination, is_verbose=is_verbose), "Reports")
    yield _table(
        "What these reports can answer", _rows(used), name_width, has_all_columns=is_verbose
    )
    yield Heading("Only for Nsight Systems (nsyspipe does not use it):", "dim")
    unused_rows = _rows(unused)
    yield _table(
        "Shown by Nsight Systems",
        unused_rows,
        name_width,
        is_close=True,
        has_all_columns=is_verbose,
    )
    max_names = len(examination.reports) if is_verbose else _MAX_NAMED_REPORTS
    yield from _fix_list(_fixes(capabilities, max_names))
    if examination.problems:
        yield Troubles(troubles(_problem_rows(examination)))


def _rows(capabilities: Iterable[Capability]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for capability in capabilities:
        status = Word(capability.status)
        name = _display_name(capability.name)
        rows.append([status, name, capability.found, capability.answers])
    return rows


def _facts_of_reports(examination: Examination, *, is_verbose: bool) -> list[str]:
    """Return the names of the runs or reports, and the versions of nsys and of the exports."""
    facts = []
    n_runs = len(examination.runs)
    if n_runs > 1:
        max_names = n_runs if is_verbose else _MAX_NAMED_RUNS
        names = few(examination.runs, max_names)
        facts.append(f"{n_runs} runs: {names}")
    else:
        facts.append(_names_of_reports(examination, is_verbose=is_verbose))
    if examination.nsys_versions:
        versions = ", ".join(examination.nsys_versions)
        facts.append(f"exported by nsys {versions}")
    if examination.schema_versions:
        schemas = ", ".join(examination.schema_versions)
        facts.append(f"export schema {schemas}")
    return facts


def _fixes(capabilities: Iterable[Capability], max_names: int) -> Iterator[tuple[str, str]]:
    """Yield the name of what is missing, and how to add it.

    If only some reports lack it, these reports are named, at most `max_names` of them.
    """
    lacking = [capability for capability in capabilities if capability.fix]
    for capability in lacking:
        name = _display_name(capability.name)
        remarks = []
        if not capability.is_used:
            remarks.append("only for Nsight Systems")
        do_some_have_it = capability.n_with > 0
        if do_some_have_it:
            remarks.append(f"for {few(capability.lacking, max_names)}")
        remark = f" ({', '.join(remarks)})" if remarks else ""
        yield name, f"{_fix_with_joint_trace(capability, lacking)}{remark}"


def _fix_with_joint_trace(capability: Capability, capabilities: Iterable[Capability]) -> str:
    """Return the fix of a capability, with one ``--trace`` value for all fixes of its reports.

    With several values, a user who follows two fixes would undo one with the other. `capabilities`
    are all that reports of the run lack. Those that nsyspipe does not use add no values to the
    fixes of others.
    """
    fix = capability.fix or ""
    events: dict[str, None] = {}
    for capability_of_run in (capability, *capabilities):
        is_wanted = capability_of_run.is_used or not capability.is_used
        if is_wanted and not set(capability_of_run.lacking).isdisjoint(capability.lacking):
            for values in _TRACE_VALUES.findall(capability_of_run.fix or ""):
                events |= dict.fromkeys(values.split(","))
    return _TRACE_VALUES.sub(",".join(events), fix)


def _problem_rows(examination: Examination) -> Iterator[dict[str, Any]]:
    """Yield the problems. The fix of a problem is None if a capability has the same fix."""
    listed_fixes = {capability.fix for capability in examination.capabilities}
    for problem in examination.problems:
        fix = None if problem.fix in listed_fixes else problem.fix
        yield structs.asdict(problem) | {"fix": fix}


def _names_of_reports(examination: Examination, *, is_verbose: bool) -> str:
    """Return the names of reports: all, or the first and the last."""
    reports = examination.reports
    if is_verbose:
        return listed(reports)
    has_others_between = len(reports) > 2  # noqa: PLR2004 - the first and the last
    joint = " ... " if has_others_between else " and "
    # One report is both the first and the last, and is named once.
    first_and_last = dict.fromkeys((reports[0], reports[-1]))
    return joint.join(first_and_last)


def store_blocks(stored: StoredRuns, store: str, *, is_verbose: bool = False) -> Iterator[Block]:
    """Yield the runs of a store by the time of their capture, and those that cannot be read."""
    runs = _run_rows(stored)
    n_labels = len({run["label"] for run in runs})
    labels = f" of {n_labels} labels" if n_labels > 1 else ""
    n_runs = counted(len(runs), "saved run")
    size = f"The run store has {n_runs}{labels}."
    naming = f"Name a run as {store}:ID, or as {store}:LABEL for the latest run of a label."
    yield Sentence(f"{size} {naming}", "bold")
    yield table_of("Saved runs", runs, _columns_of_runs(is_verbose=is_verbose))
    if stored.unreadable:
        yield Troubles([*map(_unreadable_trouble, stored.unreadable)])


def _columns_of_runs(*, is_verbose: bool) -> list[Field]:
    """Return the columns of the table of saved runs."""
    min_width = 0 if is_verbose else _MIN_WIDTH_FOR_ALL_COLUMNS
    run_id = Field("ID", itemgetter("run_id"), "word")
    label = Field("label", itemgetter("label"), "text")
    captured = Field("captured, UTC", _captured_text, "text", from_width=min_width)
    ranks = Field("ranks", _ranks_text)
    steps = Field("steps", _n_steps_text)
    step_time = Field(_STEP_TIME.short, _step_time_text)
    return [run_id, label, captured, ranks, steps, step_time]


def _n_steps_text(run: Mapping[str, Any]) -> str:
    return count_text(run["n_summary_steps"])


def _step_time_text(run: Mapping[str, Any]) -> str:
    return ms_text(run[_STEP_TIME.column])


def _captured_text(run: Mapping[str, Any]) -> str:
    """Return the time of a capture, to the minute."""
    captured_at = run[_CAPTURED] or ""
    minute = captured_at[:16]
    return str(minute.replace("T", " "))


def _unreadable_trouble(run: Unreadable) -> Trouble:
    message = f"{run.run_id}: {run.table} {run.message}"
    return Trouble(severity="error", message=message, place="", fix=run.fix)


def _ranks_text(run: Mapping[str, Any]) -> str:
    """Return how many ranks a saved run has, and of how many if some are missing."""
    n_ranks = run["n_ranks"]
    n_processes = run["n_processes"]
    n_job_ranks = job_ranks(n_ranks, n_processes, run["world_size"]) or 0
    missing = f" of {n_job_ranks}" if n_job_ranks > n_ranks else ""
    return f"{count_text(n_ranks)}{missing}"


def store_document(stored: StoredRuns) -> dict[str, Any]:
    """Return the runs of a store as plain Python values."""
    problems = [*map(structs.asdict, stored.unreadable)]
    return _HEAD | {"runs": _run_rows(stored), "problems": problems}


def _run_rows(stored: StoredRuns) -> list[dict[str, Any]]:
    """Return the rows of the runs of a store, with the time of a capture as text."""
    runs = stored.runs.select(_RUN_COLUMNS)
    times = pc.strftime(runs.column(_CAPTURED), "%Y-%m-%dT%H:%M:%SZ")
    place = _RUN_COLUMNS.index(_CAPTURED)
    runs = runs.set_column(place, _CAPTURED, times)
    return cast("list[dict[str, Any]]", runs.to_pylist())


def machine_document(checks: Iterable[Check]) -> dict[str, Any]:
    """Return the document of a machine as plain Python values."""
    return _HEAD | {"checks": [*map(asdict, checks)], "problems": []}


def reports_document(examination: Examination) -> dict[str, Any]:
    """Return the document of an examination as plain Python values."""
    problems = [problem.row for problem in examination.problems]
    capabilities = [*map(structs.asdict, examination.capabilities)]
    reports = list(examination.reports)
    return _HEAD | {"reports": reports, "capabilities": capabilities, "problems": problems}


def doctor_formats(blocks: Sequence[Block], document: dict[str, Any]) -> dict[str, Format]:
    """Return how the answer is written in each format.

    A file says that it is from `doctor`, but not which machine or reports it is about. So no file
    has an identity.
    """
    head = ["<!-- nsyspipe:doctor -->"]
    markdown = partial(as_markdown, blocks, head, "nsyspipe doctor REPORTS")
    # The name and the content of the meta element.
    meta = ("nsyspipe-doctor", "")
    page = partial(blocks_page, blocks, "nsyspipe doctor", meta)
    return {
        "json": _format_without_identity(partial(dumps, document)),
        "markdown": _format_without_identity(markdown),
        "html": _format_without_identity(page),
    }


def _format_without_identity(text: Callable[[], str]) -> Format:
    return Format(text, lambda _: None)


def _machine_verdict(checks: Sequence[Check]) -> str:
    """Return which tasks a machine can do, and which it cannot."""
    tasks_by_ability: dict[_Ability, list[str]] = {_CAN: [], _UNCLEAR: [], _CANNOT: []}
    for task, task_text in _TASKS.items():
        status_of_check = _statuses(checks, task)
        # A capture is possible although these checks fail, with a restriction.
        restriction_of_check = _restrictions(status_of_check) if task == "capture" else {}
        decisive_checks = status_of_check.keys() - restriction_of_check.keys()
        ability = _ability({status_of_check[name] for name in decisive_checks})
        restrictions = "" if ability is _CANNOT else "".join(restriction_of_check.values())
        tasks_by_ability[ability].append(f"{task_text}{restrictions}")
    sentences = []
    for ability, tasks in tasks_by_ability.items():
        if tasks:
            task_list = listed(tasks, joint=ability.joint)
            sentences.append(f"{ability.start} {task_list}.")
    return " ".join(sentences)


def _statuses(checks: Iterable[Check], task: str) -> dict[str, str]:
    """Return the statuses of the checks that a task needs, by the names of the checks."""
    statuses: dict[str, str] = {}
    for check in checks:
        if task in check.needed_for.split(", "):
            statuses[check.name] = check.status
    return statuses


def _restrictions(status_of_check: Mapping[str, str]) -> dict[str, str]:
    """Return by which restrictions a capture is possible although something is missing.

    They are by the name of the check that is missing.
    """
    missing = {name for name, status in status_of_check.items() if status == "missing"}
    restrictions = _RESTRICTIONS_ON_CAPTURE.items()
    return {name: restriction for name, restriction in restrictions if name in missing}


def _ability(statuses: Collection[str]) -> _Ability:
    """Return whether a task can be done if the checks of what it needs have these statuses."""
    if "missing" in statuses:
        return _CANNOT
    return _UNCLEAR if "unknown" in statuses else _CAN


def _reports_verdict(examination: Examination) -> str:
    """Return how many kinds of data the reports have in full, and which ones they lack."""
    used = [capability for capability in examination.capabilities if capability.is_used]
    statuses_and_names = [
        (capability.status, _display_name(capability.name)) for capability in used
    ]
    names_of_status = grouped(statuses_and_names)
    n_reports = len(examination.reports)
    subject = "This report has" if n_reports == 1 else f"These {n_reports} reports have"
    n_complete = len(names_of_status.get(YES, []))
    n_kinds = len(used)
    sentences = [f"{subject} {n_complete} of the {n_kinds} kinds of data that nsyspipe can use."]
    if PARTLY in names_of_status:
        partly = ", ".join(names_of_status[PARTLY])
        sentences.append(f"Incomplete: {partly}.")
    if NO in names_of_status:
        missing = ", ".join(names_of_status[NO])
        sentences.append(f"Missing: {missing}.")
    return " ".join(sentences)


def _table(
    caption: str,
    rows: list[list[Cell]],
    name_width: int | None = None,
    *,
    is_close: bool = False,
    has_all_columns: bool = False,
) -> Table:
    """Return a table of statuses.

    The columns have headings, unless the table is close to a heading above it. `name_width` is the
    least width of the second column.
    """
    min_width = 0 if has_all_columns else _MIN_WIDTH_FOR_ALL_COLUMNS
    status = Field("status", kind="word")
    what = Field("what", kind="word", least=name_width)
    found_column = Field("found", kind="prose")
    needed_for = Field(
        "needed for", kind="prose", from_width=min_width, most=_MAX_WIDTH_OF_NEEDED_FOR
    )
    columns = [status, what, found_column, needed_for]
    return Table(caption, columns, rows, has_headings=not is_close, is_close=is_close)


def _fix_list(fixes: Iterable[tuple[str, str]]) -> Iterator[Block]:
    """Yield a table of what is missing and how to add it, with a row for each way to add it.

    `fixes` are pairs of what is missing and how to add it. Nothing is yielded if there are none.
    """
    names_of_fix = grouped((fix, name) for name, fix in fixes)
    if names_of_fix:
        missing = Field("what is missing", kind="text", most=_MAX_WIDTH_OF_MISSING_NAMES)
        columns = [missing, Field("what adds it", kind="prose")]
        rows: list[list[Cell]] = []
        for fix, names in names_of_fix.items():
            rows.append([", ".join(names), fix])
        yield Heading("How to add missing data:")
        yield Table("What adds it", columns, rows, has_headings=False, is_close=True)


def _display_name(name: str) -> str:
    """Return the name of a check or a question in words."""
    if name in _DISPLAY_NAMES:
        return _DISPLAY_NAMES[name]
    words = [word.upper() if word in _ACRONYMS else word for word in name.split("_")]
    return " ".join(words)
