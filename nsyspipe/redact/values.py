"""Texts that say something about the capture, each checked against the form of its place; NCCL's payloads packed anew."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.reader import report as versions
from nsyspipe.reader.metadata import LAUNCHER_SIZES
from nsyspipe.reader.payload import HEADER, decode_fields, fits_layout, names_in
from nsyspipe.reader.payload_layouts import Layout, bare_name
from nsyspipe.redact.copy import Checked
from nsyspipe.redact.tables import CHECKED, NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.reader.report import Report
    from nsyspipe.redact.copy import Copying

    Key = tuple[int, int]


_ENVIRONMENT = "environment and settings of the capture"
_EXPORT = "settings of the export"
_SYSTEM = "host and system"
_FORM = "values of an unexpected form"

_VARIABLES = frozenset(
    (
        "RANK",
        *LAUNCHER_SIZES,
        *LAUNCHER_SIZES.values(),
        "WORLD_SIZE",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
    )
)
_DEVICES = "CUDA_VISIBLE_DEVICES"
_PRIVATE = {"HOME", "HOSTNAME", "LOGNAME", "USER", "USERNAME"}
_SHORTEST_NAME = 3
# As `metadata` takes them apart.
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
_ENVIRONMENT_ROW = re.compile(r"PROCESS_[0-9]{1,9}:ENVIRONMENT_VARIABLE")
_INTEGER = re.compile(r" ?[0-9]{1,9} ?")
_INTEGERS = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{1,3}){0,63})?")

_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,8}){0,5}(?:-[0-9]{1,16}v[0-9]{1,3})?")
_TABLES, _LAZY = "EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_LAZY"
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")

# "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA RTX 6000 Ada Generation", "NVIDIA H200 MIG 1g.18gb".
_MODEL = re.compile(
    r"(?:(?:NVIDIA|Tesla|Quadro|GeForce|TITAN|GRID) )?(?:(?:Tesla|Quadro|GeForce|TITAN|GRID|RTX|GTX|PRO) ){0,3}"
    r"(?:[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}(?:-(?:SXM[0-9]?|PCI[Ee]|NVL|[0-9]{1,4}[A-Z]{0,2}|[0-9]{1,4}GB)){0,3}"
    r"|[0-9]{3,4}(?:[A-Z]{1,2})?|V|X|Xp|Z|RTX|Thor|Orin)"
    r"(?: (?:Ti|SUPER|Super|Ada|Blackwell|Generation|Laptop|Max-Q|GPU|PCIe|NVL|SXM[0-9]?|HBM[0-9]e?|D|with|Design"
    r"|Server|Workstation|Max-Q|Edition|MIG|[0-9]{1,4}[Gg][Bb]|[0-9]g\.[0-9]{1,3}gb)){0,6}"
)


def copy_facts(copying: Copying, host: str | None) -> None:
    """Copy versions, ranks, GPU models, and put another name for the host."""
    for base in (versions.EXPORT_META, versions.EXPORT_META_OLD):
        for table in copying.tables(base):
            _copy_rows(copying, table, _EXPORT, _export_rows(copying, table))
    for table in copying.tables(versions.CAPTURE_META):
        _copy_rows(copying, table, _ENVIRONMENT, _variable_rows(copying.report, table))
    for table in copying.tables(versions.SYSTEM_ENV):
        rows = [] if host is None else [("Hostname", host)]
        _copy_rows(copying, table, _SYSTEM, rows)
    for table in copying.tables(versions.GPU):
        copying.copy(table, {"name": Checked("TEXT", _model_names(copying, table))})


def host_of(report: Report) -> str | None:
    """Return the report's host as `metadata` finds it."""
    if not report.has(versions.SYSTEM_ENV, "name", "value"):
        return None
    names = report.select(versions.SYSTEM_ENV, {"value": "text"}, where="name = 'Hostname'")
    found: list[str] = names["value"].to_pylist()
    return found[0] if found else None


def names_of(report: Report) -> re.Pattern[str] | None:
    """Return what finds the host's name, the user's and the home directory in a text; None where nothing names them.

    Names of one or two letters and root's are no names that could be found.
    """
    found = {host_of(report) or ""}
    if report.has(versions.CAPTURE_META, "name", "value"):
        where = "name LIKE '%ENVIRONMENT_VARIABLE'"
        for text in report.select(versions.CAPTURE_META, {"value": "text"}, where=where)[
            "value"
        ].to_pylist():
            made = _ASSIGNMENT.match(text)
            if made and made["name"] in _PRIVATE:
                found.add(made["value"].rstrip("/"))
    names = {one for one in found if len(one) >= _SHORTEST_NAME and one not in {"root", "/root"}}
    if not names:
        return None
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)


def _copy_rows(copying: Copying, table: str, kind: str, rows: Iterable[tuple[str, str]]) -> None:
    copied = 0
    if copying.report.has(table, "name", "value"):  # else no row says anything
        copied = copying.create(table, {"name": "TEXT", "value": "TEXT"}, rows)
    copying.removed.add(kind, table, copying.count(table) - copied)


def _named_values(
    report: Report, table: str, where: str | None = None
) -> Iterable[tuple[str, str]]:
    if not report.has(table, "name", "value"):
        return
    found = report.select(table, {"name": "text", "value": "text"}, where=where)
    yield from zip(found["name"].to_pylist(), found["value"].to_pylist(), strict=True)


