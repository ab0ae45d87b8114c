"""A report with a secret in every place that nsys, SQLite or somebody else may put one."""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from tests.build.nccl_layouts import BYTES, COMM, NCCL_2_21, Entry, PayloadLayout
from tests.build.tools import nullable
from tests.build.trace import KERNEL, NVTX, RUNTIME, STRINGS, TraceBuilder, schemas, steady_rank

NEW = "3.25.0 2026.2.1 mfu"
# Places whose text analysis shows: a host and a GPU model are facts of a run, and both of the
# others are names of NVTX ranges and kernels, though not stored as text.
SHOWN = frozenset({"host", "GPU model", "blob as a range's text", "blob as a kernel's name"})
FOREIGN = PayloadLayout(77, 64, (Entry("user text", 76, 0), Entry("rank", 5, 32)))

# What no builder knows: columns as nsys declares them, and a row with places for secrets.
_TABLES = {
    "ThreadNames": ("nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER", (901, 1, 1)),
    "PROFILER_OVERHEAD": ('start INTEGER, "end" INTEGER, nameId INTEGER', (5, 6, 902)),
    "OSRT_API": (
        'start INTEGER, "end" INTEGER, nameId INTEGER, callchainId INTEGER',
        (5, 6, 903, 1),
    ),
    "OSRT_CALLCHAINS": ("id INTEGER, symbol INTEGER, module INTEGER", (1, 904, 905)),
    "ProcessStreams": ("globalPid INTEGER, filenameId INTEGER, contentId INTEGER", (1, 906, 907)),
    "PROCESSES": ("globalPid INTEGER, pid INTEGER, name TEXT", (1, 1, "process name")),
    "ANALYSIS_FILE": ("id INTEGER, filename TEXT, content TEXT", (1, "file name", "file content")),
    "DIAGNOSTIC_EVENT": ("timestamp INTEGER, source INTEGER, text TEXT", (1, 1, "diagnostic")),
    "OSRT_FILE_ACCESS_DESCRIPTORS": ("fileAccessId INTEGER, filePath TEXT", (1, "opened file")),
    "OSRT_FILE_ACCESS_EVENTS": ("fileAccessId INTEGER, context TEXT", (1, "file access context")),
    "TARGET_INFO_NIC_INFO": (
        "GUID INTEGER, name TEXT, stateName TEXT",
        (1, "NIC name", "NIC state"),
    ),
    "TARGET_INFO_PROCESS": ("processId INTEGER, nameId INTEGER", (1, 908)),
    "TARGET_INFO_NVTX_CUDA_STREAM": ("name TEXT, streamId INTEGER", ("stream name", 7)),
    "TARGET_INFO_CUDA_DEVICE": (
        "gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT",
        (0, 0, 1, "device uuid"),
    ),
    "ENUM_NSYS_EVENT_TYPE": ("id INTEGER, name TEXT, label TEXT", (1, "enum name", "enum label")),
    "GENERIC_EVENTS": ("timestamp INTEGER, typeId INTEGER, data TEXT", (1, 1, "generic event")),
    "MPI_COMMUNICATORS": ("rank INTEGER, members TEXT", (0, "MPI members")),
}
_STRINGS = {
    901: "string of a thread",
    902: "string of overhead",
    903: "string of an OS call",
    904: "string of a symbol",
    905: "string of a module",
    906: "string of a file",
    907: "string of output",
    908: "string of a process",
    909: "string of no row",
    910: "string of an API call",
    911: "string of a category",
    912: "string of a domain",
    913: "string of a JSON payload",
    None: "string without an id",
    1: "second string of a kernel's id",
}


class _Secrets(dict):
    """Makes a secret for each place that asks for one."""

    def __missing__(self, place: str) -> str:
        self[place] = f"hunter{len(self):02d}-Pa55phrase-{7919 * (len(self) + 11)}"
        return self[place]


def forms(secret: str) -> list[bytes]:
    return [secret.encode(code) for code in ("utf-8", "utf-16-le", "utf-16-be")]


def found_in(data: bytes, secrets: dict[str, str]) -> list[str]:
    data = data.lower()
    return [
        place
        for place, secret in secrets.items()
        if any(form in data for form in forms(secret.lower()))
    ]


