"""The facts around a run: which were recorded, and how to record the others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.traffic import dimensions
from nsyspipe.comparison.changes import SIDES, StepTable
from nsyspipe.model.captured import RunCapture
from nsyspipe.model.columns import flag, text
from nsyspipe.model.definitions import ANALYZE_AGAIN
from nsyspipe.model.names import is_redacted_host
from nsyspipe.model.table import FLOAT, Column, TableSchema
from nsyspipe.nsys.command_words import command_without_launcher
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
# Measured values are never the same twice, so it only matters if they were not recorded.
BANDWIDTH = "bus bandwidth"
DELAYS = "delays by ranks"
MEASURED = frozenset({BANDWIDTH, DELAYS})
# From NCCL's log.
LINK = "link"
NCCL_SETTINGS = "NCCL settings"
NCCL_VERSION = "NCCL version"
ENVIRONMENT = "environment variables at the start of the programs"
STRAGGLER = "straggler"
NONE = "none"
# Reports name the nsys that exported them; another one may have captured.
EXPORTER = "nsys that exported"
# The CUDA that torch was built with, and the newest that the driver supports.
CUDA_OF_TORCH = "CUDA of torch"
CUDA_OF_DRIVER = "CUDA of the driver"
TRACE = "trace"
TRACED_EVENTS = "traced events"
GRAPH_TRACE = "trace of CUDA graphs"
# From a launcher's sidecar.
COMMAND = "command"
# From the reports.
STARTED_COMMAND = "command that nsys started"
COMMANDS = frozenset({COMMAND, STARTED_COMMAND})
# Two machines may have the same host name.
HOST_NAMES = "host names"
_CUDA_GRAPHS = "CUDA graphs"
# What records the facts that reports may lack.
BY_LOG = "--nccl-log FILE of a run with NCCL_DEBUG=INFO"
BY_WRITTEN_LOG = "the log that NCCL wrote: --nccl-log FILE"
BY_LAUNCHER = "a capture with nsyspipe's launchers"
BY_REPORT = "reports that were not redacted"
BY_GROUPS = f"NCCL's process groups: nsys export --include-blobs=true, or {BY_LOG}"
BY_REPORT_OR_LAUNCHER = f"{BY_REPORT}, or {BY_LAUNCHER}"
BY_PAYLOADS = "NCCL's NVTX payloads, see nsyspipe doctor"
BY_GRAPH_NODES = "nsys profile --cuda-graph-trace=node"
BY_STEPS = "whole steps with all operations, see nsyspipe doctor"
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
    """Facts of a run, in words by name, that one recording brings."""

    topic: str
    what: str
    recorded_by: str | None
    # Without words the matter was not recorded.
    words: Mapping[str, str]
    # If it was recorded, a setting that is not there was not set.
    is_setting: bool = False
    # Settings may be recorded although none is set.
    is_recorded: bool = False
    # Why it was not recorded, if more is known than what would record it.
    why_unknown: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the run recorded it."""
        return self.is_recorded or bool(self.words)


class KnownSides(NamedTuple):
    """For each side, whether it recorded a matter."""

    baseline: bool
    candidate: bool

    @property
    def is_one_side(self) -> bool:
        """Whether one side recorded the matter and the other one did not."""
        return self.baseline != self.candidate


class Compared(Struct, frozen=True):
    """A matter on both sides: which of them recorded it, and whether it is the same."""

    topic: str
    what: str
    # What would record the matter on the sides that lack it. It counts only if one does.
    recorded_by: str | None
    known_sides: KnownSides
    is_same: bool | None
    # Words of the only side that recorded the matter, or of both sides if they have the same.
    # For a number this is its name.
    words: str | None = None
    unit: str | None = None
    # The number, if only one side recorded it.
    value: float | None = None
    # Why the baseline, and why the candidate, lacks the matter. None if this is not known.
    whys: tuple[str | None, str | None] = (None, None)

    def row(self) -> dict[str, Any]:
        """Return the row of `FACTS` of this matter.

        Whether it is the same is only told if both sides recorded it. What would record it is only
        told if a side did not.
        """
        recorded_on = _SIDE_BY_RECORDED[self.known_sides]
        is_on_both = recorded_on == BOTH
        row: dict[str, Any] = {"topic": self.topic, "what": self.what}
        row["recorded_on"] = recorded_on
        row["is_same"] = self.is_same if is_on_both else None
        row["recorded_by"] = None if is_on_both else self.recorded_by
        row |= {"words": self.words, "unit": self.unit, "value": self.value}
        row["baseline_why"], row["candidate_why"] = self.whys
        return row


