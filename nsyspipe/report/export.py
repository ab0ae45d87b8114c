"""The files that runs and other answers are written as: how each is made, whose one that is there is, and JSON documents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model.options import check_flags, path_of
from nsyspipe.report import files
from nsyspipe.report.formats import Format, Steps, dumps, lazily
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from nsyspipe.comparison.difference import RunDifference
    from nsyspipe.comparison.scoreboard import Scoreboard
    from nsyspipe.replay.answer import WhatIf
    from nsyspipe.run.run import AskedRanks, Run

__all__ = ["dashboard", "document", "parquet", "write"]


def __dir__() -> list[str]:
    return __all__


FORMATS = {
    "json": Format(
        lambda run: dumps(document(run)),
        files.run_id_of_document,
        suffixes=(".json",),
        help="Write JSON. - prints only the JSON.",
    ),
    "markdown": Format(
        lazily("markdown", "markdown"),
        lazily("markdown", "run_id_of_markdown"),
        suffixes=(".md",),
        help="Write a Markdown summary for a pull request. - prints only the Markdown.",
        has_top=True,
    ),
    "csv": Format(
        lazily("costs", "costs_csv"),
        lazily("costs", "run_id_of_csv"),
        suffixes=(".csv",),
        help=(
            "Write the tables of --top as CSV, with a column that names the table. - prints only "
            "the CSV."
        ),
    ),
    "html": Format(
        lazily("html.run_page", "run_page"),
        lazily("html.page", "run_id_of_page"),
        suffixes=(".html",),
        help="Write an HTML report: one self-contained file with charts.",
        is_printed=False,
        has_top=True,
    ),
    "perfetto": Format(
        None,
        lazily("perfetto", "run_id_of_trace"),
        suffixes=(".pftrace", ".perfetto-trace"),
        help="Write a trace for ui.perfetto.dev.",
        is_printed=False,
        write_trace=lazily("perfetto", "perfetto"),
    ),
}
SUFFIXES = {suffix: name for name, one in FORMATS.items() for suffix in one.suffixes}


def write(
    answer: Run | RunDifference | Scoreboard | WhatIf,
    path: str | os.PathLike[str],
    *,
    steps: Steps | int = None,
    ranks: AskedRanks = None,
    force: bool = False,
) -> Path:
    """Write a run, a difference, a scoreboard or a what-if to one file, and return its path.

    The suffix of the file chooses the format.

    Parameters
    ----------
    answer
        The result of `nsyspipe.load`, `nsyspipe.diff`, `nsyspipe.compare` or `nsyspipe.whatif`.
    path
        A name that ends in ``.json``, ``.md`` or ``.html``. A run and a scoreboard also have
        ``.csv``. A run also has ``.pftrace`` for Perfetto. A file of the same runs is replaced.
    steps
        For a trace: the first and the last step, by number, or one step. By default, the trace has
        the whole capture.
    ranks
        For a trace: its ranks, or one rank. By default, the trace has all of up to 8 ranks. If
        there are more, it has the ranks that differ most.
    force
        Also replace a file that is not of these runs.

    Raises
    ------
    OptionError
        If the suffix is unknown, there is no such step or rank, or a step or rank is given for
        another format than a trace.
    OutputError
        If the file cannot be written, is not of these runs, or is one of their inputs. The file
        stays unchanged.
    """
    from nsyspipe.analysis.steps import check_steps
    from nsyspipe.run.run import Run

    check_flags(force=force)
    path = Path(given := path_of("path", path, "run.html"))
    if not path.name:
        files.check_directory(given, "run.html")
    name = SUFFIXES.get(path.suffix.lower(), "")
    formats, identity, inputs = ({}, None, []) if isinstance(answer, Run) else _of_answer(answer)
    known = FORMATS if isinstance(answer, Run) else formats
    if name not in known:
        found = ", ".join(suffix for suffix, one in SUFFIXES.items() if one in known)
        is_store = isinstance(answer, Run) and path.suffix == ".parquet"
        stem = path.with_name("run") if path.name.startswith(".") else path.with_suffix("")
        fix = f"export.parquet(run, '{stem}/')" if is_store else f"{stem}.html"
        raise OptionError(str(path), f"has the suffix {path.suffix!r}", found=found, fix=fix)
    of_trace = {
        what: given for what, given in (("steps", steps), ("ranks", ranks)) if given is not None
    }
    if of_trace and name != "perfetto":
        what, asked = of_trace.popitem()
        raise OptionError(
            f"{what}={short_repr(asked)}", "belongs to a trace", fix=f"run.pftrace, or no {what}"
        )
    files.check_directory(given, path.name)
    if not isinstance(answer, Run):
        text = formats[name].text()
        files.write_text(
            path,
            text,
            inputs,
            may_replace=lambda: force or formats[name].identity_of(path) == identity,
        )
        return path
    chosen = FORMATS[name]
    run_id = answer.header.run_id
    shown = None if steps is None else check_steps(answer.steps(), steps)
    some = {} if ranks is None else {"ranks": answer.chosen_ranks(ranks)}
    with files.writing(
        path, answer.inputs, may_replace=lambda: force or chosen.identity_of(path) == run_id
    ) as file:
        chosen.write(answer, file, shown, None, **some)
    return path


def _of_answer(answer: object) -> tuple[dict[str, Format], object, list[Path]]:
    from nsyspipe.comparison.difference import RunDifference
    from nsyspipe.comparison.scoreboard import Scoreboard
    from nsyspipe.replay.answer import WhatIf
    from nsyspipe.report import difference, scoreboard, whatif
    from nsyspipe.run.run import Run

    match answer:
        case RunDifference():
            formats = difference.difference_formats(answer)
            identity = difference.identity_of(answer)
            runs = [*answer.baseline.runs, *answer.candidate.runs]
        case Scoreboard():
            formats = scoreboard.scoreboard_formats(answer)
            identity = scoreboard.identity_of(answer)
            runs = [run for side in answer.sides for run in side.runs]
        case WhatIf(run=Run() as run):
            formats = whatif.whatif_formats(answer, run)
            identity = answer.run_id
            runs = [run]
        case _:
            needed = "a run, a difference, a scoreboard or a what-if"
            raise OptionError.of_kind("answer", answer, needed, "write(load(RUN), PATH)")
    return formats, identity, [path for run in runs for path in run.inputs]


def dashboard(
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    pages: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Path:
    """Write a dashboard of all runs of a run store, and return its path.

    The dashboard shows which runs got faster or slower, and since when.

    Parameters
    ----------
    store
        Directory of the run store that `nsyspipe.export.parquet` wrote.
    path
        Output file. An existing dashboard is replaced.
    pages
        Also write the HTML report of each run into this directory, and link to it. By default, the
        dashboard links to existing HTML reports in ``pages/`` next to the dashboard, in the
        directory of the dashboard, or in the store.
    force
        Also replace a file that is not a dashboard, and write all HTML reports again.

    Raises
    ------
    DatasetError
        If the store has no run, or if no run can be read. If some runs cannot be read, the
        dashboard lists them.
    OutputError
        If a file cannot be written, or if it is not a dashboard.
    """
    from nsyspipe.report.html.dashboard_page import check_dashboard, store_page
    from nsyspipe.store.choice import find_saved
    from nsyspipe.store.layout import is_one_run

    check_flags(force=force)
    place = Path(path_of("store", store, "dashboard('runs/', 'runs.html')"))
    given = path_of("path", path, "runs.html")
    if is_one_run(place):
        fix = f"dashboard({str(find_saved(place)[0])!r}, {given!r})"
        raise OptionError(f"store={str(place)!r}", "is one run, not a run store", fix=fix)
    check_dashboard(given, place, force=force)
    into = None if pages is None else Path(path_of("pages", pages, "pages='pages/'"))
    text, *_ = store_page(place, Path(given), into, force=force)
    files.write_text(Path(given), text, [place], may_replace=lambda: True)
    return Path(given)


def parquet(
    run: Run, store: str | os.PathLike[str], *, events: bool = False, force: bool = False
) -> Path:
    """Save a run in a run store, and return the path of the run, which `nsyspipe.load` reads.

    Parameters
    ----------
    run
        The run.
    store
        Directory of the run store, created if missing. A run with the same ID is replaced. Its
        saved operations are kept if they are of the same reports and were read in the same way.
    events
        Also save every operation.
    force
        Replace a run of other reports, even if its saved operations are lost.

    Raises
    ------
    OptionError
        If the ID of the run cannot be the name of a directory.
    OutputError
        If the store cannot be written, or if saved operations would be lost. The store stays
        unchanged.
    """
    from nsyspipe.run.run import Run
    from nsyspipe.store.layout import place_of
    from nsyspipe.store.write import save

    if not isinstance(run, Run):
        raise OptionError.of_kind("run", run, "a run", "parquet(load(REPORTS), 'runs/')")
    check_flags(events=events, force=force)
    place = Path(path_of("store", store, "parquet(run, 'runs/')"))
    save(run, place, events=events, force=force)
    return Path(place_of(place, run.header.run_id))


def document(run: Run | RunDifference | Scoreboard | WhatIf) -> dict[str, Any]:
    """Return the JSON document of an answer as plain Python values.

    The order is fixed, the units are base units, and null means "not recorded".
    """
    from nsyspipe.analysis.traffic import parallelism
    from nsyspipe.model.schema import DOCUMENTED, FIGURES_OF_RANKS
    from nsyspipe.model.table import SCHEMA_VERSION
    from nsyspipe.run.run import Run

    if not isinstance(run, Run):
        return json.loads(_of_answer(run)[0]["json"].text())  # type: ignore[no-any-return]
    summary = run.summary().to_pylist()[0]
    tables = {key: run.table(one.name).to_pylist() for key, one in DOCUMENTED.items()}
    tables["ranks"] = run.ranks.drop_columns(
        ["device_ids", "clock_shift_ns"]
    ).to_pylist()  # which only the API has
    counts = {name: summary.pop(name) for name in ("n_steps", "n_summary_steps")}
    more = {"by_rank": _extremes(run, ("step_time_ns", *FIGURES_OF_RANKS))}
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": asdict(run.header) | {"parallelism": parallelism(run.traffic())},
        "summary": counts | {"skipped_steps": run.skipped_steps} | summary | more,
        "evenness": None if (even := run.evenness()) is None else asdict(even),
        **tables,
        "nccl": None if run.nccl is None else asdict(run.nccl),
        "findings": [row | {"evidence": json.loads(row["evidence"])} for row in run.finding_rows],
        "problems": run.problem_rows,
    }


def _extremes(run: Run, figures: Iterable[str]) -> dict[str, dict[str, list[float]] | None]:
    # in order of rank
    rows = run.rank_summary().to_pylist()
    by = itemgetter(1)
    known = {
        name: [[row["rank"], row[name]] for row in rows if row[name] is not None]
        for name in figures
    }
    return {
        one: {"lowest": min(of, key=by), "highest": max(of, key=by)} if of else None
        for one, of in known.items()
    }