def planted_rank(secrets: dict[str, str], rank: int = 0) -> TraceBuilder:
    builder = steady_rank(rank, version=NEW)
    builder.schema = schemas()["3.11.1 2024.2.3"] | builder.schema
    nullable(builder)
    builder.rows["META_DATA_EXPORT"] = []
    builder.meta(
        EXPORT_SCHEMA_VERSION="3.25.0",
        EXPORT_PRODUCT_VERSION="2026.2.1.5",
        EXPORT_PARAM_INPUT_FILE=secrets["input file"],
        EXPORT_TIME_LOCAL=secrets["local time of export"],
    )
    builder.rows["META_DATA_EXPORT"].append({"name": secrets["name of a setting"], "value": "1"})
    builder.env(
        AWS_SECRET_ACCESS_KEY=secrets["environment"],
        OMPI_COMM_WORLD_RANK=secrets["rank variable"],
        CUDA_VISIBLE_DEVICES=f"GPU-{secrets['visible devices']}",
    )
    name = f"{secrets['name of a variable']}:ENVIRONMENT_VARIABLE"
    builder.add("META_DATA_CAPTURE", name=name, value=f'LOCAL_RANK="{rank}"')
    builder.add(
        "META_DATA_CAPTURE", name="PROCESS_0:WORKING_DIR", value=secrets["working directory"]
    )
    builder.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_1", value=secrets["argument"])
    builder.add("META_DATA_CAPTURE", name=None, value=secrets["value without a name"])
    _facts(builder, secrets)
    _ranges(builder, secrets)
    return builder


def _facts(builder: TraceBuilder, secrets: dict[str, str]) -> None:
    builder.rows["TARGET_INFO_SYSTEM_ENV"] = []
    builder.host(secrets["host"])
    builder.rows["TARGET_INFO_SYSTEM_ENV"][0]["devStateName"] = secrets["state of a device"]
    builder.add("TARGET_INFO_SYSTEM_ENV", name="GpuInfo", value=secrets["system value"])
    builder.rows["TARGET_INFO_GPU"] = []
    builder.gpu(name=secrets["GPU model"])
    builder.rows["TARGET_INFO_GPU"][0] |= {
        "uuid": secrets["GPU uuid"],
        "busLocation": secrets["GPU bus"],
        "chipName": secrets["GPU chip"],
    }
    session = builder.rows["TARGET_INFO_SESSION_START_TIME"][0]
    session |= {"utcTime": secrets["UTC time"], "localTime": secrets["local time"]}


def _ranges(builder: TraceBuilder, secrets: dict[str, str]) -> None:
    builder.domain("NCCL", 1).domain("MPI", 2).range(
        -7, None, secrets["thread name"], kind=39, inline=True
    )
    builder.range(-6, None, "MPI Rank 0", kind=39, inline=True, pid=5000)
    builder.range(3, None, secrets["mark"], kind=34, inline=True).domain(secrets["domain"], 9)
    builder.rows[NVTX].append(
        {**builder.rows[NVTX][-1], "text": None, "textId": 912, "domainId": 10}
    )
    builder.rows[NVTX].append({**builder.rows[NVTX][-1], "eventType": 33, "textId": 911})
    builder.rows[NVTX][0] |= {"jsonText": secrets["JSON payload"], "jsonTextId": 913}
    layout = NCCL_2_21
    for step in range(4):
        builder.nccl_payload(1000 * step + 80, "ncclAllReduce", {COMM: 7, BYTES: 4096}, layout)
        # Between the fields: the layout's last number is none that is read.
        row = builder.rows[NVTX][-1]
        row["binaryData"] = (
            row["binaryData"][:-8] + secrets["between the fields"][:7].encode() + b"\0"
        )
    secrets["between the fields"] = secrets["between the fields"][:7]
    described, entries = FOREIGN.rows(9)
    builder.add("NVTX_PAYLOAD_SCHEMAS", **described, name=secrets["name of a schema"])
    for entry in entries:
        builder.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **entry, description=secrets["description"])
    builder.rows["NVTX_PAYLOAD_SCHEMA_ENTRIES"][-2]["name"] = secrets["name of a field"]
    body = secrets["foreign payload"].encode().ljust(64, b"\0")
    builder.range(7, 8, "user range", domain=9)
    builder.rows[NVTX][-1]["binaryData"] = struct.pack("<IIIIQQ", 9, 0, 77, 0, 64, 96) + body
    builder.range(9, 10, "undescribed", domain=1)
    builder.rows[NVTX][-1]["binaryData"] = secrets["undescribed payload"].encode()