def facts_table(compared: Iterable[Compared]) -> pa.Table:
    """Return `FACTS` of matters, in their order."""
    rows = [matter.row() for matter in compared]
    return FACTS.from_rows(rows)


# --- matters of a run -----------------------------------------------------------------------------
def matters_of(table: StepTable) -> list[Matter]:
    """Return the matters of a run that are told in words.

    Every run has the same matters in the same order. A matter that was not recorded has no words.
    """
    run = table.run
    capture = run.header.capture or RunCapture()
    matters = [_parallelism_matter(table), _straggler_matter(table)]
    matters += _link_matters(run)
    matters += _version_matters(run, capture)
    matters += _capture_matters(run, capture)
    return [*matters, environment_of(run)]


def by_log(run: Run) -> str:
    """Return how to give NCCL's log of a run, in words.

    If the run wrote a log that was not given, only the option is needed. Otherwise a new run is.
    """
    variables = run.header.training_variables or {}
    is_written = run.nccl is None and writes_log(variables)
    return BY_WRITTEN_LOG if is_written else BY_LOG


def _fact(topic: str, name: str, *, recorded_by: str, word: str | None) -> Matter:
    """Return a matter of a single fact with the same name."""
    words = {name: word} if word else {}
    return Matter(topic, name, recorded_by, words)


def _without_empty(words: Mapping[str, str | None]) -> dict[str, str]:
    """Return the words by name that are neither None nor empty."""
    return {name: word for name, word in words.items() if word}


def _parallelism_matter(table: StepTable) -> Matter:
    """Return how ranks share the work: the dimensions of parallelism with their sizes.

    The matter has no words if the size of a dimension is not known. It has none either if this
    run was saved under older definitions than another run of the comparison.
    """
    if table.outdated_columns:
        return _fact("collectives", "parallelism", recorded_by=ANALYZE_AGAIN, word=None)
    run = table.run
    parallel_dimensions = dimensions(run.traffic(), run.header.n_job_ranks)
    are_sizes_known = all(dimension.size is not None for dimension in parallel_dimensions)
    degrees = ", ".join(map(str, parallel_dimensions)) if are_sizes_known else None
    return _fact("collectives", "parallelism", recorded_by=BY_PAYLOADS, word=degrees)


def _link_matters(run: Run) -> list[Matter]:
    link = Matter(topic="link", what=LINK, recorded_by=by_log(run), words=_link_words(run))
    return [link, _nccl_settings(run)]


def _link_words(run: Run) -> dict[str, str]:
    transports = run.links()["transport"].unique().to_pylist()
    known_transports = sorted(filter(None, transports))
    words = {
        "slowest link": _slowest_link(run),
        "transport": ", ".join(known_transports),
        "NVLink SHARP": _use_of_nvlink_sharp(run),
    }
    return _without_empty(words)


def _slowest_link(run: Run) -> str | None:
    """Return the kind of the slowest link; None if it is not known."""
    slowest = run.link.slowest if run.link else None
    if slowest is None or slowest.kind == "unknown":
        return None
    return slowest.kind


def _use_of_nvlink_sharp(run: Run) -> str | None:
    """Return whether NCCL used NVLink SHARP, in words; None if it is not known."""
    nvls = run.nccl.nvls if run.nccl else None
    if nvls is None:
        return None
    return "on" if nvls else "off"


def _nccl_settings(run: Run) -> Matter:
    """Return the settings that NCCL's log of a run names."""
    nccl = run.nccl
    settings = nccl.settings if nccl else {}
    # A log that is detailed enough to tell of NVLink SHARP also names all settings. So if such a
    # log names none, it is known that none is set.
    tells_of_nvlink_sharp = nccl is not None and nccl.nvls is not None
    is_recorded = bool(settings) or tells_of_nvlink_sharp
    return Matter(
        topic="link",
        what=NCCL_SETTINGS,
        recorded_by=by_log(run),
        words=settings,
        is_setting=True,
        is_recorded=is_recorded,
    )


def _version_matters(run: Run, capture: RunCapture) -> list[Matter]:
    """Return the versions of nsys, NCCL, the driver, torch, Python and the program."""
    version_in_log = run.nccl.version if run.nccl else None
    nccl_words = _without_empty({"NCCL": version_in_log or capture.nccl_version})
    exporter = Matter(topic="versions", what=EXPORTER, recorded_by="nsys", words=_nsys_words(run))
    nccl = Matter(topic="versions", what=NCCL_VERSION, recorded_by=by_log(run), words=nccl_words)
    return [exporter, nccl, *_driver_matters(run, capture), *_program_matters(capture)]


