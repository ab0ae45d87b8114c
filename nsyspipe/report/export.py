"""The files that runs and other answers are written as, and their JSON documents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class _AnswerFormats(NamedTuple):
    """The formats of an answer, and what decides which files it may replace."""

    formats: dict[str, Format]
    # What `Format.identity_of` returns for a file of the same runs.
    identity: object
    inputs: list[Path]


# By the name of the option. `--help` lists them in this order.
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
FORMAT_OF_SUFFIX = {
    suffix: name for name, run_format in FORMATS.items() for suffix in run_format.suffixes
}


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
    from nsyspipe.run.run import Run

    check_flags(force=force)
    path_text = path_of("path", path, "run.html")
    target = Path(path_text)
    if not target.name:
        # The path is empty or a directory, so this always raises.
        files.check_place_for_file(path_text, "run.html")
    if isinstance(answer, Run):
        _write_run(answer, path_text, steps=steps, ranks=ranks, force=force)
    else:
        # Refused below if given, because only a run can be written as a trace.
        _write_other_answer(answer, path_text, steps=steps, ranks=ranks, force=force)
    return target


def _write_other_answer(
    answer: object, path_text: str, *, steps: object, ranks: object, force: bool
) -> None:
    """Write an answer other than a run. Refuse any `steps` and `ranks`."""
    target = Path(path_text)
    answer_formats = _answer_formats(answer)
    format_name = _format_name(target, answer_formats.formats, is_run=False)
    answer_format = answer_formats.formats[format_name]
    _check_trace_options(steps=steps, ranks=ranks)
    files.check_place_for_file(path_text, target.name)

    def may_replace() -> bool:
        is_file_of_answer = answer_format.identity_of(target) == answer_formats.identity
        return force or is_file_of_answer

    files.write_text(target, answer_format.text(), answer_formats.inputs, may_replace=may_replace)


def _write_run(
    run: Run, path_text: str, *, steps: Steps | int, ranks: AskedRanks, force: bool
) -> None:
    """Write a run.

    `steps` and `ranks` are None unless the user gave them. They are refused for any format but a
    trace.
    """
    from nsyspipe.analysis.steps import check_steps

    target = Path(path_text)
    format_name = _format_name(target, FORMATS, is_run=True)
    if format_name != "perfetto":
        _check_trace_options(steps=steps, ranks=ranks)
    files.check_place_for_file(path_text, target.name)
    run_format = FORMATS[format_name]
    chosen_steps = None if steps is None else check_steps(run.steps(), steps)
    # Formats other than a trace have no argument `ranks`.
    options = {} if ranks is None else {"ranks": run.chosen_ranks(ranks)}

    def may_replace() -> bool:
        is_file_of_run = run_format.identity_of(target) == run.header.run_id
        return force or is_file_of_run

    with files.writing(target, run.inputs, may_replace=may_replace) as file:
        run_format.write(run, file, chosen_steps, on_progress=None, **options)


def _format_name(target: Path, formats: Iterable[str], *, is_run: bool) -> str:
    """Return the format that the suffix of a file chooses.

    Raises an `OptionError` if the suffix is of no format, or of a format not in `formats`.
    """
    chosen_name = FORMAT_OF_SUFFIX.get(target.suffix.lower(), "")
    if chosen_name in formats:
        return chosen_name
    possible_suffixes = [suffix for suffix, name in FORMAT_OF_SUFFIX.items() if name in formats]
    # A path such as `.json` has a name but no suffix, so the fix needs another name.
    is_hidden_file = target.name.startswith(".")
    stem = target.with_name("run") if is_hidden_file else target.with_suffix("")
    is_for_store = is_run and target.suffix == ".parquet"
    fix = f"export.parquet(run, '{stem}/')" if is_for_store else f"{stem}.html"
    problem = f"has the suffix {target.suffix!r}"
    raise OptionError(str(target), problem, found=", ".join(possible_suffixes), fix=fix)


def _check_trace_options(*, steps: object, ranks: object) -> None:
    """Refuse steps and ranks that are not None. Call it if the format is not a trace."""
    for option, value in (("ranks", ranks), ("steps", steps)):
        if value is not None:
            argument = f"{option}={short_repr(value)}"
            fix = f"run.pftrace, or no {option}"
            raise OptionError(argument, "belongs to a trace", fix=fix)


def _answer_formats(answer: object) -> _AnswerFormats:
    """Return the formats of an answer other than a run.

    Raises an `OptionError` for any other object.
    """
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
    inputs = [path for run in runs for path in run.inputs]
    return _AnswerFormats(formats, identity, inputs)


def dashboard(
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    pages: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Path:
    """Write a dashboard of all runs of a run store, and return its path.

    The dashboard has a table of the runs and, for four or more runs, a chart of step time.

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
    store_path = Path(path_of("store", store, "dashboard('runs/', 'runs.html')"))
    target = path_of("path", path, "runs.html")
    if is_one_run(store_path):
        store_of_run, _ = find_saved(store_path)
        fix = f"dashboard({str(store_of_run)!r}, {target!r})"
        raise OptionError(f"store={str(store_path)!r}", "is one run, not a run store", fix=fix)
    check_dashboard(target, store_path, force=force)
    pages_path = None if pages is None else Path(path_of("pages", pages, "pages='pages/'"))
    page = store_page(store_path, Path(target), pages_path, force=force)
    # `check_dashboard` has refused a file that may not be replaced.
    files.write_text(Path(target), page.text, [store_path], may_replace=lambda: True)
    return Path(target)


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
    store_path = Path(path_of("store", store, "parquet(run, 'runs/')"))
    save(run, store_path, events=events, force=force)
    return Path(place_of(store_path, run.header.run_id))


