"""Save a run in a store: its tables with the run's id, switched to in one step."""

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nsyspipe.errors import DatasetError, OutputError
from nsyspipe.model import schema
from nsyspipe.model.options import OnProgress
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.schema import DATASET, EVENT_TABLES, METRICS, RUN_TABLES, RUNS
from nsyspipe.model.table import FLOAT, INT, SCHEMA_VERSION, TEXT, Int64, TableSchema
from nsyspipe.model.typed_tables import RanksColumn
from nsyspipe.model.user_paths import UserPath
from nsyspipe.nsys.find_reports import EXPORT_SUFFIX, RAW_SUFFIXES, has_reports, reports_near
from nsyspipe.run.host_lines import without_paths
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

# Numbers of a step that say where it is, and are no metrics.
_PLACE_COLUMNS = ("rank", "step", "start_ns", "end_ns")
_ROWS_PER_GROUP = 1_000_000
_FORMAT = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
# Long texts have no statistics, because the footer of a file would contain each text four times,
# as the least and the greatest.
_COLUMNS_WITHOUT_STATISTICS = ("details", WORK)
# Tables with counts and sums of all operations and ranges. If operations were read in another way,
# these tables differ.
_TABLES_OF_OPERATIONS = ("steps", "phases", "kernels", "collectives", "timeline")
_PROCESS_COLUMNS: list[RanksColumn] = ["rank", "pid", "device_id", "n_kernels", "clock_shift_ns"]
# One save adds at most so many runs that the index lacks, as in a store that was copied without
# the index. The next save adds more.
_MAX_RUNS_ADDED_TO_INDEX = 100


def runs_table(run: Run, files: Mapping[str, str]) -> pa.Table:
    """Return the table `runs`: the run's row, with the digests of all other saved files by name."""
    details = _details_of(run, files)
    row: dict[str, Any] = {}
    for name, value in details["header"].items():
        row[name] = ", ".join(value) if isinstance(value, list) else value
    row |= run.summary().to_pylist()[0]
    row |= _columns_of_capture(run)
    row["step_family"] = run.step_family
    row["details"] = json.dumps(details)
    row["tool_version"] = __version__
    row["schema_version"] = SCHEMA_VERSION
    row["definitions_version"] = run.definitions_version
    row |= _columns_of_findings(run)
    return RUNS.from_rows([row])


def _columns_of_capture(run: Run) -> dict[str, Any]:
    """Return the time of the capture, and what was recorded of the link, NCCL and variables."""
    captured = run.header.captured_at_utc
    captured_at = datetime.fromisoformat(captured) if captured else None
    environment = run.header.environment
    environment_text = None if environment is None else json.dumps(environment)
    link = run.link.slowest if run.link else None
    link_kind = link.kind if link else None
    nccl_version = run.nccl.version if run.nccl else None
    return {
        "captured_at_utc": captured_at,
        "link_kind": link_kind,
        "nccl_version": nccl_version,
        "environment": environment_text,
    }


def _details_of(run: Run, files: Mapping[str, str]) -> dict[str, Any]:
    """Return what the row of a run contains as JSON, because no column has it."""
    checks = map(_saved_check, run.skipped_checks)
    host_steps = run.host_steps()
    details = Details(
        header=run.header,
        skipped_steps=run.skipped_steps,
        nccl=run.nccl,
        link=run.link,
        n_host_steps=host_steps.num_rows,
        n_counters=run.counters().num_rows,
        n_peers=run.peers().num_rows if run.has_peer_records else None,
        skipped_checks=list(checks),
    )
    work = Work.of([run]).saved()
    json_object = asdict(details)
    json_object["files"] = dict(sorted(files.items()))
    json_object[WORK] = work
    return json_object


def _saved_check(check: SkippedCheck) -> SavedCheck:
    return SavedCheck([*check.rules], check.reason, check.fix)


def _columns_of_findings(run: Run) -> dict[str, Any]:
    """Return the number of findings, and the identity of the first finding."""
    findings = run.finding_rows
    first = findings[0] if findings else dict.fromkeys(schema.FINDINGS.names)
    columns: dict[str, Any] = {"n_findings": len(findings)}
    columns["first_finding"] = first["id"]
    columns["first_action"] = first["action"]
    columns["first_saving_ns_per_step"] = first["saving_ns_per_step"]
    return columns


