"""Save a run in a store: its tables with the run's id, switched to in one step."""

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nsyspipe.errors import DatasetError, OutputError
from nsyspipe.model import schema
from nsyspipe.model.options import OnProgress
from nsyspipe.model.schema import DATASET, EVENT_TABLES, METRICS, RUN_TABLES, RUNS
from nsyspipe.model.table import FLOAT, INT, SCHEMA_VERSION, TEXT
from nsyspipe.nsys.find_reports import EXPORT_SUFFIX, RAW_SUFFIXES, has_reports, reports_near
from nsyspipe.run.run import Run
from nsyspipe.run.work import Work
from nsyspipe.store.commit import Locked, Staged, locked, staged_run
from nsyspipe.store.index import WORK, index_row, read_index, read_index_row
from nsyspipe.store.layout import (
    INDEX_FILE,
    RUN_ID,
    RUNS_FILE,
    check_run_id,
    file_name,
    run_ids,
    table_of_file,
)
from nsyspipe.store.read import check_values, content_of, digest_of, nulls_first
from nsyspipe.store.saved_run import Details, SavedCheck, SavedRun
from nsyspipe.version import __version__

_PLACES = (
    "rank",
    "step",
    "start_ns",
    "end_ns",
)  # of a step, these say where it lies; they are no figures
_ROWS_PER_GROUP = 1_000_000
_FORMAT = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
_LONG = (
    "details",
    WORK,
)  # texts that a file's footer would have four times, as the least and the greatest
# What operations and ranges are counted and summed up in: who reads them otherwise gets other
# figures here.
_DECIDING = ("steps", "phases", "kernels", "collectives", "timeline")
_OF_PROCESS = ["rank", "pid", "device_id", "n_kernels", "clock_shift_ns"]
# runs that the index lacks, as of a store copied without it: more are left to the next save
_MOST_ADDED = 100


def runs_table(run: Run, files: Mapping[str, str]) -> pa.Table:
    """Return the table `runs`: the run's row, with the digests of all other files that are saved with it, by name."""
    checks = [SavedCheck([*check.rules], check.reason, check.fix) for check in run.skipped_checks]
    details = asdict(
        Details(
            run.header, run.skipped_steps, run.nccl, run.link, run.host_steps().num_rows, checks
        )
    )
    header = details["header"]
    captured = run.header.captured_at_utc
    known = run.link.slowest if run.link else None
    findings = run.finding_rows
    first = [*findings, dict.fromkeys(schema.FINDINGS.names)][0]
    row = {
        **{
            name: ", ".join(value) if isinstance(value, list) else value
            for name, value in header.items()
        },
        "captured_at_utc": datetime.fromisoformat(captured) if captured else None,
        "step_family": run.step_family,
        **run.summary().to_pylist()[0],
        "link_kind": known.kind if known else None,
        "nccl_version": run.nccl.version if run.nccl else None,
        "environment": None
        if run.header.environment is None
        else json.dumps(run.header.environment),
        "n_findings": len(findings),
        "first_finding": first["id"],
        "first_action": first["action"],
        "first_saving_ns_per_step": first["saving_ns_per_step"],
        "tool_version": __version__,
        "schema_version": SCHEMA_VERSION,
        "definitions_version": run.definitions_version,
        "details": json.dumps(
            details | {"files": dict(sorted(files.items())), WORK: Work.of([run]).saved()}
        ),
    }
    return RUNS.from_rows([row])


def _metrics(run: Run) -> pa.Table:
    wide = (
        (run.summary(), schema.SUMMARY),
        (run.rank_summary(), schema.RANK_SUMMARY),
        (run.steps(), schema.STEPS),
    )
    tables = []
    for table, kind in wide:
        n_rows = table.num_rows
        there = table.column_names
        of_row = {
            name: table[name] if name in there else pa.nulls(n_rows)
            for name in ("rank", "step", "in_summary")
        }
        for one in (c for c in kind.columns if c.type in (INT, FLOAT) and c.name not in _PLACES):
            of_figure = {"metric": pa.repeat(one.name, n_rows), "unit": pa.repeat(one.unit, n_rows)}
            tables.append(
                METRICS.table(
                    of_row | of_figure | {"value": pc.cast(table[one.name], FLOAT, safe=False)}
                )
            )
    return nulls_first(pa.concat_tables(tables).combine_chunks(), METRICS.key)


