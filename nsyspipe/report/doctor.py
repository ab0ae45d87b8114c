"""Words of ``nsyspipe doctor``: what a machine has, what reports can answer, or which runs a run store has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from typing import Any, cast

import pyarrow.compute as pc
from msgspec import structs

from nsyspipe.model.figures import METRICS
from nsyspipe.model.names import few, grouped, listed
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
from nsyspipe.report.words import troubles
from nsyspipe.run.doctor import Examination
from nsyspipe.run.run import job_ranks
from nsyspipe.store.index import StoredRuns
from nsyspipe.version import __version__

_STEP_TIME = METRICS["step_time"]
_HEAD = {"schema_version": 1, "tool_version": __version__}
# a narrower terminal gets fewer columns
_FULL_WIDTH = 79
_USE_WIDTH = 36
_NAMES_WIDTH = 28
# names that a line has unless it is verbose
_MOST_RUNS = 4
_MOST_LACKING = 3
_ACRONYMS = {"cpu", "cuda", "gpu", "nccl", "nvtx", "os"}
# Names of checks and questions that are shown by other words.
_DISPLAY_NAMES = {
    "one_clock": "clock alignment",
    "link": "interconnect",
    "message_bytes": "message sizes",
    "trace_values": "--trace values",
}
# What a machine is for, in the words of the first line.
_WITHOUT = {
    "cuda_driver": " only on its CPUs (--cpu)",
    "torch": " with a Python that has torch (PYTHON=...)",
}
_TASKS = {
    "analyze": "analyze reports",
    "convert": "convert .nsys-rep files",
    "capture": "capture runs",
}


def machine_blocks(checks: Sequence[Check], *, is_verbose: bool = False) -> Iterator[Block]:
    """Yield what a machine has, and what it can do with that."""
    yield Sentence(_machine_verdict(checks), "bold")
    rows: list[list[Cell]] = []
    for check in checks:
        size = "" if check.found_bytes is None else f"{bytes_text(check.found_bytes)} "
        rows.append(
            [Word(check.status), _words(check.name), f"{size}{check.found}", check.needed_for]
        )
    yield _table("What this machine has", rows, has_all_columns=is_verbose)
    yield from _fix_list([(_words(check.name), check.fix) for check in checks if check.fix])


def reports_blocks(found: Examination, *, is_verbose: bool = False) -> Iterator[Block]:
    """Yield what reports can answer, what only Nsight Systems shows of them, and what would add the rest.

    If it is verbose, all reports and runs are named, and no column is left out.
    """
    rows: dict[bool, list[list[Cell]]] = {True: [], False: []}
    for capability in found.capabilities:
        rows[capability.is_used].append(
            [Word(capability.status), _words(capability.name), capability.found, capability.answers]
        )
    widest = max(len(_words(capability.name)) for capability in found.capabilities)
    yield Sentence(_reports_verdict(found), "bold")
    parts = [_names_of_reports(found, is_verbose=is_verbose)]
    if len(found.runs) > 1:
        most_runs = len(found.runs) if is_verbose else _MOST_RUNS
        parts = [f"{len(found.runs)} runs: {few(found.runs, most_runs)}"]
    versions = {"exported by nsys": found.nsys_versions, "export schema": found.schema_versions}
    yield Facts(
        [*parts, *(f"{what} {', '.join(names)}" for what, names in versions.items() if names)],
        "Reports",
    )
    yield _table("What these reports can answer", rows[True], widest, has_all_columns=is_verbose)
    yield Heading("Visible in Nsight Systems, but not used by nsyspipe:", "dim")
    yield _table(
        "Shown by Nsight Systems", rows[False], widest, is_close=True, has_all_columns=is_verbose
    )
    # The reports that lack it are named, unless all do.
    most_lacking = len(found.reports) if is_verbose else _MOST_LACKING
    lacking = (
        (capability, f" (for {few(capability.lacking, most_lacking)})" if capability.n_with else "")
        for capability in found.capabilities
        if capability.fix
    )
    yield from _fix_list([(_words(one.name), f"{one.fix}{where}") for one, where in lacking])
    if found.problems:
        said = {capability.fix for capability in found.capabilities}
        yield Troubles(
            troubles(
                structs.asdict(problem) | {"fix": None if problem.fix in said else problem.fix}
                for problem in found.problems
            )
        )


def _names_of_reports(found: Examination, *, is_verbose: bool) -> str:
    if is_verbose:
        return listed(found.reports)
    joint = " ... " if found.reports[1:-1] else " and "
    return joint.join(dict.fromkeys((found.reports[0], found.reports[-1])))


def store_blocks(found: StoredRuns, store: str, *, is_verbose: bool = False) -> Iterator[Block]:
    """Yield the runs of a store by the time of their capture, each as it is named, and those that cannot be read."""
    runs = _listed(found)
    of_labels = (
        f" of {len(labels)} labels" if len(labels := {run["label"] for run in runs}) > 1 else ""
    )
    n_runs = f"{len(runs)} saved run{'s'[: len(runs) != 1]}{of_labels}"
    naming = f"Name a run as {store}:ID, or as {store}:LABEL for the latest run of a label."
    yield Sentence(f"The run store has {n_runs}. {naming}", "bold")
    columns = [
        Field("ID", itemgetter("run_id"), "word"),
        Field("label", itemgetter("label"), "text"),
        Field(
            "captured, UTC",
            lambda run: (run["captured_at_utc"] or "")[:16].replace("T", " "),
            "text",
            from_width=0 if is_verbose else _FULL_WIDTH,
        ),
        Field("ranks", _ranks_of),
        Field("steps", lambda run: count_text(run["n_summary_steps"])),
        Field(_STEP_TIME.short, lambda run: ms_text(run[_STEP_TIME.column])),
    ]
    yield table_of("Saved runs", runs, columns)
    if found.unreadable:
        yield Troubles(
            [
                ("error", f"{one.run_id}: {one.table} {one.message}", "", one.fix)
                for one in found.unreadable
            ]
        )


def _ranks_of(run: Mapping[str, Any]) -> str:
    """Return how many ranks a saved run has, and of how many where some are missing."""
    n_ranks = run["n_ranks"]
    n_all = job_ranks(run["n_ranks"], run["n_processes"], run["world_size"]) or 0
    return count_text(n_ranks) + (f" of {n_all}" if n_all > n_ranks else "")


def store_document(found: StoredRuns) -> dict[str, Any]:
    """Return the runs of a store as plain Python values."""
    return _HEAD | {
        "runs": _listed(found),
        "problems": [structs.asdict(one) for one in found.unreadable],
    }


def _listed(found: StoredRuns) -> list[dict[str, Any]]:
    names = [
        "run_id",
        "label",
        "captured_at_utc",
        "n_ranks",
        "n_processes",
        "world_size",
        "n_summary_steps",
        _STEP_TIME.column,
    ]
    times = pc.strftime(found.runs["captured_at_utc"], "%Y-%m-%dT%H:%M:%SZ")
    return cast(
        "list[dict[str, Any]]", found.runs.select(names).set_column(2, names[2], times).to_pylist()
    )


def machine_document(checks: Iterable[Check]) -> dict[str, Any]:
    """Return the document of a machine as plain Python values."""
    return _HEAD | {"checks": [asdict(check) for check in checks], "problems": []}


def reports_document(found: Examination) -> dict[str, Any]:
    """Return the document of an examination as plain Python values."""
    problems = [problem.row for problem in found.problems]
    capabilities = [structs.asdict(capability) for capability in found.capabilities]
    return _HEAD | {
        "reports": list(found.reports),
        "capabilities": capabilities,
        "problems": problems,
    }


def doctor_formats(blocks: Sequence[Block], document: dict[str, Any]) -> dict[str, Format]:
    """Return how it is written in each format; no file says which machine or reports it is of."""
    comment = partial(as_markdown, blocks, ["<!-- nsyspipe:doctor -->"], "nsyspipe doctor REPORTS")
    page = partial(blocks_page, blocks, "nsyspipe doctor", ("nsyspipe-doctor", ""))
    texts = {"json": partial(dumps, document), "markdown": comment, "html": page}
    return {name: Format(text, lambda _: None) for name, text in texts.items()}


def _machine_verdict(checks: Sequence[Check]) -> str:
    can: dict[str, list[str]] = {
        "This machine can": [],
        "It is unclear whether this machine can": [],
        "This machine cannot": [],
    }
    yes, unclear, no = can
    for task, words in _TASKS.items():
        needed = {
            check.name: check.status for check in checks if task in check.needed_for.split(", ")
        }
        # The launchers do without these, or take torch from another Python.
        lacking = [name for name in _WITHOUT if task == "capture" and needed.get(name) == "missing"]
        needed = {name: status for name, status in needed.items() if name not in lacking}
        answer = (
            no if "missing" in needed.values() else unclear if "unknown" in needed.values() else yes
        )
        can[answer].append(words + "".join(_WITHOUT[name] for name in lacking if answer != no))
    joints = {yes: "and", unclear: "or", no: "or"}
    sentences = (
        f"{answer} {listed(tasks, joint=joints[answer])}." for answer, tasks in can.items() if tasks
    )
    return " ".join(sentences)


def _reports_verdict(found: Examination) -> str:
    used = [capability for capability in found.capabilities if capability.is_used]
    names = {
        status: [_words(one.name) for one in used if one.status == status]
        for status in ("yes", "partly", "no")
    }
    whose = "This report answers" if (n := len(found.reports)) == 1 else f"These {n} reports answer"
    sentences = [f"{whose} {len(names['yes'])} of {len(used)} questions."]
    shown = (("partly", "Partly answered"), ("no", "Not answered"))
    sentences += [
        f"{words}: {', '.join(names[status])}." for status, words in shown if names[status]
    ]
    return " ".join(sentences)


def _table(
    caption: str,
    rows: list[list[Cell]],
    name_width: int | None = None,
    *,
    is_close: bool = False,
    has_all_columns: bool = False,
) -> Table:
    least_width = 0 if has_all_columns else _FULL_WIDTH
    columns = [
        Field("status", kind="word"),
        Field("what", kind="word", least=name_width),
        Field("found", kind="prose"),
        Field("needed for", kind="prose", from_width=least_width, most=_USE_WIDTH),
    ]
    return Table(caption, columns, rows, has_headings=not is_close, is_close=is_close)


def _fix_list(fixes: Iterable[tuple[str, str]]) -> Iterator[Block]:
    names = grouped((fix, name) for name, fix in fixes)
    if names:
        columns = [
            Field("what is missing", kind="text", most=_NAMES_WIDTH),
            Field("what adds it", kind="prose"),
        ]
        rows = [[", ".join(whose), fix] for fix, whose in names.items()]
        yield Heading("How to add missing data:")
        yield Table("What adds it", columns, rows, has_headings=False, is_close=True)


def _words(name: str) -> str:
    words = (word.upper() if word in _ACRONYMS else word for word in name.split("_"))
    return _DISPLAY_NAMES.get(name) or " ".join(words)