def _driver_matters(run: Run, capture: RunCapture) -> Iterator[Matter]:
    driver = capture.driver_version or ", ".join(run.header.driver_versions)
    cuda = ", ".join(run.header.cuda_driver_versions)
    yield _fact("versions", "driver", recorded_by=BY_REPORT_OR_LAUNCHER, word=driver)
    yield _fact("versions", CUDA_OF_DRIVER, recorded_by=BY_REPORT, word=cuda)


def _program_matters(capture: RunCapture) -> Iterator[Matter]:
    yield _fact("versions", "torch", recorded_by=BY_LAUNCHER, word=capture.torch_version)
    yield _fact("versions", CUDA_OF_TORCH, recorded_by=BY_LAUNCHER, word=capture.cuda_version)
    yield _fact("versions", "Python", recorded_by=BY_LAUNCHER, word=capture.python_version)
    yield _fact("versions", "commit", recorded_by=BY_LAUNCHER, word=_commit(capture))


def _nsys_words(run: Run) -> dict[str, str]:
    exporters = ", ".join(run.header.nsys_versions)
    schemas = ", ".join(run.header.export_schema_versions)
    return _without_empty({EXPORTER: exporters, "export schema": schemas})


def _commit(capture: RunCapture) -> str | None:
    if not capture.git_commit:
        return None
    changes = " with uncommitted changes" if capture.git_is_dirty else ""
    return f"{capture.git_commit}{changes}"


def _capture_matters(run: Run, capture: RunCapture) -> Iterator[Matter]:
    """Yield the hosts, the CUDA graphs, the command and the trace options."""
    if has_whole_graphs(run):
        graphs = "as a whole: what is inside was not seen"
    else:
        graphs = "none as a whole"
    yield _fact("capture", HOST_NAMES, recorded_by=BY_REPORT, word=_host_words(run))
    yield _fact("capture", _CUDA_GRAPHS, recorded_by="nsys", word=graphs)
    yield Matter(
        topic="capture",
        what=COMMAND,
        recorded_by=BY_REPORT_OR_LAUNCHER,
        words=_command_words(run, capture),
    )
    yield Matter(
        topic="capture",
        what="trace options",
        recorded_by=BY_REPORT_OR_LAUNCHER,
        words=_trace_words(run, capture),
    )


def _host_words(run: Run) -> str | None:
    """Return the names of a run's hosts; None if a redaction replaced them."""
    hosts = run.header.hosts
    if any(map(is_redacted_host, hosts)):
        return None
    return ", ".join(hosts)


def _command_words(run: Run, capture: RunCapture) -> dict[str, str]:
    command = shlex.join(command_without_launcher(capture.command or []))
    started_command = " | ".join(run.header.commands)
    return _without_empty({COMMAND: command, STARTED_COMMAND: started_command})


def _trace_words(run: Run, capture: RunCapture) -> dict[str, str]:
    events = ", ".join(run.header.traced_events)
    graph_traces = ", ".join(run.header.cuda_graph_traces)
    trace = ", ".join(capture.trace or [])
    words = {TRACED_EVENTS: events, GRAPH_TRACE: graph_traces, TRACE: trace}
    return _without_empty({**words, "capture range": capture.capture_range})


def environment_of(run: Run) -> Matter:
    """Return the training variables that the reports, or a launcher, recorded."""
    variables = run.header.training_variables
    return Matter(
        topic="capture",
        what=ENVIRONMENT,
        recorded_by=BY_REPORT,
        words=variables or {},
        is_setting=True,
        is_recorded=variables is not None,
    )


def environment_contradicts_log(matters: Iterable[Matter]) -> bool:
    """Tell whether a setting in NCCL's log differs from the environment of the same run.

    The environment may lack the variable, or have another value. An environment that was not
    recorded contradicts nothing.
    """
    matter_by_name = {matter.what: matter for matter in matters}
    environment = matter_by_name[ENVIRONMENT]
    if not environment.is_known:
        return False
    settings_in_log = matter_by_name[NCCL_SETTINGS].words
    return any(environment.words.get(name) != value for name, value in settings_in_log.items())