def document(run: Run | RunDifference | Scoreboard | WhatIf) -> dict[str, Any]:
    """Return the JSON document of an answer as plain Python values.

    The order is fixed, the units are base units, and null means "not recorded".
    """
    from nsyspipe.analysis.counted_steps import counted_figures
    from nsyspipe.analysis.traffic import parallelism
    from nsyspipe.model.schema import DOCUMENTED
    from nsyspipe.model.table import SCHEMA_VERSION
    from nsyspipe.report.run_answers import mean_step_document, recommendations_document
    from nsyspipe.run.run import Run

    if not isinstance(run, Run):
        formats = _answer_formats(run).formats
        return json.loads(formats["json"].text())  # type: ignore[no-any-return]
    tables: dict[str, Any] = {
        key: run.table(schema.name).to_pylist() for key, schema in DOCUMENTED.items()
    }
    if not run.has_peer_records:
        # An empty table would mean that nothing was sent.
        tables["peers"] = None
    # The document leaves out what only the Python API has.
    tables["ranks"] = run.ranks.drop_columns(["device_ids", "clock_shift_ns"]).to_pylist()
    header = asdict(run.header)
    header["parallelism"] = parallelism(run.traffic())
    evenness = run.evenness()
    evenness_document = None if evenness is None else asdict(evenness)
    nccl_document = None if run.nccl is None else asdict(run.nccl)
    findings = [_documented_finding(row) for row in run.finding_rows]
    counters = counted_figures(run.counters(), run.steps(), run.collectives())
    answers = {
        "mean_step": mean_step_document(run),
        "recommendations": recommendations_document(run),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": header,
        "summary": _summary_document(run),
        **answers,
        "evenness": evenness_document,
        **tables,
        "counters": counters,
        "nccl": nccl_document,
        "findings": findings,
        "problems": run.problem_rows,
    }


def _summary_document(run: Run) -> dict[str, Any]:
    """Return the counts of steps, then all other figures of the run, then figures by rank."""
    from nsyspipe.model.schema import FIGURES_OF_RANKS

    (summary_row,) = run.summary().to_pylist()
    figures: dict[str, Any] = {**summary_row}
    step_counts = {name: figures.pop(name) for name in ("n_steps", "n_summary_steps")}
    extremes = _extremes_by_rank(run, ("step_time_ns", *FIGURES_OF_RANKS))
    skipped = {"skipped_steps": run.skipped_steps}
    return step_counts | skipped | figures | {"by_rank": extremes}


def _documented_finding(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `findings` whose evidence is values in place of JSON text."""
    evidence = json.loads(row["evidence"])
    return row | {"evidence": evidence}


def _extremes_by_rank(run: Run, figures: Iterable[str]) -> dict[str, dict[str, list[float]] | None]:
    """Return which ranks have the lowest and the highest value of each figure.

    Per figure: ``{"lowest": [rank, value], "highest": [rank, value]}``. Of several ranks with the
    same value, the first is taken. A figure that no rank has a value of is None.
    """
    rows: list[dict[str, Any]] = [{**row} for row in run.rank_summary().to_pylist()]
    value_of_pair = itemgetter(1)
    extremes: dict[str, dict[str, list[float]] | None] = {}
    for name in figures:
        rank_and_value = [[row["rank"], row[name]] for row in rows if row[name] is not None]
        extremes[name] = None
        if rank_and_value:
            lowest = min(rank_and_value, key=value_of_pair)
            highest = max(rank_and_value, key=value_of_pair)
            extremes[name] = {"lowest": lowest, "highest": highest}
    return extremes
