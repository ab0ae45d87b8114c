"""Build real SQLite reports by hand: a few events, in the tables of any export version.

Times are ns. Thread "main" is the process's first thread, "autograd" another one.
"""

from __future__ import annotations

import functools
import json
import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.build.nccl_layouts import COMM_INIT, SWAPPED_INIT, PayloadLayout, blob

_SCHEMAS = Path(__file__).with_name("schemas.json")
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
DEFAULT = "3.11.1 2024.2.3"
_THREADS = {"main": 0, "autograd": 1, "worker": 2}
_VM = 1 << 48
# What nsys adds to the number of a GPU in the typeId of its counters.
COUNTER_TYPE = 281479271677952
# Tests of a file build equal reports.
_MAX_CONTENTS = 128


@functools.cache
def schemas() -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(_SCHEMAS.read_text())


class TraceBuilder:
    """Collects events, then writes one report."""

    def __init__(self, version: str = DEFAULT, pid: int = 1000, base: int = _VM) -> None:
        self.version = version
        self.schema = schemas()[version]
        self.rows: dict[str, list[dict[str, Any]]] = {STRINGS: []}
        self.strings: dict[str, int] = {}
        self.pid = pid
        self.base = base
        self.correlation = 0

    def global_pid(self, pid: int | None = None) -> int:
        return self.base + ((self.pid if pid is None else pid) << 24)

    def global_tid(self, thread: str = "main", pid: int | None = None) -> int:
        number = self.pid if pid is None else pid
        return self.global_pid(number) + number + _THREADS[thread]

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.rows[STRINGS].append({"id": self.strings[text], "value": text})
        return self.strings[text]

    def add(self, table: str, **row: Any) -> TraceBuilder:
        self.rows.setdefault(table, []).append(row)
        return self

    def launch(
        self,
        at: int | None,
        *,
        thread: str = "main",
        pid: int | None = None,
        api: str = "cudaLaunchKernel_v7000",
    ) -> int:
        """Add an API call and return its correlation id; no call for None."""
        self.correlation += 1
        if at is not None:
            thread_id, name = self.global_tid(thread, pid), self.string(api)
            self.add(
                RUNTIME,
                start=at,
                end=at + 1,
                globalTid=thread_id,
                correlationId=self.correlation,
                nameId=name,
            )
        return self.correlation

    def _operation(
        self,
        table: str,
        times: tuple[int, int],
        launch: int,
        pid: int | None = None,
        *,
        device: int = 0,
        **more: Any,
    ) -> TraceBuilder:
        common = {
            "deviceId": device,
            "streamId": 7,
            "correlationId": launch,
            "globalPid": self.global_pid(pid),
        }
        return self.add(table, start=times[0], end=times[1], **common | more)

    def kernel(
        self,
        start: int,
        end: int,
        name: str = "gemm",
        *,
        launch: int | None = None,
        thread: str = "main",
        stream: int = 7,
        device: int = 0,
        pid: int | None = None,
    ) -> TraceBuilder:
        call = self.launch(launch, thread=thread, pid=pid)
        names = {"shortName": self.string(name), "demangledName": self.string(f"{name}(float*)")}
        return self._operation(
            KERNEL, (start, end), call, pid, device=device, streamId=stream, **names
        )

    def nccl(
        self, start: int, end: int, *, launch: int | None = None, stream: int = 19, **more: Any
    ) -> TraceBuilder:
        name = more.pop("name", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        return self.kernel(start, end, name, launch=launch, stream=stream, **more)

    def copy(
        self,
        start: int,
        end: int,
        kind: int = 8,
        n_bytes: int = 100,
        *,
        launch: int | None = None,
        thread: str = "main",
        device: int = 0,
        pid: int | None = None,
    ) -> TraceBuilder:
        call = self.launch(launch, thread=thread, pid=pid, api="cudaMemcpyAsync_v3020")
        return self._operation(
            MEMCPY, (start, end), call, pid, device=device, bytes=n_bytes, copyKind=kind
        )

    def memset(
        self, start: int, end: int, n_bytes: int = 8, *, launch: int | None = None
    ) -> TraceBuilder:
        return self._operation(
            MEMSET, (start, end), self.launch(launch, api="cudaMemsetAsync_v3020"), bytes=n_bytes
        )

    def memory_call(
        self,
        start: int,
        end: int,
        api: str = "cudaMalloc_v3020",
        *,
        n_bytes: int | None = None,
        result: int | None = 0,
        thread: str = "main",
        pid: int | None = None,
    ) -> TraceBuilder:
        """Add a call that allocates or frees memory of a GPU; with `n_bytes` its event too."""
        self.launch(start, thread=thread, pid=pid, api=api)
        self.rows[RUNTIME][-1] |= {"end": end, "returnValue": result}
        if n_bytes is None:
            return self
        event = {"correlationId": self.correlation, "globalPid": self.global_pid(pid)}
        operation = 1 if "Free" in api else 0
        return self.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            start=end,
            bytes=n_bytes,
            memKind=2,
            memoryOperationType=operation,
            **event,
        )

    def graph(self, start: int, end: int, *, launch: int | None = None) -> TraceBuilder:
        call = self.launch(launch, api="cudaGraphLaunch_v10000")
        return self._operation(GRAPH, (start, end), call, graphId=1, graphExecId=2)

    def range(
        self,
        start: int,
        end: int | None,
        text: str | None,
        *,
        thread: str = "main",
        domain: int = 0,
        kind: int = 59,
        inline: bool = False,
        pid: int | None = None,
    ) -> TraceBuilder:
        by_id = None if inline or text is None else self.string(text)
        names = {"text": text if inline else None, "textId": by_id, "domainId": domain}
        return self.add(
            NVTX,
            start=start,
            end=end,
            eventType=kind,
            globalTid=self.global_tid(thread, pid),
            **names,
        )

    def domain(self, name: str, domain: int, *, pid: int | None = None) -> TraceBuilder:
        return self.range(-500, None, name, domain=domain, kind=75, inline=True, pid=pid)

    def env(self, **variables: object) -> TraceBuilder:
        for name, value in variables.items():
            self.add(
                "META_DATA_CAPTURE",
                name="PROCESS_0:ENVIRONMENT_VARIABLE",
                value=f'{name}="{value}"',
            )
        return self

    def command(self, *words: str, process: int = 0) -> TraceBuilder:
        """Add nsys's rows of the command that it started."""
        names = ("COMMAND", *(f"ARGUMENT_{at}" for at in range(len(words) - 1)))
        for name, word in zip(names, words, strict=True):
            self.add("META_DATA_CAPTURE", name=f"PROCESS_{process}:{name}", value=word)
        return self

    def session(self, utc_ns: int) -> TraceBuilder:
        return self.add(
            "TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns, utcTime="", localTime=""
        )

    def meta(self, **values: str) -> TraceBuilder:
        table = "META_DATA_EXPORT" if "META_DATA_EXPORT" in self.schema else "EXPORT_META_DATA"
        for name, value in values.items():
            self.add(table, name=name, value=value)
        return self

    def gpu(self, number: int = 0, name: str = "NVIDIA H200", **more: Any) -> TraceBuilder:
        return self.add(
            "TARGET_INFO_GPU",
            vmId=0,
            id=number,
            deviceId=number,
            cuDevice=number,
            name=name,
            **more,
        )

    def counter(
        self, metric: str, samples: dict[int, int] | list[tuple[int, int]], *, gpu: int = 0
    ) -> TraceBuilder:
        """Add a hardware counter of a GPU: its name, and its value at each time."""
        type_id = COUNTER_TYPE + gpu
        names = self.rows.setdefault("TARGET_INFO_GPU_METRICS", [])
        numbers = {row["metricName"]: row["metricId"] for row in names if row["typeId"] == type_id}
        number = numbers.setdefault(metric, len(numbers))
        if number == len(numbers) - 1:
            self.add("TARGET_INFO_GPU_METRICS", typeId=type_id, metricId=number, metricName=metric)
        times = samples.items() if isinstance(samples, dict) else samples
        for at, value in times:
            row = {"timestamp": at, "typeId": type_id, "metricId": number, "value": value}
            self.add("GPU_METRICS", rawTimestamp=at, **row)
        return self

    def host(self, name: str) -> TraceBuilder:
        known = {"globalVid": 0, "devStateName": "", "name": "Hostname", "nameEnum": 619}
        return self.add("TARGET_INFO_SYSTEM_ENV", **known, value=name)

    def comm_payload(
        self, at: int, *, n_ranks: int, rank: int, swap: bool = False, pid: int | None = None
    ) -> TraceBuilder:
        """Add NCCL's ncclCommInitRank range with its payload; `swap` gives another release's layout."""
        fields = {"NCCL communicator ID": 2**63 + 5, "No. of ranks": n_ranks, "Rank": rank}
        return self.nccl_payload(
            at, "ncclCommInitRank", fields, SWAPPED_INIT if swap else COMM_INIT, pid=pid
        )

    def nccl_payload(
        self,
        at: int,
        call: str | None,
        fields: dict[str, int],
        layout: PayloadLayout,
        *,
        end: int | None = None,
        thread: str = "main",
        domain: int = 1,
        inline: bool = False,
        pid: int | None = None,
    ) -> TraceBuilder:
        described, entries = layout.rows(domain)
        if described not in self.rows.get("NVTX_PAYLOAD_SCHEMAS", []):
            self.add("NVTX_PAYLOAD_SCHEMAS", **described)
            for entry in entries:
                self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **entry)
        end = at + 1 if end is None else end
        self.range(at, end, call, thread=thread, domain=domain, inline=inline, pid=pid)
        self.rows[NVTX][-1]["binaryData"] = blob(layout, fields)
        return self

    def table_payload(
        self,
        at: int,
        call: str | None,
        fields: dict[str, object],
        *,
        schema: int = 2**24 + 40,
        domain: int = 1,
        pid: int | None = None,
        **more: Any,
    ) -> TraceBuilder:
        """Add a range of NCCL whose payload is a row of a table, as ``--dynamic-tables=all`` exports it.

        Names of columns are those of `fields` with underscores for other characters.
        """
        self.range(at, more.pop("end", at + 1), call, domain=domain, pid=pid, **more)
        event = len(self.rows[NVTX])
        self.rows[NVTX][-1]["eventId"] = event
        process = self.global_pid(pid)
        table = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{process}_{domain}_{schema}"
        row: dict[str, object] = {"eventId": event}
        for name, value in fields.items():
            column = "".join(one if one.isalnum() else "_" for one in name)
            row[column] = value
            named = {"originalName": name, "sanitizedName": column}
            if named not in self.rows.get("NVTX_EXPORT_TRANSLATION", []):
                self.add("NVTX_EXPORT_TRANSLATION", **named)
        columns = self.schema.get(table, {}) | dict.fromkeys(row, "INTEGER")
        self.schema = self.schema | {table: columns}
        link = {"eventId": event, "globalPid": process, "domainId": domain}
        self.add("NVTX_EVENTS_PAYLOAD_SCHEMAS", **link, payloadSchemaID=schema)
        return self.add(table, **row)

    def write(self, path: Path, *, lazy: bool = True, without: tuple[str, ...] = ()) -> Path:
        """Write the report; `lazy` leaves out tables without rows, `without` leaves out some that have."""
        tables = tuple(self._tables(lazy=lazy, without=without))
        path.unlink(missing_ok=True)
        path.write_bytes(_content_of(pickle.dumps(tables)))
        return path

    def _tables(self, *, lazy: bool, without: tuple[str, ...]) -> Iterator[_Table]:
        """Yield the tables that a report has."""
        for name, columns in self.schema.items():
            rows = self.rows.get(name, [])
            is_left_out = lazy and not rows and name != STRINGS
            if name not in without and not is_left_out:
                yield _Table(name, columns, rows)