# --- delays ---------------------------------------------------------------------------------------
class Lack(Struct, frozen=True):
    """What a run lacks, so that something is not known of it."""

    # None: the run recorded enough.
    recorded_by: str | None
    # If more is known than what would record it.
    why: str | None = None


def lack_of_delays(table: StepTable) -> Lack:
    """Return what a run lacks, so that it is not known how late its ranks are.

    The first lack that applies is returned. Call it only if the delays are not known.
    """
    run = table.run
    if table.outdated_columns:
        return Lack(recorded_by=ANALYZE_AGAIN)
    if has_whole_graphs(run):
        return Lack(recorded_by=BY_GRAPH_NODES)
    problem_codes = {row["code"] for row in run.problem_rows}
    if "groups-not-named" in problem_codes:
        return Lack(recorded_by=BY_GROUPS)
    if run.header.n_job_ranks == 1:
        return Lack(recorded_by=None, why=ONE_RANK)
    wait_ns_of_ranks = run.stragglers()["wait_ns"]
    has_wait_times = wait_ns_of_ranks.null_count < len(wait_ns_of_ranks)
    if not has_wait_times:
        return Lack(recorded_by=BY_ALL_RANKS)
    # Wait times show that all ranks were recorded. If nobody is late although ranks wait, they are
    # pipeline stages, which only wait for each other's results.
    return Lack(recorded_by=None, why=ONLY_STAGES)


def longest_delay(table: StepTable) -> float | None:
    """Return the longest delay that a rank causes in a step, mean over summary steps, ns.

    None if the delays of a rank are not known.
    """
    ranks = table.run.stragglers()
    if not ranks.num_rows or ranks["lateness_ns"].null_count:
        return None
    # The delay of a step is in the row of one rank only: the rank that causes the longest delay. So
    # no step counts twice.
    total_ns = sum(ranks["lateness_ns"].to_pylist())
    return float(total_ns / table.n_steps)


def _straggler_matter(table: StepTable) -> Matter:
    """Return the matter of which ranks the others wait for.

    The matter has no words if delays are not known, if they mean something else in another run, or
    if the rule for stragglers was skipped. Then the matter has the reason, or what would record the
    delays.
    """
    if longest_delay(table) is None:
        return _unknown_straggler(lack_of_delays(table))
    if table.outdated_columns:
        return _unknown_straggler(Lack(recorded_by=ANALYZE_AGAIN))
    why_not_judged = _why_not_judged(table.run)
    if why_not_judged is not None:
        return _unknown_straggler(Lack(recorded_by=None, why=why_not_judged))
    words = {STRAGGLER: _straggler(table.run)}
    return Matter(topic="stragglers", what=STRAGGLER, recorded_by=BY_ALL_RANKS, words=words)


def _unknown_straggler(lack: Lack) -> Matter:
    """Return the matter of which ranks the others wait for, without words."""
    return Matter(
        topic="stragglers",
        what=STRAGGLER,
        recorded_by=lack.recorded_by,
        words={},
        why_unknown=lack.why,
    )


def _why_not_judged(run: Run) -> str | None:
    """Return why the rule for stragglers was skipped; None if it was not."""
    for check in run.skipped_checks:
        if STRAGGLER in check.rules:
            return check.reason
    return None


def _straggler(run: Run) -> str:
    """Return the node, or the ranks, that the finding about stragglers names, in words.

    Ranks that hold others up without being slower are left out. If no rank is left, the word is
    `NONE`.
    """
    evidence = _evidence_of_straggler(run)
    if "node" in evidence:
        return f"node {evidence['node']}"
    no_slower_ranks = evidence.get("no_slower_ranks", ())
    # The keys of JSON objects are texts.
    held_up_ns_by_rank = evidence.get("held_up_ns_per_step_by_rank", {})
    waited_for_ranks = [int(rank) for rank in held_up_ns_by_rank]
    slower_ranks = [rank for rank in waited_for_ranks if rank not in no_slower_ranks]
    names = [run.rank_names.name(rank) for rank in slower_ranks]
    if not names:
        return NONE
    noun = "rank" if len(names) == 1 else "ranks"
    return f"{noun} {', '.join(names)}"


def _evidence_of_straggler(run: Run) -> dict[str, Any]:
    """Return the evidence of the finding about stragglers; empty without this finding."""
    for row in run.judged_findings().to_pylist():
        if row["id"] == STRAGGLER:
            evidence: dict[str, Any] = json.loads(row["evidence"])
            return evidence
    return {}
