"""Small runs that differ in every table, and what readers find of them in a store."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import nsyspipe
from nsyspipe.model.schema import DATASET, EVENT_TABLES
from nsyspipe.run.run import Run
from nsyspipe.store.write import save
from tests.build.trace import RUNTIME, TraceBuilder
from tests.cli.sick_run import LOG, PIDS, TOPOLOGY

TABLES = tuple(name for name in DATASET if name not in EVENT_TABLES)
RUN_ID, OTHER_ID = "nightly", "other"


def write_reports(folder: Path, scale: int, *, n_ranks: int = 2, n_steps: int = 5) -> Path:
    """Build ranks whose steps last `scale` x 1000 ns and have every kind of row; return their folder.

    Per step: backward [100, 300), one all-reduce [300, 600) after it, for which rank 1 comes 10
    late, eight copies of 1 ns from 600 on, and a call that blocks the host until the next step's
    kernel can be launched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(n_ranks):
        builder = TraceBuilder(pid=PIDS[rank]).session(10**18).gpu().host("node0")
        builder.env(RANK=rank, WORLD_SIZE=n_ranks, LOCAL_RANK=rank)
        for step in range(n_steps):
            at = 1000 * scale * step
            builder.range(at, at + 900 * scale, f"step {step}").range(at + 70, at + 99, "backward")
            builder.kernel(at + 100, at + 300 * scale, f"gemm{scale}", launch=at + 80)
            builder.nccl(at + (300 + 10 * rank) * scale, at + 600 * scale, launch=at + 85)
            for number in range(8):
                start = at + 600 * scale + 2 * number
                builder.copy(start, start + 1, launch=at + 90 + number)
            builder.launch(at + 650 * scale, api="cudaDeviceSynchronize_v3020")
            builder.rows[RUNTIME][-1]["end"] = at + 950 * scale
        if scale == 2:  # dropped, which is a problem
            builder.kernel(50, 40)
        builder.write(folder / f"x{scale}_{rank}.sqlite")
    return folder


def old_run(folder: Path, run_id: str = RUN_ID) -> Run:
    return nsyspipe.load(
        write_reports(folder / "old", 1), run_id=run_id, nccl_log=LOG, topology=TOPOLOGY, jobs=1
    )


def new_run(folder: Path, run_id: str = RUN_ID) -> Run:
    return nsyspipe.load(write_reports(folder / "new", 2), run_id=run_id, jobs=1)


def other_run(folder: Path) -> Run:
    return nsyspipe.load(write_reports(folder / "other", 3), run_id=OTHER_ID, jobs=1)


def stored(folder: Path, run: Run, **options: Any) -> Path:
    """Save a run alone; return the store."""
    save(run, folder, **options)
    return folder


def contents(store: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(store.glob("[!.]*/**/*")) if not path.is_dir()]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


def copied(store: Path, to: Path) -> Path:
    if store.exists():
        shutil.copytree(store, to, symlinks=True)
    return to


def left_behind(store: Path) -> list[str]:
    hidden = store / ".nsyspipe"
    found = [*hidden.glob("s*/*")]  # staging and switch
    found += [path for path in store.glob("[!.]*/**/*") if path.is_symlink()]
    # The directory of a table may be empty: it could be the user's own.
    found += [
        path for path in store.glob("[!.]*/*/**") if path.is_dir() and not any(path.iterdir())
    ]
    return sorted(str(path.relative_to(store)) for path in found)


def places(store: Path, run_id: str = RUN_ID) -> dict[str, Path]:
    """Return where each file of a run is, by its name before it was in place: ``steps``, ``events-0``."""
    found = {}
    for path in sorted(store.glob(f"[!.]*/run_id={run_id}/**/part-0.parquet")):
        table, _, *ranks, _ = path.relative_to(store).parts
        found["-".join([table, *(rank.removeprefix("rank=") for rank in ranks)])] = path
    return found


def unlisted(store: Path, run_id: str = RUN_ID) -> Path:  # as one of an older nsyspipe
    path = places(store, run_id)["runs"]
    table = pq.read_table(path, partitioning=None)
    details = json.loads(table["details"][0].as_py())
    details.pop("files", None)
    table = table.set_column(
        table.column_names.index("details"), "details", pa.array([json.dumps(details)])
    )
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
    return store


_GLOB = "read_parquet('{}/*/*.parquet', hive_partitioning=true, union_by_name=true)"
_SUM = (
    "SELECT '{0}' AS name, run_id, count(*) AS n, bit_xor(hash(t)) AS sum FROM {1} t GROUP BY "
    "run_id"
)


def by_duckdb(store: Path, tables: tuple[str, ...] = TABLES) -> dict[str, dict[str, tuple]]:
    sums = [_SUM.format(name, _GLOB.format(store / name)) for name in tables]
    with duckdb.connect() as database:
        rows = database.execute(" UNION ALL ".join(sums)).fetchall()
    found: dict[str, dict[str, tuple]] = {}
    for name, run_id, *figures in rows:
        found.setdefault(run_id, {})[name] = tuple(figures)
    return found


def by_pandas(store: Path, name: str) -> dict[str, list[tuple]]:
    frame = pd.read_parquet(store / name, dtype_backend="pyarrow")
    frame["run_id"] = frame["run_id"].astype(object)
    return {
        str(run_id): list(
            rows.astype(object).where(rows.notna(), None).itertuples(name=None, index=False)
        )
        for run_id, rows in frame.groupby("run_id", observed=True)
    }


def by_polars(store: Path, name: str) -> dict[str, list[tuple]]:
    frame = pl.scan_parquet(store / name).with_columns(pl.col("run_id").cast(pl.String)).collect()
    return {str(key[0]): rows.rows() for key, rows in frame.group_by("run_id", maintain_order=True)}