def _metrics_table(run: Run) -> pa.Table:
    """Return the table `metrics`: one row for each number of the run, of its ranks and steps."""
    summary = run.summary()
    rank_summary = run.rank_summary()
    steps = run.steps()
    tables = [
        _metrics_of(summary, schema.SUMMARY),
        _metrics_of(rank_summary, schema.RANK_SUMMARY),
        _metrics_of(steps, schema.STEPS),
    ]
    metrics = pa.concat_tables(tables).combine_chunks()
    return nulls_first(metrics, METRICS.key)


def _metrics_of(table: pa.Table, table_schema: TableSchema) -> pa.Table:
    """Return the rows of `metrics` for all numbers of a table with a column for each metric."""
    metrics = [
        column
        for column in table_schema.columns
        if column.type in (INT, FLOAT) and column.name not in _PLACE_COLUMNS
    ]
    n_rows = table.num_rows
    row_of_value = np.tile(np.arange(n_rows), len(metrics))
    metric_of_value = np.repeat(np.arange(len(metrics)), n_rows)
    columns: dict[str, Any] = {}
    for name in ("rank", "step", "in_summary"):
        is_there = name in table.column_names
        values = table[name] if is_there else pa.nulls(n_rows)
        columns[name] = values.take(row_of_value)
    names = pa.array([metric.name for metric in metrics])
    units = pa.array([metric.unit for metric in metrics])
    columns["metric"] = names.take(metric_of_value)
    columns["unit"] = units.take(metric_of_value)
    numbers = [pc.cast(table[metric.name], FLOAT, safe=False) for metric in metrics]
    chunks = [chunk for column in numbers for chunk in column.chunks]
    columns["value"] = pa.chunked_array(chunks, FLOAT)
    return METRICS.table(columns)


