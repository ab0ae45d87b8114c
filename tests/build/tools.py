"""What the tests of built reports share: hand-computed figures, looser schemas, edits in SQL."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

import nsyspipe
from nsyspipe.model import schema
from tests.build.trace import DEFAULT, KERNEL, MEMCPY, NVTX, RUNTIME, STRINGS, steady_rank

# A complete step of `tests.build.trace.steady_rank`: window [1000 i + 100, 1000 i + 1100), compute
# [100, 300), all-reduce [270, 330), copy [340, 350), so 1000 - 200 - 30 - 10 idle.
STEADY = {
    "wall_ns": 1000,
    "compute_ns": 200,
    "comm_ns": 60,
    "exposed_comm_ns": 30,
    "exposed_memory_ns": 10,
    "idle_ns": 760,
    "dtod_ns": 10,
    "dtod_bytes": 64,
    "n_dtod": 1,
    "exposed_dtod_ns": 10,
    "overlap_compute_ns": 30,
    "overlap_backward_ns": 30,
    "n_collectives": 1,
}


def run_of(folder, *builders, without=(), lazy=True, **options):
    """Write a_0.sqlite, a_1.sqlite and so on, and return the run of all reports of the folder."""
    for place, builder in enumerate(builders):
        builder.write(folder / f"a_{place}.sqlite", without=without, lazy=lazy)
    return nsyspipe.load(folder, **options)


def bare(number, /, version=DEFAULT, **environment):
    """Return a rank of `steady_rank` whose report names it nowhere but in what is given; its process is 1000 + number."""
    builder = steady_rank(number, version=version)
    builder.rows.pop("META_DATA_CAPTURE")
    return builder.env(**environment) if environment else builder


def figures(run, *, rank=0, step=1):
    """Return the breakdown of one step of one rank, as a dict that compares with `STEADY`."""
    (row,) = [one for one in run.steps().to_pylist() if (one["rank"], one["step"]) == (rank, step)]
    return {name: row[name] for name in STEADY}


def numbered(run, column):
    (source,) = set(run.ranks["rank_source"].to_pylist())
    return dict(
        zip(run.ranks[column].to_pylist(), run.ranks["rank"].to_pylist(), strict=True)
    ), source


def rows(table, *names):
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def rows_of(table, rank):
    return [row for row in table.to_pylist() if row["rank"] == rank]


def codes(run):
    return sorted(set(run.problems["code"].to_pylist()))


def problem_of(run, code):
    (row,) = [one for one in run.problem_rows if one["code"] == code]
    return row


def refuse(error, reports, **options):
    """Return the error that an analysis ends with; its message is one line."""
    with pytest.raises(error) as caught:
        nsyspipe.load(reports, **options).steps()
    assert "\n" not in caught.value.lines()[0]
    assert caught.value.exit_code == 2
    return caught.value


def nullable(builder):
    builder.schema = {
        table: {name: kind.replace(" NOT NULL", "") for name, kind in columns.items()}
        for table, columns in builder.schema.items()
    }
    return builder


def blank(builder, column, *tables):
    for table in tables:
        for row in builder.rows.get(table, []):
            row[column] = None
    return nullable(builder)


def shift(builder, by):
    for table in (KERNEL, MEMCPY, RUNTIME, NVTX):
        for row in builder.rows.get(table, []):
            row["start"] += by
            row["end"] = None if row["end"] is None else row["end"] + by
    return builder


def one_report(first, *others):
    for other in others:
        assert other.strings == first.strings, other
        for table in (KERNEL, MEMCPY, RUNTIME, NVTX):
            first.rows.setdefault(table, []).extend(other.rows.get(table, []))
    return first


def file_names(folder):
    return sorted(path.name for path in folder.iterdir())


def query(path, statement):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def edit(path, *statements):
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


# A range that NCCL has not made, by its text or by the string it refers to.
NOT_NCCL_INPUT = (
    f"coalesce(text, '') NOT LIKE 'nccl%' AND "
    f"coalesce(textId, -1) NOT IN (SELECT id FROM {STRINGS} WHERE value LIKE 'nccl%')"
)


def without_ranges(path, copy):  # but NCCL's, as of a program that nobody has annotated
    copy.write_bytes(path.read_bytes())
    return edit(copy, f"DELETE FROM {NVTX} WHERE eventType IN (59, 60) AND {NOT_NCCL_INPUT}")


def pad(path, table, n_rows, **values):
    """Put `n_rows` equal rows before all others of a table; columns not given are null."""
    names = ", ".join(f'"{name}"' for name in values)
    cells = ", ".join("?" * len(values))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM {table}")
        database.execute(f"DELETE FROM {table}")
        database.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n_rows}) "
            f"INSERT INTO {table} ({names}) SELECT {cells} FROM n",
            tuple(values.values()),
        )
        database.execute(f"INSERT INTO {table} SELECT * FROM kept")
        database.commit()
    return path


_FINDING = {"severity": "low", "action": "", "expected_ns_per_step": None, "evidence": "{}"}
_PROBLEM = {"code": "x", "severity": "warning", "report": None, "rank": None, "fix": None}


class Changed:
    """A run of which some answers are others than its reports gave."""

    def __init__(self, run, *, findings=None, problems=None, **others):
        self._run = run
        if findings is not None:
            self.finding_rows = [_FINDING | row for row in findings]
            self.findings = lambda: schema.FINDINGS.from_rows(self.finding_rows)
        if problems is not None:
            self.problem_rows = [_PROBLEM | row for row in problems]
            self.problems = schema.PROBLEMS.from_rows(self.problem_rows)
        vars(self).update(others)

    def __getattr__(self, name):
        return getattr(self._run, name)


def finding(number):
    words = {"id": f"rule-{number}", "title": f"found {number}", "advice": f"set option_{number}=1"}
    return words | {"saving_ns_per_step": 100.0 - number}


def run_of_steps(steps):
    """Return a run that has nothing but a table of steps, and uses its summary steps."""
    summary_steps = steps.filter(steps["in_summary"])
    return SimpleNamespace(steps=lambda: steps, breakdown=lambda: summary_steps)
