"""The payloads that ``nsys export --dynamic-tables=all`` writes as tables, a table per schema.

NVIDIA documents them for export schema 3.28 (nsys 2026.4). No real report with such tables was
available. A table has the name of a process, a domain and a schema, and a column for each single
number. Its rows refer to ranges by ``eventId``.
"""

import re
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.names import bare_name
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.ranges import DOMAIN_ROW, names_of_rows
from nsyspipe.reader.report import (
    NVTX,
    PAYLOAD_LINKS,
    PAYLOAD_NAMES,
    PAYLOAD_TABLE_PREFIX,
    Report,
    process_of,
)
from nsyspipe.reader.tables import quoted

EVENT_ID = "eventId"
# Process, domain and schema. The table of an array has the name of a field after them.
_TABLE_NAME = re.compile(
    PAYLOAD_TABLE_PREFIX + r"(?P<process>-?[0-9]{1,20})_(?P<domain>[0-9]{1,20})_[0-9]{1,20}",
    re.ASCII,
)
_NCCL = "NCCL"
# A program with more schemas than this is not expected, and each schema costs a query.
_MAX_TABLES = 4096


class PayloadTable(Struct, frozen=True):
    """A table of payloads of one schema."""

    name: str
    process_id: int
    domain_id: int
    # Columns by field.
    columns: dict[str, str]


class TableValues(Struct, frozen=True):
    """The values of some fields, for the events of a report."""

    # Which events have a payload in a table.
    is_described: Flags
    # By field, for each event.
    values: dict[str, Int64]
    known: dict[str, Flags]


def is_linked(report: Report) -> str:
    """Return the SQL condition for the NVTX rows that have a payload in a table."""
    links = quoted(report.physical(PAYLOAD_LINKS) or PAYLOAD_LINKS)
    event_id = quoted(EVENT_ID)
    return f"{event_id} IN (SELECT {event_id} FROM {links})"  # noqa: S608


def has_tables_of_domains(report: Report, domains: Collection[tuple[int, int]]) -> bool:
    """Tell whether an export has tables of payloads of some domains.

    `domains` are pairs of a process and the number of a domain.
    """
    for name in report.tables:
        # Not a full match, because the tables of arrays count too. They have a longer name.
        match = _TABLE_NAME.match(name)
        if match is None:
            continue
        domain_of_table = (int(match["process"]), int(match["domain"]))
        if domain_of_table in domains:
            return True
    return False


def find_payload_tables(
    report: Report, strings: Strings, spellings: Mapping[str, Collection[str]]
) -> list[PayloadTable]:
    """Return the tables of payloads that have some of the fields and may be of NCCL.

    `spellings` has the possible names of each field, as `bare_name` returns them. The result is
    empty if the report does not connect payloads with events. Of very many tables, only the first
    `_MAX_TABLES` are returned.
    """
    if not report.has(PAYLOAD_LINKS, EVENT_ID) or not report.has(NVTX, EVENT_ID):
        return []
    original_names = _original_names(report)
    domains_of_others = _domains_of_others(report, strings)
    tables: list[PayloadTable] = []
    for name, columns in report.tables.items():
        match = _TABLE_NAME.fullmatch(name)
        if match is None or EVENT_ID not in columns:
            continue
        process_id = int(match["process"])
        domain_id = int(match["domain"])
        is_of_other = (process_id, domain_id) in domains_of_others
        column_of_field = _columns_of_fields(columns, original_names, spellings)
        if column_of_field and not is_of_other:
            tables.append(PayloadTable(name, process_id, domain_id, column_of_field))
    return tables[:_MAX_TABLES]


def _domains_of_others(report: Report, strings: Strings) -> set[tuple[int, int]]:
    """Return process and number of each domain that has another name than NCCL's.

    A domain without a name may be NCCL's, and is left out. A domain without a number has number 0.
    """
    columns = dict.fromkeys(("globalTid", "domainId", "textId"), "int")
    columns["text"] = "text"
    rows = report.select(NVTX, columns, where=f"eventType = {DOMAIN_ROW}")
    texts = names_of_rows(rows, strings).to_pylist()
    threads = rows["globalTid"].to_pylist()
    domain_ids = rows["domainId"].to_pylist()
    domains_of_others: set[tuple[int, int]] = set()
    for name, thread, domain_id in zip(texts, threads, domain_ids, strict=True):
        may_be_nccls = name is None or name.startswith(_NCCL)
        if not may_be_nccls and thread is not None:
            domains_of_others.add((process_of(thread), domain_id or 0))
    return domains_of_others


