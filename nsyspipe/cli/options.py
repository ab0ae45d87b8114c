"""The options that several commands share: how reports are read, what is written, what counts as a difference."""

from __future__ import annotations

import functools
import inspect
import os
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from nsyspipe.comparison.gate import (
    DEFAULT_CONFIDENCE,
    DEFAULT_MIN_EFFECT_PCT,
    GateSettings,
    parse_confidence,
    parse_min_effect,
    read_settings,
    settled,
)
from nsyspipe.model.names import PHASE_PATTERNS
from nsyspipe.model.options import AUTO, DEFAULT_FINDINGS
from nsyspipe.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable


Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Save the run in a dataset of Parquet files, beside others; analyze takes it in place of reports.",
    ),
]
Events = Annotated[bool, typer.Option("--events", help="With --out: save every device operation too.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the JSON document; - prints it and nothing else.")
]
Markdown = Annotated[
    str | None,
    typer.Option(
        "--markdown", metavar="FILE|-", help="Write a summary for a pull request; - prints it and nothing else."
    ),
]
Csv = Annotated[
    str | None,
    typer.Option("--csv", metavar="FILE|-", help="Write the table for spreadsheets; - prints it and nothing else."),
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page with charts.")]
Perfetto = Annotated[
    str | None, typer.Option("--perfetto", metavar="FILE", help="Write a trace of all ranks for ui.perfetto.dev.")
]
PerfettoSteps = Annotated[
    str | None,
    typer.Option(
        "--perfetto-steps",
        metavar="FROM:TO",
        help="Steps in the trace, both included. [default: all that was captured]",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs of another run.")]
ForceComparison = Annotated[
    bool, typer.Option("--force", help="Judge runs that are not comparable; replace outputs of other runs.")
]
ForceFile = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No summary and no progress: errors and asked-for outputs only.")
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar.")]


def _phase(name: str) -> Any:  # noqa: ANN401 - typer's own type
    return typer.Option(
        f"--{name}", metavar="REGEX", help=f"NVTX ranges of the {name} phase. [default: {PHASE_PATTERNS[name]}]"
    )


Step = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="REGEX|none",
        help="NVTX ranges that are the steps; none: the capture as a whole. [default: the family that holds the launches]",
    ),
]
Backward = Annotated[str | None, _phase("backward")]
Forward = Annotated[str | None, _phase("forward")]
Optimizer = Annotated[str | None, _phase("optimizer")]
Data = Annotated[str | None, _phase("data")]
CommKernel = Annotated[
    str | None, typer.Option("--comm-kernel", metavar="REGEX", help="Communication kernels besides NCCL's.")
]
SkipFirst = Annotated[
    str,
    typer.Option(
        "--skip-first",
        metavar="N|auto",
        help="Complete steps to leave out at the start; auto: the first, if another remains.",
    ),
]
RankMap = Annotated[
    str | None, typer.Option("--rank-map", metavar='FILE|"a.sqlite=0,..."', help="Rank of each report.")
]
Label = Annotated[
    str | None, typer.Option("--label", metavar="TEXT", help="Name of the run. [default: from the file names]")
]
RunId = Annotated[
    str | None, typer.Option("--run-id", metavar="TEXT", help="Identifier of the run. [default: from the capture]")
]
NcclLog = Annotated[
    list[str] | None,
    typer.Option(
        "--nccl-log",
        metavar="FILE",
        help="Log of the run with NCCL_DEBUG=INFO: what its ranks are connected by. Several times, or a glob.",
    ),
]
TopologyFile = Annotated[
    str | None, typer.Option("--topology", metavar="FILE", help="Output of nvidia-smi topo -m: NVLink, or PCIe.")
]
# Of commands that take several runs.
NcclLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--nccl-log",
        metavar="[LABEL=]FILE",
        help="Log with NCCL_DEBUG=INFO, of all reports or of one label's. Several times, or a glob.",
    ),
]
TopologyFiles = Annotated[
    list[str] | None, typer.Option("--topology", metavar="[LABEL=]FILE", help="Output of nvidia-smi topo -m, likewise.")
]
Findings = Annotated[
    str,
    typer.Option(
        "--findings", metavar="N|all", help="How many findings to print; all adds the phases and the whole advice."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", min=1, help="Processes. [default: cores, capped by memory and use]"),
]


MinEffect = Annotated[
    str | None,
    typer.Option(
        "--min-effect",
        metavar="PCT",
        help="Less change than this does not count, in per cent: 2% and 2 are the same. [default: 2%]",
    ),
]
Confidence = Annotated[
    str | None,
    typer.Option("--confidence", metavar="P", help="Of the intervals, above 0.5 and below 1. [default: 0.95]"),
]


@dataclass(frozen=True)
class ReadingOptions:
    """How reports are read, by the names that `nsyspipe.load` has for them."""

    step: Step = None
    backward: Backward = None
    forward: Forward = None
    optimizer: Optimizer = None
    data: Data = None
    comm_kernel: CommKernel = None
    skip_first: SkipFirst = AUTO
    rank_map: RankMap = None

    def chosen(self, *more: str) -> dict[str, Any]:
        """Return those of every command by name, and further ones that this one has."""
        names = [one.name for one in fields(ReadingOptions)]
        return {name: getattr(self, name) for name in (*names, *more)}


@dataclass(frozen=True)
class NamedRunOptions(ReadingOptions):
    """How the reports of a run are read that is named, and how many findings are shown."""

    label: Label = None
    run_id: RunId = None
    nccl_log: NcclLog = None
    topology: TopologyFile = None
    findings: Findings = str(DEFAULT_FINDINGS)


@dataclass(frozen=True)
class OneRunOptions(ReadingOptions):
    """How the reports of one run are read."""

    nccl_log: NcclLog = None
    topology: TopologyFile = None


@dataclass(frozen=True)
class SeveralRunsOptions(ReadingOptions):
    """How the reports of several runs are read."""

    nccl_log: NcclLogs = None
    topology: TopologyFiles = None


@dataclass(frozen=True)
class RunningOptions:
    """By how many processes, and what is said meanwhile."""

    jobs: Jobs = None
    quiet: Quiet = False
    no_progress: NoProgress = False

    @property
    def is_shown(self) -> bool:
        """Whether progress is shown."""
        return not (self.quiet or self.no_progress)


@dataclass(frozen=True)
class RuleOptions:
    """What counts as a difference."""

    min_effect: MinEffect = None
    confidence: Confidence = None

    def settings(self, **more: Any) -> GateSettings:  # noqa: ANN401 - as `GateSettings` has them
        """Return them checked."""
        return GateSettings(
            min_effect=None if self.min_effect is None else parse_min_effect(self.min_effect),
            confidence=None if self.confidence is None else parse_confidence(self.confidence),
            **more,
        )


Command = TypeVar("Command", bound="Callable[..., None]")


def with_options(command: Command) -> Command:
    """Let Typer see a parameter for each annotated field of the dataclasses that a command takes."""
    given = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in given.items() if is_dataclass(one.annotation)}
    hints = {name: get_type_hints(group, include_extras=True) for name, group in groups.items()}
    own = {
        name: {one.name: one for one in fields(group) if hasattr(hints[name][one.name], "__metadata__")}
        for name, group in groups.items()
    }  # fmt: skip
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        parameter
        for name, plain in given.items()
        for parameter in (
            [inspect.Parameter(one.name, kind, default=one.default, annotation=hints[name][one.name]) for one in own[name].values()]
            if name in groups
            else [plain.replace(kind=kind)]
        )
    ]  # fmt: skip

    @functools.wraps(command)
    def called(**values: Any) -> None:  # noqa: ANN401 - of any type
        made = {name: group(**{one: values.pop(one) for one in own[name]}) for name, group in groups.items()}
        command(**values, **made)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called  # type: ignore[return-value]


def settled_here(options: GateSettings, *names: str) -> GateSettings:
    """Return what options say, and where they are silent the nearest file of settings, seen from here."""
    return settled(options, read_settings(Path.cwd()), names)


def thresholds(settings: GateSettings) -> dict[str, float]:
    """Return from where on a change counts, and how sure intervals are, by the names that the API has for them."""
    effect = settings.min_effect
    return {
        "min_effect_pct": DEFAULT_MIN_EFFECT_PCT if effect is None else round(100 * effect, 12),
        "confidence": settings.confidence or DEFAULT_CONFIDENCE,
    }


def name_file(settings: GateSettings) -> None:
    """Say on stderr which file some setting comes from, where no text does: a log always shows it."""
    if settings.path is not None:
        typer.echo(printable(f"Thresholds from {shown_path(settings)}."), err=True)


def shown_path(settings: GateSettings) -> str | None:
    """Return the file that some setting comes from as seen from here; None where none does."""
    return None if settings.path is None else os.path.relpath(settings.path)