def _export_rows(copying: Copying, table: str) -> list[tuple[str, str]]:
    rows = []
    names = ", ".join(f"'{name}'" for name in (*_VERSIONS, _TABLES, _LAZY))
    for name, value in _named_values(copying.report, table, f"name IN ({names})"):
        if name == _LAZY:
            rows.append((name, "false" if value.lower() == "false" else "true"))
        elif name == _TABLES:
            rows.append((name, _table_list(value.strip())))
        elif _VERSION.fullmatch(value):
            rows.append((name, value))
        else:
            copying.removed.add(_FORM, f"{table}.value", 1, "values")
    return rows


def _table_list(value: str) -> str:
    """Return those of nsyspipe's tables that a list of tables names, in a list that is empty only if that was."""
    known = [table for table in {**NUMBERS, **CHECKED} if table in value]
    return ",".join(known) or ("-" if value else "")


def _variable_rows(report: Report, table: str) -> list[tuple[str, str]]:
    """Return the variables that name ranks and devices.

    A value of another form becomes a mark, one for each value: variables that contradict each other
    must go on doing so.
    """
    rows = []
    marks: dict[tuple[str, str], str] = {}
    wanted = " OR ".join(f"value LIKE '{name}=%'" for name in sorted(_VARIABLES))
    where = f"name LIKE '%ENVIRONMENT_VARIABLE' AND ({wanted})"
    for row, text in _named_values(report, table, where):
        match = _ASSIGNMENT.match(text)
        if not match or match["name"] not in _VARIABLES:
            continue
        name, value = match["name"], match["value"]
        form = _INTEGERS if name == _DEVICES else _INTEGER
        if not form.fullmatch(value):
            value = marks.setdefault((name, value), f"?{len(marks)}")
        place = row if _ENVIRONMENT_ROW.fullmatch(row) else "ENVIRONMENT_VARIABLE"
        rows.append((place, f'{name}="{value}"'))
    return rows


def _model_names(copying: Copying, table: str) -> list[tuple[int, str]]:
    """Return each GPU's model by row; names of another form become marks, so that two models stay two."""
    found = copying.report.select(table, {"name": "text"}, derived={"row": "rowid"})
    marks: dict[str, str] = {}
    rows = []
    for row, name in zip(found["row"].to_pylist(), found["name"].to_pylist(), strict=True):
        is_model = not name or _MODEL.fullmatch(name)
        if not is_model:
            copying.removed.add(_FORM, f"{table}.name", 1, "values")
        rows.append(
            (row, name if is_model else marks.setdefault(name, f"unknown model {len(marks)}"))
        )
    return rows


# NCCL's payloads, packed anew: the numbers that analysis reads, and nothing between or behind them.


# Stands for a payload that analysis only counts.
MARK = b"\x00"

_LOW = 0xFFFFFFFF
PAYLOADS = "payloads of NVTX ranges"


def packed(
    blobs: pa.ChunkedArray, domains: NDArray[np.int64], layouts: Mapping[Key, Layout]
) -> list[bytes]:
    """Return each blob with the numbers that `payload_fields` finds in it; a mark for one that fits no layout.

    Parameters
    ----------
    domains
        Domain of the range of each blob.
    """
    decoded = decode_fields(blobs, domains, layouts).is_decoded.tolist()
    by_low: dict[Key, list[tuple[int, Layout]]] = {}
    for (domain, schema), layout in layouts.items():
        by_low.setdefault((domain, schema & _LOW), []).append((schema, layout))
    return [
        _packed(blob, domain, by_low) if fits else MARK
        for blob, domain, fits in zip(blobs.to_pylist(), domains.tolist(), decoded, strict=True)
    ]


def _packed(blob: bytes, domain: int, layouts: Mapping[Key, list[tuple[int, Layout]]]) -> bytes:
    header = np.frombuffer(blob, HEADER, count=1)
    length = np.array([len(blob)])
    for schema, layout in reversed(layouts.get((domain, int(header["schema"][0])), [])):
        if not fits_layout(header, length, schema, layout)[0]:
            continue
        payload = bytearray(layout.n_bytes)
        source = blob[HEADER.itemsize :]
        for name in names_in(layout).values():
            n_bytes = layout.dtype([name])[name].itemsize
            at = layout.fields[name][1]
            payload[at : at + n_bytes] = source[at : at + n_bytes]
        n_total = HEADER.itemsize + layout.n_bytes
        anew = 1, schema & _LOW, schema >> 32 & _LOW, layout.n_bytes, n_total
        return np.array([anew], HEADER).tobytes() + payload
    return MARK


def copy_layouts(copying: Copying) -> None:
    """Copy how payloads lie in memory, with the names of the numbers that are read; other names become numbers."""
    for table in copying.tables(versions.PAYLOAD_ENTRIES):
        copying.copy(table, {"name": Checked("TEXT", _entry_names(copying, table))})


def _entry_names(copying: Copying, table: str) -> list[tuple[int, str]]:
    """Return each entry's name by row.

    Names that are equal stay so, also those that are equal but for case and punctuation: placing the
    entries depends on it.
    """
    found = copying.report.select(table, {"name": "text"}, derived={"row": "rowid"})
    spellings: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    rows = []
    for row, name in zip(found["row"].to_pylist(), found["name"].to_pylist(), strict=True):
        if not name:
            continue
        bare = bare_name(name)
        mine = spellings.setdefault(bare, {})
        known = bare if _is_read(bare) else f"field{numbers.setdefault(bare, len(numbers))}"
        rows.append((row, known + "_" * mine.setdefault(name, len(mine))))
        copying.removed.add(PAYLOADS, f"{table}.name", int(known != bare), "values")
    return rows


def _is_read(bare: str) -> bool:
    """Tell whether a field of this name is one that is read."""
    return bool(names_in(Layout(0, is_exact=True, fields={bare: ("<u8", 0)})))
