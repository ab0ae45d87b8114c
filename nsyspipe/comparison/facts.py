"""What is known around a run: its facts by matter, which of them it recorded, and what records the others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.traffic import dimensions
from nsyspipe.comparison.changes import SIDES, StepTable
from nsyspipe.model.captured import RunCapture
from nsyspipe.model.columns import flag, text
from nsyspipe.model.definitions import ANALYZE_AGAIN
from nsyspipe.model.names import is_redacted_host
from nsyspipe.model.table import FLOAT, Column, TableSchema
from nsyspipe.nsys.settings import writes_log
from nsyspipe.run.run import Run
from nsyspipe.run.work import has_whole_graphs

FACTS = TableSchema(
    name="difference_facts",
    doc=(
        "One row per matter around the runs: which sides recorded it, and whether it is the same "
        "on both."
    ),
    key=("topic", "what"),
    columns=(
        text("topic", "as in difference_changes"),
        text("what", "the matter: one fact, or several facts that are recorded together"),
        text("recorded_on", "both, baseline, candidate or neither"),
        flag(
            "is_same",
            "whether both sides have the same, null unless both recorded it, or if values are "
            "hidden",
            nullable=True,
        ),
        text("recorded_by", "what records it, null if both sides have it", nullable=True),
        text(
            "words",
            "value of the only side that recorded it, or of both if equal, or the name of a number",
            nullable=True,
        ),
        text("unit", "unit of the number, null for words", nullable=True),
        Column("value", FLOAT, "the row's", "the number, if only one side has it", nullable=True),
        text("baseline_why", "why the baseline does not have it, if known", nullable=True),
        text("candidate_why", "why the candidate does not have it, if known", nullable=True),
    ),
)

BOTH = "both"
NEITHER = "neither"
# What is measured is never the same twice: only that it was not recorded is worth a word.
BANDWIDTH = "bus bandwidth"
DELAYS = "delays by ranks"
MEASURED = frozenset({BANDWIDTH, DELAYS})
# what NCCL's log says
LINK = "link"
NCCL_SETTINGS = "NCCL settings"
NCCL_VERSION = "NCCL version"
ENVIRONMENT = "environment variables at the start of the programs"
STRAGGLER = "straggler"
NONE = "none"
EXPORTER = "nsys that exported"  # which reports name; another may have captured
# built with; the newest that it supports
CUDA_OF_TORCH = "CUDA of torch"
CUDA_OF_DRIVER = "CUDA of the driver"
TRACE = "trace"
TRACED_EVENTS = "traced events"
GRAPH_TRACE = "trace of CUDA graphs"
# by a launcher's sidecar; by the reports
COMMAND = "command"
STARTED_COMMAND = "command that nsys started"
COMMANDS = frozenset({COMMAND, STARTED_COMMAND})
HOST_NAMES = "host names"  # two machines may have the same
# What records what reports may lack.
BY_LOG = "--nccl-log FILE of a run with NCCL_DEBUG=INFO"
BY_WRITTEN_LOG = "the log that NCCL wrote: --nccl-log FILE"
BY_LAUNCHER = "a capture with nsyspipe's launchers"
BY_REPORT = "reports that were not redacted"
BY_GROUPS = f"NCCL's process groups: nsys export --include-blobs=true, or {BY_LOG}"
BY_REPORT_OR_LAUNCHER = f"{BY_REPORT}, or {BY_LAUNCHER}"
BY_PAYLOADS = "NCCL's NVTX payloads, see nsyspipe doctor REPORTS"
BY_GRAPH_NODES = "nsys profile --cuda-graph-trace=node"
BY_STEPS = "whole steps with all operations, see nsyspipe doctor REPORTS"
BY_ALL_RANKS = "the reports of all ranks, with steps"
# Why a run that recorded all of it does not know how late its ranks are.
ONE_RANK = "there is one rank"
ONLY_STAGES = "only stages of a pipeline meet, which wait for each other by design"
_SIDE_BY_RECORDED = {
    (True, True): BOTH,
    (True, False): SIDES[0],
    (False, True): SIDES[1],
    (False, False): NEITHER,
}


class Matter(Struct, frozen=True):
    """Facts of a run, in words by name, that one recording brings; without any it was not recorded."""

    topic: str
    what: str
    recorded_by: str | None
    words: Mapping[str, str]
    is_setting: bool = False  # of a recorded one, what is not there was not set
    is_recorded: bool = False  # settings may be recorded and none set
    why_unknown: str | None = None  # where more is known of that than what records it

    @property
    def is_known(self) -> bool:
        """Whether the run recorded it."""
        return self.is_recorded or bool(self.words)


class Compared(Struct, frozen=True):
    """A matter on both sides: on which it was recorded, and whether it is alike there."""

    topic: str
    what: str
    recorded_by: str | None
    is_known: tuple[bool, bool]
    is_same: bool | None
    words: str | None = (
        # of the only side that recorded it, or of both where they are alike; of a number its name
        None
    )
    unit: str | None = None
    value: float | None = None  # of the only side that recorded it, where the matter is one number
    whys: tuple[str | None, str | None] = (
        None,
        None,
    )  # why each side does not say it, where that is known

    def row(self) -> dict[str, Any]:
        """Return its row of `FACTS`."""
        recorded_on = _SIDE_BY_RECORDED[self.is_known]
        is_both = recorded_on == BOTH
        return {
            "topic": self.topic,
            "what": self.what,
            "recorded_on": recorded_on,
            "is_same": self.is_same if is_both else None,
            "recorded_by": None if is_both else self.recorded_by,
            "words": self.words,
            "unit": self.unit,
            "value": self.value,
            **{f"{side}_why": why for side, why in zip(SIDES, self.whys, strict=True)},
        }


def facts_table(compared: Iterable[Compared]) -> pa.Table:
    """Return `FACTS` of matters, in their order."""
    return FACTS.from_rows([one.row() for one in compared])


def matters_of(table: StepTable) -> list[Matter]:
    """Return the matters of a run that have words, the same ones in the same order for every run."""
    run = table.run
    capture = run.header.capture or RunCapture()
    parallelism = None if table.outdated_columns else _parallelism(run)
    by_payloads = ANALYZE_AGAIN if table.outdated_columns else BY_PAYLOADS
    graphs = (
        "as a whole: what is inside was not seen" if has_whole_graphs(run) else "none as a whole"
    )
    return [
        _matter("collectives", "parallelism", by_payloads, parallelism=parallelism),
        _straggler_matter(table),
        Matter("link", LINK, by_log(run), _link_words(run)),
        _nccl_settings(run),
        Matter("versions", EXPORTER, "nsys", _nsys_words(run)),
        *_versions(run, capture),
        _matter("capture", HOST_NAMES, BY_REPORT, **{HOST_NAMES: _host_words(run)}),
        Matter("capture", "CUDA graphs", "nsys", {"CUDA graphs": graphs}),
        Matter("capture", COMMAND, BY_REPORT_OR_LAUNCHER, _command_words(run, capture)),
        Matter("capture", "trace options", BY_REPORT_OR_LAUNCHER, _trace_words(run, capture)),
        environment_of(run),
    ]


def by_log(run: Run) -> str:
    """Return how to come by NCCL's log of a run: where none was given and the run was told to write one, it is there."""
    is_written = run.nccl is None and writes_log(run.header.training_variables or {})
    return BY_WRITTEN_LOG if is_written else BY_LOG


