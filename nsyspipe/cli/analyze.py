"""``nsyspipe analyze``: the main job."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from nsyspipe.cli.inputs import ONE_RUN, opened_run
from nsyspipe.cli.options import NamedRunOptions, RunningOptions, with_options
from nsyspipe.cli.outputs import AnalysisOutputs, print_error, write_stdout
from nsyspipe.errors import OptionError
from nsyspipe.model.options import DEFAULT_FINDINGS, parse_findings

_GLOB = re.compile(r"^[\w./*?\[\]-]*[*?\[][\w./*?\[\]-]*$")
# Letters of the names of reports in a suggested command.
MAX_LETTERS_OF_REPORTS = 100
_STRICT = "Exit with 2 if there is an error or a warning about the reports."


def _repeated(reports: Sequence[str], reading: NamedRunOptions) -> str | None:
    """Return the reports as words of a shell, to suggest a further command about them.

    The result is None if the names are too long, or with options that change the metrics, because
    the command would need these too.
    """
    # The options of the run, without those that change only what is shown.
    options_of_metrics = replace(reading, findings=str(DEFAULT_FINDINGS), top=None, verbose=False)
    if options_of_metrics != NamedRunOptions():
        return None
    words = " ".join(map(_quoted, reports))
    return words if len(words) <= MAX_LETTERS_OF_REPORTS else None


def _quoted(name: str) -> str:
    """Return the name of reports as a word of a shell. A glob is in double quotes, as in help."""
    is_glob = _GLOB.search(name) is not None
    return f'"{name}"' if is_glob else shlex.quote(name)


@with_options
def analyze(
    reports: Annotated[
        list[str],
        typer.Argument(metavar="REPORTS...", help=f"{ONE_RUN} Several paths together are one run."),
    ],
    *,
    reading: NamedRunOptions,
    outputs: AnalysisOutputs,
    running: RunningOptions,
    strict: Annotated[bool, typer.Option("--strict", help=_STRICT)] = False,
) -> None:
    """Show where the time of each step goes, and what to change first.

    \b
    Examples:
      nsyspipe analyze ddp-8gpu_*.sqlite
      nsyspipe analyze "ddp-8gpu_*.sqlite" --step '^iter' --skip-first 3
      nsyspipe analyze reports/ --json - | jq .summary.exposed_comm_share
      nsyspipe analyze reports/ --top 10 --csv costs.csv
      nsyspipe analyze "ddp-8gpu_*.sqlite" --nccl-log "nccl_*.log" --topology topo.txt
      nsyspipe analyze a.sqlite b.sqlite --rank-map "a.sqlite=0,b.sqlite=1"
      nsyspipe analyze "ddp-8gpu_*.sqlite" --html run.html --out runs/ --label baseline
      nsyspipe analyze runs:baseline --markdown -
    """
    n_findings = parse_findings(reading.findings)
    outputs.check_run(reading.run_id)
    is_summary_asked = not (running.quiet or outputs.printed)
    with opened_run(reports, reading, running) as (run, stage):
        # The reports are read now.
        _ = run.steps()
        outputs.write_run(run, stage, reading.top, quiet=running.quiet)
        # The findings may read the reports again, so they are made while there are processes.
        if is_summary_asked:
            _ = run.findings()
    if is_summary_asked:
        from rich.console import Console

        from nsyspipe.report.run import summary_text

        text = summary_text(
            run,
            Console(),
            n_findings=n_findings,
            n_top=reading.top,
            is_verbose=reading.verbose,
            reports=_repeated(reports, reading),
        )
        write_stdout(text)
    problem_codes = [row["code"] for row in run.problem_rows if row["severity"] != "info"]
    if strict and problem_codes:
        n_problems = len(problem_codes)
        noun = "problem" if n_problems == 1 else "problems"
        distinct_codes = ", ".join(dict.fromkeys(problem_codes))
        problem = f"{n_problems} {noun}: {distinct_codes}"
        fix = "fix each problem as shown, or leave out --strict"
        print_error(OptionError("--strict", problem, fix=fix))
        raise typer.Exit(2)
