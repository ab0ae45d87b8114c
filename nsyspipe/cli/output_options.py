"""The options that say which results are written: the same in every command that makes them."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "Events",
    "Force",
    "Html",
    "Json",
    "Markdown",
    "NoProgress",
    "Out",
    "Perfetto",
    "PerfettoSteps",
    "Quiet",
]

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
