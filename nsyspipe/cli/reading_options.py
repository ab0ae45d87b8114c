"""The options that say how reports are read: the same in every command that reads some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsyspipe.labels import PHASE_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Backward",
    "CommKernel",
    "Data",
    "Findings",
    "Forward",
    "Jobs",
    "Label",
    "NcclLog",
    "Optimizer",
    "RankMap",
    "RunId",
    "SkipFirst",
    "Step",
    "TopologyFile",
    "chosen",
]

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