class _Table(NamedTuple):
    """A table of a report: the definition of each column by name, and the cells by column."""

    name: str
    columns: dict[str, str]
    rows: list[dict[str, Any]]

    def write(self, database: sqlite3.Connection) -> None:
        columns, rows = self.columns, self.rows
        definitions = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        database.execute(f"CREATE TABLE {self.name} ({definitions})")
        if self.name == NVTX and "eventId" in columns:
            rows = [{"eventId": number} | row for number, row in enumerate(rows, start=1)]
        # What the version requires and the row lacks is 0 or empty.
        required = {
            name: "" if "TEXT" in kind else 0
            for name, kind in columns.items()
            if "NOT NULL" in kind
        }
        cells = [
            [required.get(one) if row.get(one) is None else row[one] for one in columns]
            for row in rows
        ]
        places = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO {self.name} VALUES ({places})", cells)


@functools.lru_cache(maxsize=_MAX_CONTENTS)
def _content_of(pickled_tables: bytes) -> bytes:
    """Return the bytes of a report with some tables. Equal reports are made once."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("BEGIN")
        for table in pickle.loads(pickled_tables):
            table.write(database)
        database.execute("COMMIT")
        return database.serialize()


def steady_rank(
    rank: int, n_steps: int = 4, *, version: str = DEFAULT, world_size: int = 2
) -> TraceBuilder:
    """Return a rank of a small DDP run: per step 100 ns forward, 100 backward, 60 all-reduce half hidden.

    Step i runs on the device from 1000 i: forward [0, 100), backward [100, 200) launched by the
    autograd thread, all-reduce [170, 230), DtoD copy [240, 250), and idle until 1000.
    """
    builder = TraceBuilder(version, pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=rank).session(10**18 + rank).gpu()
    number, product = version.split(maxsplit=1)[0], version.rsplit(maxsplit=1)[-1]
    builder.meta(EXPORT_SCHEMA_VERSION=number, EXPORT_PRODUCT_VERSION=product).host("node0")
    for step in range(n_steps):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}")
        builder.range(at + 5, at + 50, "forward").range(at + 60, at + 160, "backward")
        builder.kernel(at + 100, at + 200, launch=at + 10).kernel(
            at + 200, at + 300, launch=at + 70, thread="autograd"
        )
        builder.nccl(at + 270, at + 330, launch=at + 80, thread="autograd")
        builder.copy(at + 340, at + 350, n_bytes=64, launch=at + 90, thread="autograd")
    return builder