def _original_names(report: Report) -> dict[str, set[str]]:
    """Return the names that a program gave to fields, by the name of the column."""
    original_names: dict[str, set[str]] = {}
    columns = {"originalName": "text", "sanitizedName": "text"}
    for row in report.few(PAYLOAD_NAMES, columns):
        names_of_column = original_names.setdefault(row["sanitizedName"], set())
        names_of_column.add(row["originalName"])
    return original_names


def _columns_of_fields(
    columns: Collection[str],
    original_names: Mapping[str, Collection[str]],
    spellings: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """Return the column of each field that is among some columns.

    `original_names` has the names that the program gave to the field of a column. `spellings` has
    the possible names of each field, the preferred one first.
    """
    column_of_bare_name: dict[str, str] = {}
    for column in columns:
        for name in (column, *original_names.get(column, ())):
            column_of_bare_name.setdefault(bare_name(name), column)
    column_of_field: dict[str, str] = {}
    for field, spellings_of_field in spellings.items():
        existing = [name for name in spellings_of_field if name in column_of_bare_name]
        if existing:
            column_of_field[field] = column_of_bare_name[existing[0]]
    return column_of_field


def read_payload_tables(
    report: Report, tables: Collection[PayloadTable], events: pa.Table, fields: Collection[str]
) -> TableValues:
    """Read the fields of the events that have exactly one payload in some tables.

    `events` has ``eventId``, ``globalTid`` and ``domainId`` of each event. The values of an event
    with no payload, or with several, are not known.
    """
    n_events = events.num_rows
    values = {field: np.zeros(n_events, np.int64) for field in fields}
    known = {field: np.zeros(n_events, np.bool_) for field in fields}
    n_payloads_of_event = np.zeros(n_events, np.int64)
    event_rows = _EventRows(events)
    for table in tables:
        payloads = _read_table(report, table)
        # A payload that refers to no event has the id -1, which `find` does not find.
        event_ids = filled(payloads[EVENT_ID], -1)
        row_of_payload = event_rows.find(table, event_ids)
        has_event = row_of_payload >= 0
        rows = row_of_payload[has_event]
        # Unlike an addition by index, this counts each of several payloads of one event.
        np.add.at(n_payloads_of_event, rows, 1)
        for field in table.columns:
            column = payloads[field]
            values[field][rows] = filled(column, 0)[has_event]
            known[field][rows] = column.is_valid().to_numpy()[has_event]
    # Of several payloads of one event, the last one was written above. It does not count.
    is_described = n_payloads_of_event == 1
    for field in fields:
        known[field] &= is_described
    return TableValues(is_described, values, known)


def _read_table(report: Report, table: PayloadTable) -> pa.Table:
    """Read the event and the fields of each payload. Only whole numbers are values."""
    derived: dict[str, str] = {}
    for field, column in table.columns.items():
        name = quoted(column)
        derived[field] = f"CASE typeof({name}) WHEN 'integer' THEN {name} END"
    return report.select(table.name, {EVENT_ID: "int"}, derived=derived)


class _EventRows:
    """The rows of the events of a report, by the numbers of the events."""

    def __init__(self, events: pa.Table) -> None:
        # An event without a number has the number -1.
        id_of_event = filled(events[EVENT_ID], -1)
        self._rows_by_id = np.argsort(id_of_event, kind="stable")
        self._sorted_ids = id_of_event[self._rows_by_id]
        self._process_of_row = process_of(events["globalTid"].to_numpy())
        self._domain_of_row = filled(events["domainId"], 0)

    def find(self, table: PayloadTable, event_ids: Int64) -> Int64:
        """Return, for each of some ids in a table of payloads, the row of the event with this id.

        -1 if there is no such event, or if the event is of another process or domain than the
        table. A negative id is the id of no event.
        """
        n_events = self._sorted_ids.size
        if not n_events:
            return np.full(event_ids.size, -1)
        place = np.searchsorted(self._sorted_ids, event_ids)
        # An id above all others gets the last place, whose id differs.
        place = np.minimum(place, n_events - 1)
        rows = self._rows_by_id[place]
        has_id = (self._sorted_ids[place] == event_ids) & (event_ids >= 0)
        is_of_process = self._process_of_row[rows] == table.process_id
        is_of_domain = self._domain_of_row[rows] == table.domain_id
        return np.where(has_id & is_of_process & is_of_domain, rows, -1)