def _matter(topic: str, what: str, recorded_by: str, **words: str | None) -> Matter:
    return Matter(topic, what, recorded_by, {name: word for name, word in words.items() if word})


def _parallelism(run: Run) -> str | None:
    groups = dimensions(run.traffic(), run.header.n_job_ranks)
    is_known = all(group.size is not None for group in groups)
    return ", ".join(map(str, groups)) if is_known else None


def _link_words(run: Run) -> dict[str, str]:
    slowest = run.link.slowest if run.link else None
    kind = None if slowest is None or slowest.kind == "unknown" else slowest.kind
    transports = sorted(filter(None, run.links()["transport"].unique().to_pylist()))
    nvls = run.nccl.nvls if run.nccl else None
    words = {
        "slowest link": kind,
        "transport": ", ".join(transports),
        "NVLink SHARP": {None: None, True: "on", False: "off"}[nvls],
    }
    return {name: word for name, word in words.items() if word}


def _nccl_settings(run: Run) -> Matter:
    settings = run.nccl.settings if run.nccl else {}
    # Logs of a level that names no setting have no word of NVLink SHARP either.
    is_recorded = bool(settings) or (run.nccl is not None and run.nccl.nvls is not None)
    return Matter(
        "link", NCCL_SETTINGS, by_log(run), settings, is_setting=True, is_recorded=is_recorded
    )


def _nsys_words(run: Run) -> dict[str, str]:
    words = {
        EXPORTER: ", ".join(run.header.nsys_versions),
        "export schema": ", ".join(run.header.export_schema_versions),
    }
    return {name: word for name, word in words.items() if word}


def _versions(run: Run, capture: RunCapture) -> list[Matter]:
    nccl = (run.nccl.version if run.nccl else None) or capture.nccl_version
    dirty = " with changes" if capture.git_is_dirty else ""
    commit = f"{capture.git_commit}{dirty}" if capture.git_commit else None
    by_launcher = {
        "torch": capture.torch_version,
        CUDA_OF_TORCH: capture.cuda_version,
        "Python": capture.python_version,
    }
    versions = [
        _matter("versions", name, BY_LAUNCHER, **{name: word}) for name, word in by_launcher.items()
    ]
    nccl_version = _matter("versions", NCCL_VERSION, by_log(run), NCCL=nccl)
    driver = capture.driver_version or ", ".join(run.header.driver_versions)
    cuda = ", ".join(run.header.cuda_driver_versions)
    of_driver = [
        _matter("versions", "driver", BY_REPORT_OR_LAUNCHER, driver=driver),
        _matter("versions", CUDA_OF_DRIVER, BY_REPORT, **{CUDA_OF_DRIVER: cuda}),
    ]
    return [
        nccl_version,
        *of_driver,
        *versions,
        _matter("versions", "commit", BY_LAUNCHER, commit=commit),
    ]


