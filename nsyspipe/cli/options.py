"""The options that several commands share: how reports are read, what is written, what counts as a difference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsyspipe.comparison.gate import GateSettings, read_settings, settled
from nsyspipe.model.names import PHASE_PATTERNS
from nsyspipe.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping


# The options that say which results are written: the same in every command that makes them.


Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Save the run in a dataset of Parquet files, beside others; analyze takes it in place of reports.",
    ),
]
Events = Annotated[
    bool, typer.Option("--events", help="With --out: save every device operation too.")
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", help="Write the JSON document; - prints it and nothing else."
    ),
]
Markdown = Annotated[
    str | None,
    typer.Option(
        "--markdown",
        metavar="FILE|-",
        help="Write a summary for a pull request; - prints it and nothing else.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write one self-contained page with charts."),
]
Perfetto = Annotated[
    str | None,
    typer.Option(
        "--perfetto", metavar="FILE", help="Write a trace of all ranks for ui.perfetto.dev."
    ),
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
    bool,
    typer.Option(
        "--force", help="Judge runs that are not comparable; replace outputs of other runs."
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="No summary and no progress: errors and asked-for outputs only."
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar.")]


# The parameters of every command that reads reports, by the names that `nsyspipe.load` has for them.
_NAMES = (
    "step", "backward", "forward", "optimizer", "data", "comm_kernel", "skip_first", "rank_map",
)  # fmt: skip


def chosen(given: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return the reading options of a command's parameters.

    Parameters
    ----------
    given
        All of its parameters by name: its ``locals()``.
    more
        Further ones that it has.
    """
    return {name: given[name] for name in (*_NAMES, *more)}


def _phase(name: str) -> Any:  # noqa: ANN401 - typer's own type
    return typer.Option(
        f"--{name}",
        metavar="REGEX",
        help=f"NVTX ranges of the {name} phase. [default: {PHASE_PATTERNS[name]}]",
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
    str | None,
    typer.Option("--comm-kernel", metavar="REGEX", help="Communication kernels besides NCCL's."),
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
    str | None,
    typer.Option("--rank-map", metavar='FILE|"a.sqlite=0,..."', help="Rank of each report."),
]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="TEXT", help="Name of the run. [default: from the file names]"),
]
RunId = Annotated[
    str | None,
    typer.Option(
        "--run-id", metavar="TEXT", help="Identifier of the run. [default: from the capture]"
    ),
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
    str | None,
    typer.Option(
        "--topology",
        metavar="FILE",
        help="Output of nvidia-smi topo -m: NVLink, or PCIe.",
    ),
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
    list[str] | None,
    typer.Option(
        "--topology", metavar="[LABEL=]FILE", help="Output of nvidia-smi topo -m, likewise."
    ),
]
Findings = Annotated[
    str,
    typer.Option(
        "--findings",
        metavar="N|all",
        help="How many findings to print; all adds the phases and the whole advice.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        help="Processes. [default: cores, capped by memory and use]",
    ),
]


# What counts as a difference, for diff and compare alike: options, and the file that is named where it says so.


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
    typer.Option(
        "--confidence",
        metavar="P",
        help="Of the intervals, above 0.5 and below 1. [default: 0.95]",
    ),
]


def settled_here(options: GateSettings, *names: str) -> GateSettings:
    """Return what options say, and where they are silent the nearest file of settings, seen from here.

    Parameters
    ----------
    names
        The settings that count.

    Raises
    ------
    OptionError
        If the file cannot be used, or is not the user's own.
    """
    return settled(options, read_settings(Path.cwd()), names)


def name_file(settings: GateSettings) -> None:
    """Say on stderr which file some setting comes from, where no text does: a log always shows it."""
    if settings.path is not None:
        typer.echo(printable(f"Thresholds from {shown_path(settings)}."), err=True)


def shown_path(settings: GateSettings) -> str | None:
    """Return the file that some setting comes from as seen from here; None where none does."""
    return None if settings.path is None else os.path.relpath(settings.path)