DROP_INPUT = "DROP TABLE IF EXISTS {}"


def plant(path: Path, secrets: dict[str, str] | None = None, rank: int = 0) -> dict[str, str]:
    secrets = _Secrets(secrets or {})
    planted_rank(secrets, rank).write(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for setting in (
            "secure_delete = OFF",
            "synchronous = OFF",
            "journal_mode = WAL",
            "wal_autocheckpoint = 0",
        ):
            database.execute(f"PRAGMA {setting}")
        database.execute("BEGIN")
        for table, (columns, row) in _TABLES.items():
            database.execute(DROP_INPUT.format(table))
            database.execute(f"CREATE TABLE {table} ({columns})")
            cells = [secrets[cell] if isinstance(cell, str) else cell for cell in row]
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(cells))})", cells)
        for number, place in _STRINGS.items():
            database.execute(f"INSERT INTO {STRINGS} VALUES (?, ?)", (number, secrets[place]))
        _strange_values(database, secrets)
        _schema(database, secrets)
        _free_pages(database, secrets)
    with path.open("ab") as file:  # behind the last page
        file.write(secrets["behind the end"].encode().ljust(4096, b"\0"))
    return dict(secrets)


def _strange_values(database: sqlite3.Connection, secrets: dict[str, str]) -> None:
    """Put what its column does not expect where it is taken all the same."""
    call = f"SELECT rowid FROM {RUNTIME} LIMIT 1"
    database.execute(f"UPDATE {RUNTIME} SET nameId = 910 WHERE rowid = ({call})")
    first = f"rowid = (SELECT rowid FROM {KERNEL} LIMIT 1)"
    database.execute(
        f"UPDATE {KERNEL} SET contextId = ? WHERE {first}", (secrets["text as a number"],)
    )
    database.execute(
        f"UPDATE {KERNEL} SET cacheConfig = ? WHERE {first}",
        (secrets["blob as a number"].encode(),),
    )
    database.execute(
        f"INSERT INTO {STRINGS} VALUES (914, ?)", (secrets["blob as a kernel's name"].encode(),)
    )
    database.execute(f"UPDATE {KERNEL} SET demangledName = 914 WHERE {first}")
    thread = f"SELECT globalTid FROM {NVTX} LIMIT 1"
    statement = (
        f'INSERT INTO {NVTX} (start, "end", eventType, globalTid, text) SELECT 11, 12, 59, '
        f"({thread}), ?"
    )
    database.execute(statement, (secrets["blob as a range's text"].encode(),))


def _schema(database: sqlite3.Connection, secrets: dict[str, str]) -> None:
    database.execute(f"ALTER TABLE {KERNEL} ADD COLUMN extra TEXT DEFAULT '{secrets['default']}'")
    database.execute(f"UPDATE {KERNEL} SET extra = ?", (secrets["unknown column"],))
    database.execute(f"ALTER TABLE {RUNTIME} ADD COLUMN name TEXT /* {secrets['comment']} */")
    database.execute(f"UPDATE {RUNTIME} SET name = ?", (secrets["name in a call"],))
    database.execute(f"CREATE VIEW shown AS SELECT '{secrets['view']}' AS value")
    database.execute(
        f"CREATE TRIGGER fired AFTER DELETE ON {KERNEL} BEGIN SELECT '{secrets['trigger']}'; END"
    )
    database.execute(f"CREATE INDEX found ON {STRINGS} (value) WHERE value <> '{secrets['index']}'")
    # Numbers in the header that a program may set.
    database.execute(f"PRAGMA user_version = {int.from_bytes(b'hunt', 'big')}")


def _free_pages(database: sqlite3.Connection, secrets: dict[str, str]) -> None:
    """Leave secrets in pages that belong to nothing, and in what is left free of others."""
    database.execute("CREATE TABLE gone (value TEXT)")
    database.executemany("INSERT INTO gone VALUES (?)", [(secrets["dropped table"] * 50,)] * 200)
    for statement in ("COMMIT", "BEGIN", "DROP TABLE gone"):
        database.execute(statement)
    rows = [(10_000 + n, secrets["deleted row"]) for n in range(300)]
    database.executemany(f"INSERT INTO {STRINGS} VALUES (?, ?)", rows)
    for statement in (
        "COMMIT",
        "BEGIN",
        f"DELETE FROM {STRINGS} WHERE id >= 10000",
        "COMMIT",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ):
        database.execute(statement)