def save(
    run: Run,
    store: Path,
    *,
    events: bool = False,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> None:
    """Write the tables of a run. They replace those that the store has of the same run id.

    A reader that uses `nsyspipe` gets the old run or the new one. `layout` says what other readers
    may see meanwhile. Two writers may work at once, and the later one wins if they write the same
    run id. The same run gives the same bytes.

    Present tables that are not written now, such as the operations without `events`, are kept if
    the steps, phases, kernels and collectives of the old and the new run are the same to the
    nanosecond. Operations of any other run are not replaced without `force`. Files that belong to
    no table of the dataset are left alone.

    With `events`, the operations are written too, one file per rank, and `on_progress` is called
    with (ranks written, number of ranks).

    An `OptionError` is raised if the run's id is not a name that all readers take for text. An
    `OutputError` is raised if the store cannot be written, the reports are in it, or tables would
    be lost. Then the store is as it was.
    """
    run_id = run.header.run_id
    check_run_id(run_id)
    check_store(run, store)
    # The timeline first, because workers read reports for it while this process makes the rest.
    names = ["timeline", *(name for name in RUN_TABLES if name in DATASET)]
    # Each table is made once, also the timeline.
    tables = {name: run.table(name) for name in dict.fromkeys(names)}
    tables["host_lines"] = without_paths(run.host_lines())
    # These rows are in the words of the command line, as readers of a store expect.
    tables["problems"] = schema.PROBLEMS.from_rows(run.problem_rows)
    tables["findings"] = schema.FINDINGS.from_rows(run.finding_rows)
    with staged_run(store, run_id) as staged:
        files: dict[str, str] = {}
        for name, table in tables.items():
            files |= _write(staged, name, table)
        files |= _write(staged, "metrics", _metrics_table(run))
        if events:
            for n_done, (rank, *rank_tables) in enumerate(run.operations(), start=1):
                for name, table in zip(EVENT_TABLES, rank_tables, strict=True):
                    files |= _write(staged, name, table, rank)
                if on_progress:
                    on_progress(n_done, run.ranks.num_rows)
        with locked(store) as opened:
            written = {*files, RUNS_FILE}
            files |= _remaining_files(run, store, opened, written, force=force)
            row = runs_table(run, files)
            digest = _write(staged, RUNS.name, row)[RUNS_FILE]
            opened.commit(staged, files)
            saved_row = index_row(row, run_id, digest)
            _update_index(store, opened, staged, saved_row)


def _remaining_files(
    run: Run, store: Path, opened: Locked, written: Collection[str], *, force: bool
) -> Mapping[str, str]:
    """Return the digests of the present files that the run keeps besides the written ones.

    An `OutputError` is raised if files would be lost that only the reports can give again.
    """
    run_id = run.header.run_id
    present = opened.files_of(run_id)
    operations = {name for name in present if table_of_file(name) in EVENT_TABLES}
    remaining = _not_replaced(present, written)
    # Operations of another run are at risk even if new ones replace them.
    at_risk = remaining | operations
    has_run = RUNS_FILE in present
    # Without a row in `runs`, it is not known what the present files are of.
    is_other_data = bool(present) and not has_run
    if not at_risk and not is_other_data:
        return {}
    if has_run:
        digests = _digests_if_same_run(run, Path(os.path.realpath(store)), remaining)
        if digests is not None:
            return digests
    if force:
        return {}
    raise _loss_error(store, run_id, at_risk or present, has_run=has_run)


def _not_replaced(present: Collection[str], written: Collection[str]) -> set[str]:
    """Return the present files that the written files do not replace.

    A written table replaces the present one, which may be unreadable. Operations are written by
    rank, so a file of one rank does not replace that of another.
    """
    written_tables = {table_of_file(name) for name in written}
    replaced_tables = written_tables.difference(EVENT_TABLES)
    unwritten = set(present).difference(written)
    return {name for name in unwritten if table_of_file(name) not in replaced_tables}


def _loss_error(store: Path, run_id: str, files: Collection[str], *, has_run: bool) -> OutputError:
    tables = sorted({table_of_file(name) or "" for name in files})
    reason = "and no such run"
    if has_run:
        reason = "of other reports, or read with other options or by an older nsyspipe"
    shown_tables = ", ".join(tables)
    problem = f"has {shown_tables} of run {run_id}, {reason}, so nothing was saved"
    fix = "use --run-id with another name, or --force to replace the old run"
    return OutputError(str(store), problem, fix=fix)


def _digests_if_same_run(run: Run, store: Path, names: set[str]) -> dict[str, str] | None:
    """Return the digests of files of a saved run; None if it differs from `run`."""
    saved = SavedRun(UserPath.of(store), run.header.run_id)
    # A saved run that cannot be read may differ.
    with contextlib.suppress(DatasetError):
        if saved.step_family != run.step_family:
            return None
        for name in _TABLES_OF_OPERATIONS:
            saved_table = getattr(saved, name)()
            table = getattr(run, name)()
            if not saved_table.equals(table):
                return None
        saved_processes = saved.ranks.select(_PROCESS_COLUMNS)
        processes = run.ranks.select(_PROCESS_COLUMNS)
        if saved_processes.equals(processes):
            return {name: saved.files.digest(name) for name in sorted(names)}
    return None


def check_store(run: Run, store: Path) -> None:
    """Raise an `OutputError` for a place that must not become a store.

    That is a directory with reports: whoever names the directory later would get the saved run, and
    not the reports. It is also ``STORE:NAME``, which names a run of a store and not a directory.
    """
    place, colon, name = str(store).rpartition(":")
    if colon and not store.exists():
        fix = f"--out {place}/ (to set the label of reports use --label {name!r})"
        raise OutputError(str(store), "names a run of a run store, not a directory", fix=fix)
    # Path.resolve() fails on a link to itself.
    directory = Path(os.path.realpath(store))
    # An input that is a directory is a saved run.
    reports = [path for path in run.inputs if not path.is_dir()]
    real_reports = map(os.path.realpath, reports)
    fix = f"--out {store / 'runs'}"
    if any(Path(report).parent == directory for report in real_reports):
        raise OutputError(str(store), "is the directory of the reports", fix=fix)
    suffixes = (EXPORT_SUFFIX, *RAW_SUFFIXES)
    if has_reports(store, suffixes) and not any(run_ids(store)):
        problem = "contains reports, but no saved run"
        raise OutputError(str(store), problem, found=reports_near(store), fix=fix)


def _write(staged: Staged, name: str, table: pa.Table, rank: int | None = None) -> dict[str, str]:
    """Write the file of a table with the id of its run, and return its digest by file name."""
    table_schema = DATASET[name]
    # All rows have the first and only text of the dictionary.
    codes = np.zeros(table.num_rows, np.int32)
    run_ids_of_rows = pa.DictionaryArray.from_arrays(codes, pa.array([staged.run_id]))
    columns = {column_name: table[column_name] for column_name in table.column_names}
    columns["run_id"] = run_ids_of_rows
    with_run_id = table_schema.table(columns)
    try:
        check_values(with_run_id, table_schema)
    except ValueError as error:
        reason = " ".join(str(error).split())
        problem = f"cannot hold the table {name}: {reason}, so nothing was saved"
        fix = "use other outputs, and check the report with doctor REPORTS"
        raise OutputError(staged.run_id, problem, fix=fix) from error
    content = _encoded(with_run_id)
    file = file_name(name, rank)
    with staged.tables.create(file) as opened:
        opened.write(content)
    return {file: digest_of(content)}


def _update_index(store: Path, opened: Locked, staged: Staged, saved_row: pa.Table) -> None:
    """Put the saved run into the index of the store.

    A failure is ignored: readers need more time without an index, but read the same.
    """
    with contextlib.suppress(OSError, ValueError, DatasetError):
        other_ids = set(filter(RUN_ID.fullmatch, run_ids(store)))
        # `saved_row` replaces the row of this run.
        other_ids.discard(staged.run_id)
        index = read_index(store)
        indexed_ids = index["run_id"]
        is_of_others = pc.is_in(indexed_ids, pa.array(other_ids, pa.string()))
        rows = [index.filter(is_of_others), saved_row]
        missing = sorted(other_ids.difference(indexed_ids.to_pylist()))
        for run_id in missing[:_MAX_RUNS_ADDED_TO_INDEX]:
            # A run that cannot be read stays out of the index.
            with contextlib.suppress(DatasetError):
                content = content_of(store, run_id, RUNS_FILE)
                rows.append(read_index_row(store, run_id, content))
        with staged.directory.create(INDEX_FILE) as file:
            file.write(_encoded(pa.concat_tables(rows)))
        staged.directory.move(INDEX_FILE, opened.hidden, INDEX_FILE)


def _encoded(table: pa.Table) -> pa.Buffer:
    """Return a table as the bytes of a Parquet file."""
    text_columns: list[str] = []
    time_columns: list[str] = []
    for field in table.schema:
        name = field.name
        if field.type == TEXT or name == "run_id":
            text_columns.append(name)
        if field.type == INT and name.endswith("_ns"):
            time_columns.append(name)
    names = table.column_names
    with_statistics = [name for name in names if name not in _COLUMNS_WITHOUT_STATISTICS]
    options = {
        "use_dictionary": text_columns,
        "column_encoding": dict.fromkeys(time_columns, "DELTA_BINARY_PACKED"),
        "write_statistics": with_statistics,
        **_FORMAT,
    }
    stream = pa.BufferOutputStream()
    with pq.ParquetWriter(stream, table.schema, **options) as writer:
        boundaries = [*_row_group_starts(table), table.num_rows]
        for start, end in pairwise(boundaries):
            rows = table.slice(start, end - start)
            writer.write_table(rows, _ROWS_PER_GROUP)
    return stream.getvalue()


def _row_group_starts(table: pa.Table) -> list[int]:
    """Return the first row of each row group.

    In a table that is sorted by rank, row groups start with a rank where possible. So a reader of
    one rank reads one row group.
    """
    n_rows = table.num_rows
    rank_starts = _rank_starts(table) if n_rows > _ROWS_PER_GROUP else np.empty(0, np.int64)
    starts = [0]
    # A row group is full before this row.
    latest_start = _ROWS_PER_GROUP
    while latest_start < n_rows:
        # Ranks start in ascending rows, so the largest of these is the last one. 0 without any.
        is_in_time = rank_starts <= latest_start
        last_rank_start = int(rank_starts[is_in_time].max(initial=0))
        has_rank_start = last_rank_start > starts[-1]
        starts.append(last_rank_start if has_rank_start else latest_start)
        latest_start = starts[-1] + _ROWS_PER_GROUP
    return starts


def _rank_starts(table: pa.Table) -> Int64:
    """Return the first row of each rank but the first. Empty unless a table is sorted by rank."""
    if "rank" not in table.column_names:
        return np.empty(0, np.int64)
    ranks = pc.fill_null(table["rank"], -1).to_numpy()
    rank_changes = np.diff(ranks)
    is_sorted = (rank_changes >= 0).all()
    return np.flatnonzero(rank_changes) + 1 if is_sorted else np.empty(0, np.int64)