def _host_words(run: Run) -> str | None:
    """Return the names of a run's hosts; None where a redaction put others in their place, which any run has."""
    hosts = run.header.hosts
    return None if any(map(is_redacted_host, hosts)) else ", ".join(hosts)


def _command_words(run: Run, capture: RunCapture) -> dict[str, str]:
    words = {
        COMMAND: shlex.join(capture.command or []),
        STARTED_COMMAND: " | ".join(run.header.commands),
    }
    return {name: word for name, word in words.items() if word}


def _trace_words(run: Run, capture: RunCapture) -> dict[str, str]:
    words = {
        TRACED_EVENTS: ", ".join(run.header.traced_events),
        GRAPH_TRACE: ", ".join(run.header.cuda_graph_traces),
        TRACE: ", ".join(capture.trace or []),
        "capture range": capture.capture_range,
    }
    return {name: word for name, word in words.items() if word}


def environment_of(run: Run) -> Matter:
    """Return the training variables that the reports, or a launcher, recorded."""
    variables = run.header.training_variables
    is_recorded = variables is not None
    words = variables or {}
    return Matter(
        "capture", ENVIRONMENT, BY_REPORT, words, is_setting=True, is_recorded=is_recorded
    )


class Lack(Struct, frozen=True):
    """What a run lacks where something is not known of it."""

    recorded_by: str | None  # None: it recorded enough
    why: str | None = None  # where more is known of that


def lack_of_delays(table: StepTable) -> Lack:
    """Return what a run lacks where it is not known how late its ranks are."""
    if table.outdated_columns:
        return Lack(ANALYZE_AGAIN)
    if has_whole_graphs(table.run):
        return Lack(BY_GRAPH_NODES)
    if "groups-not-named" in {row["code"] for row in table.run.problem_rows}:
        return Lack(BY_GROUPS)
    if table.run.header.n_job_ranks == 1:
        return Lack(None, ONE_RANK)
    waits = table.run.stragglers()["wait_ns"]
    return Lack(None, ONLY_STAGES) if waits.null_count < len(waits) else Lack(BY_ALL_RANKS)


def environment_contradicts_log(matters: Iterable[Matter]) -> bool:
    """Tell whether NCCL took a variable that a run's environment does not have, or has with another value."""
    by_what = {one.what: one for one in matters}
    environment = by_what[ENVIRONMENT]
    log = by_what[NCCL_SETTINGS]
    return environment.is_known and any(
        environment.words.get(name) != word for name, word in log.words.items()
    )


def longest_delay(table: StepTable) -> float | None:
    """Return the longest that all others waited for a rank in a step, whichever it was: the mean over steps, ns.

    None where that is not known.
    """
    rows = table.run.stragglers()
    if not rows.num_rows or rows["lateness_ns"].null_count:
        return None
    return float(sum(rows["lateness_ns"].to_pylist()) / table.n_steps)


def _straggler_matter(table: StepTable) -> Matter:
    """Return who makes the others wait; where nobody was judged, why not."""
    if longest_delay(table) is None:
        lack = lack_of_delays(table)
        return Matter("stragglers", STRAGGLER, lack.recorded_by, {}, why_unknown=lack.why)
    if table.outdated_columns:
        return Matter("stragglers", STRAGGLER, ANALYZE_AGAIN, {})
    why = _why_not_judged(table.run)
    if why is not None:
        return Matter("stragglers", STRAGGLER, None, {}, why_unknown=why)
    return Matter("stragglers", STRAGGLER, BY_ALL_RANKS, {STRAGGLER: _straggler(table.run)})


def _why_not_judged(run: Run) -> str | None:
    """Return why nobody could tell whether a rank makes the others wait; None where that was judged."""
    return next((check.reason for check in run.skipped_checks if STRAGGLER in check.rules), None)


def _straggler(run: Run) -> str:
    rows = run.judged_findings().to_pylist()
    late: dict[str, Any] = next(
        (json.loads(row["evidence"]) for row in rows if row["id"] == STRAGGLER), {}
    )
    if "node" in late:
        return f"node {late['node']}"
    no_slower = late.get("no_slower_ranks", ())
    waited_for = [int(rank) for rank in late.get("held_up_ns_per_step_by_rank", ())]
    named = [run.rank_names.name(rank) for rank in waited_for if rank not in no_slower]
    return f"rank{'s'[: len(named) > 1]} {', '.join(named)}" if named else NONE
