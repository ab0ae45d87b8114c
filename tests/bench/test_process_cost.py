"""What a process more costs in a small report: one of 500 processes, and one of 5 000.

    pytest -m bench -n 0 -s tests/bench/test_process_cost.py

Nothing here fails on a time: it prints figures. It does fail when a process is not found.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

import nsyspipe
from tests.build.trace import steady_rank

pytestmark = pytest.mark.bench
SIZES = (500, 5000)
PROCESS_BITS = 24  # of a globalTid, above those of the thread


def with_processes(path, n_processes):
    """Write a report of one rank, with the rows of its process copied to others."""
    steady_rank(0, world_size=1).write(path)
    with closing(sqlite3.connect(path)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            own = [name for name in columns if name in {"globalTid", "globalPid"}]
            if not own:
                continue
            moved = [f"{name} + (k.n << {PROCESS_BITS})" if name in own else f'"{name}"' for name in columns]
            database.execute(
                "WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < ?) "
                f"INSERT INTO {table} SELECT {', '.join(moved)} FROM {table}, k",
                (n_processes - 1,),
            )
        database.commit()
        (found,) = database.execute("SELECT count(DISTINCT globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    assert found == n_processes
    return path


def test_a_process_costs_as_much_among_many_as_among_few(tmp_path):
    costs = {}
    for n_processes in SIZES:
        path = with_processes(tmp_path / f"of_{n_processes}.sqlite", n_processes)
        begin = time.process_time()
        try:
            run = nsyspipe.load(path, jobs=1)
            assert run.ranks.num_rows > 0
        except nsyspipe.NsyspipeError as error:
            print(error)
        costs[n_processes] = (time.process_time() - begin) / n_processes
    print()
    for n_processes, cost in costs.items():
        print(f"{n_processes:6} processes: {1e3 * cost:.2f} ms of CPU each")