def save(
    run: Run,
    store: Path,
    *,
    events: bool = False,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> None:
    """Write a run's tables; they replace what the store has of the same run id, and nothing else.

    Who reads by `nsyspipe` gets the old run or the new one; `layout` says what others may see
    meanwhile. Two writers may be at work at once; of one run id the later wins. The same run gives
    the same bytes.

    Tables that are there and not written now, as the operations without `events`, are kept where
    the steps, phases, kernels and collectives that they belong to are the same, to the nanosecond.
    Operations of any other run are not replaced without `force`. What is of no table of the dataset
    is somebody else's, and left alone.

    With `events` the operations are written too, one file per rank, and `on_progress` is called
    with (ranks written, ranks in all). An `OptionError` if the run's id cannot name a directory
    that all readers take for text, an `OutputError` if the store cannot be written, the reports lie
    in it, or tables would be lost; it is as it was.
    """
    run_id = run.header.run_id
    check_run_id(run_id)
    check_store(run, store)
    # The timeline first: workers read for it while the rest is made here.
    names = dict.fromkeys(["timeline", *(name for name in RUN_TABLES if name in DATASET)])
    tables = {name: run.table(name) for name in names}
    # In the words of the commands.
    tables["problems"] = schema.PROBLEMS.from_rows(run.problem_rows)
    tables["findings"] = schema.FINDINGS.from_rows(run.finding_rows)
    with staged_run(store, run_id) as staged:
        files: dict[str, str] = {}
        for name, table in tables.items():
            files |= _write(staged, name, table)
        files |= _write(staged, "metrics", _metrics(run))
        if events:
            for n_done, (rank, *found) in enumerate(run.operations(), start=1):
                for name, table in zip(EVENT_TABLES, found, strict=True):
                    files |= _write(staged, name, table, rank)
                if on_progress:
                    on_progress(n_done, run.ranks.num_rows)
        with locked(store) as opened:
            files |= _kept(run, store, opened, {*files, RUNS_FILE}, force=force)
            row = runs_table(run, files)
            digest = _write(staged, RUNS.name, row)[RUNS_FILE]
            opened.commit(staged, files)
            _update_index(store, opened, staged, index_row(row, run_id, digest))


def _kept(
    run: Run, store: Path, opened: Locked, brought: Collection[str], *, force: bool
) -> Mapping[str, str]:
    """Return the digests of the files that the run keeps beside those written; refuse to lose what only reports give again."""
    run_id = run.header.run_id
    there = opened.files_of(run_id)
    operations = {name for name in there if table_of_file(name) in EVENT_TABLES}
    # Of a run without operations each table is replaced, and needs not be readable.
    tables = {table_of_file(name) for name in brought}
    others = {
        name
        for name in there - set(brought)
        if name in operations or table_of_file(name) not in tables
    }
    at_risk = others | operations
    if not at_risk and (RUNS_FILE in there or not there):
        return {}
    if (
        RUNS_FILE in there
        and (kept := _same_files(run, Path(os.path.realpath(store)), others)) is not None
    ):
        return kept
    if force:
        return {}
    lost = sorted({table_of_file(name) or "" for name in at_risk or there})
    what = (
        "of other reports, or read with other options or by an older nsyspipe"
        if RUNS_FILE in there
        else "and no such run"
    )
    fix = "use --run-id with another name, or --force to replace the old run"
    raise OutputError(
        str(store), f"has {', '.join(lost)} of run {run_id}, {what}, so nothing was saved", fix=fix
    )


def _same_files(run: Run, store: Path, names: set[str]) -> dict[str, str] | None:
    old = SavedRun(store, run.header.run_id)
    with contextlib.suppress(DatasetError):  # nobody can tell
        is_same = old.step_family == run.step_family
        is_same = is_same and all(
            getattr(old, name)().equals(getattr(run, name)()) for name in _DECIDING
        )
        if is_same and old.ranks.select(_OF_PROCESS).equals(run.ranks.select(_OF_PROCESS)):
            return {name: old.files.digest(name) for name in sorted(names)}
    return None


def check_store(run: Run, store: Path) -> None:
    """Refuse a directory in which reports lie: whoever names it next would get the saved run, not them; and ``STORE:NAME``."""
    place, colon, name = str(store).rpartition(":")
    if colon and not store.exists():
        fix = f"--out {place}/ (to set the label of reports use --label {name!r})"
        raise OutputError(str(store), "names a run of a run store, not a directory", fix=fix)
    where = Path(os.path.realpath(store))  # resolve() fails on a link to itself
    # Of the inputs a directory is a saved run.
    if any(Path(os.path.realpath(one)).parent == where for one in run.inputs if not one.is_dir()):
        raise OutputError(
            str(store), "is the directory of the reports", fix=f"--out {store / 'runs'}"
        )
    if has_reports(store, (EXPORT_SUFFIX, *RAW_SUFFIXES)) and not any(run_ids(store)):
        problem = "contains reports, but no saved run"
        fix = f"--out {store / 'runs'}"
        raise OutputError(str(store), problem, found=reports_near(store), fix=fix)


def _write(staged: Staged, name: str, table: pa.Table, rank: int | None = None) -> dict[str, str]:
    ids = pa.DictionaryArray.from_arrays(
        np.zeros(table.num_rows, np.int32), pa.array([staged.run_id])
    )
    whole = DATASET[name].table(
        {column_name: table[column_name] for column_name in table.column_names} | {"run_id": ids}
    )
    try:
        check_values(whole, DATASET[name])
    except ValueError as error:
        problem = (
            f"cannot hold the table {name}: {' '.join(str(error).split())}, so nothing was saved"
        )
        fix = "use other outputs, and check the report with doctor REPORTS"
        raise OutputError(staged.run_id, problem, fix=fix) from error
    content = _encoded(whole)
    file = file_name(name, rank)
    with staged.tables.create(file) as opened:
        opened.write(content)
    return {file: digest_of(content)}


def _update_index(store: Path, opened: Locked, staged: Staged, saved: pa.Table) -> None:
    """Put the run that was saved into the store's index; what fails of that costs readers time, and no more."""
    with contextlib.suppress(OSError, ValueError, DatasetError):
        ids = {*filter(RUN_ID.fullmatch, run_ids(store))} - {staged.run_id}
        known = read_index(store)
        rows = [known.filter(pc.is_in(known["run_id"], pa.array(ids, pa.string()))), saved]
        for run_id in sorted(ids.difference(known["run_id"].to_pylist()))[:_MOST_ADDED]:
            with contextlib.suppress(DatasetError):
                rows.append(read_index_row(store, run_id, content_of(store, run_id, RUNS_FILE)))
        with staged.own.create(INDEX_FILE) as file:
            file.write(_encoded(pa.concat_tables(rows)))
        os.rename(INDEX_FILE, INDEX_FILE, src_dir_fd=staged.own.fd, dst_dir_fd=opened.hidden.fd)


def _encoded(table: pa.Table) -> pa.Buffer:
    texts = [one.name for one in table.schema if one.type == TEXT or one.name == "run_id"]
    times = [one.name for one in table.schema if one.type == INT and one.name.endswith("_ns")]
    written = pa.BufferOutputStream()
    encodings = dict.fromkeys(times, "DELTA_BINARY_PACKED")
    bounded = [column_name for column_name in table.column_names if column_name not in _LONG]
    how = {
        "use_dictionary": texts,
        "column_encoding": encodings,
        "write_statistics": bounded,
        **_FORMAT,
    }
    with pq.ParquetWriter(written, table.schema, **how) as writer:
        for start, end in pairwise([*_cuts(table), table.num_rows]):
            writer.write_table(table.slice(start, end - start), _ROWS_PER_GROUP)
    return written.getvalue()


def _cuts(table: pa.Table) -> list[int]:
    """Return where row groups begin, of tables by rank between ranks if they can: who asks for one rank reads one group."""
    n_rows = table.num_rows
    cuts = [0]
    has_ranks = n_rows > _ROWS_PER_GROUP and "rank" in table.column_names
    steps = np.diff(pc.fill_null(table["rank"], -1).to_numpy()) if has_ranks else np.empty(0)
    borders = np.flatnonzero(steps) + 1 if (steps >= 0).all() else np.empty(0, np.int64)
    while (latest := cuts[-1] + _ROWS_PER_GROUP) < n_rows:
        border = int(borders[: np.searchsorted(borders, latest, "right")].max(initial=0))
        cuts.append(border if border > cuts[-1] else latest)
    return cuts
