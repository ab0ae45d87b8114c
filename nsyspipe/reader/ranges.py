"""NVTX ranges of a report: texts from two columns, domains per process, ends that were never recorded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model import canonical
from nsyspipe.model.names import is_library_domain
from nsyspipe.reader import report as versions
from nsyspipe.reader.operations import TIME_LIMIT, process_of, process_of_thread
from nsyspipe.reader.report import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsyspipe.model.types import Flags
    from nsyspipe.reader.calls import Strings
    from nsyspipe.reader.report import Report


# NVTX_EVENTS.eventType
_THREAD_NAME, _PUSH_POP, _START_END, _DOMAIN = 39, 59, 60, 75
_WANTED = f"eventType IN ({_THREAD_NAME}, {_PUSH_POP}, {_START_END}, {_DOMAIN})"

_NEEDED = ("start", "end", "eventType", "globalTid")

# Their ranges are for nobody's steps, and NCCL's are known by their texts even where no row names the domain.
_NEVER_DOMAINS = ("NCCL", "MPI")
_NEVER_TEXT, _NCCL_TEXT = r"^(nccl|MPI_)", r"(?i)^nccl"
_MPI_RANK = re.compile(r"^MPI Rank ([0-9]{1,18})$")
_ABSENT = -1


@dataclass(frozen=True)
class Ranges:
    """What NVTX recorded."""

    table: pa.Table  # `canonical.RANGES`: ranges of all domains but NCCL's and MPI's
    mpi_ranks: dict[int, int]  # rank by process, from thread-name rows ``MPI Rank N``
    n_dropped: int  # ranges that ended before they started, or at impossible times
    open_end_ns: int | None  # the end of ranges that were never closed; None when all were
    is_recorded: bool  # whether the report has the table at all
    # Whether NCCL or MPI opened a domain or a range: then something may have communicated
    has_communication: bool = False
    n_nccl: int = 0  # ranges of NCCL, by their text or their domain


def read_ranges(report: Report, strings: Strings, operation_ends: Iterable[pa.ChunkedArray]) -> Ranges:
    """Read the ranges; one that was never closed ends 1 ns after the report's last event, operations included."""
    if not report.has(versions.NVTX, *_NEEDED):
        return Ranges(canonical.RANGES.empty(), {}, 0, None, is_recorded=False)
    found = _events(report, strings, _WANTED)
    ranges = _of_kinds(found, _PUSH_POP, _START_END)
    open_end = _open_end(report, ranges, operation_ends) if ranges["end"].null_count else None
    domains = _of_kinds(found, _DOMAIN)
    table, n_dropped = _table(ranges, open_end, domains)
    mpi_ranks = _mpi_ranks(_of_kinds(found, _THREAD_NAME))
    has_communication = any(
        (name or "").startswith(_NEVER_DOMAINS) for name in domains["text"].to_pylist()
    ) or _has_texts(ranges, _NEVER_TEXT)
    return Ranges(
        table,
        mpi_ranks,
        n_dropped,
        open_end,
        is_recorded=True,
        has_communication=has_communication,
        n_nccl=_n_nccl(ranges, domains),
    )


def read_ranges_again(
    report: Report,
    strings: Strings,
    threads: Iterable[int],
    *,
    span: tuple[int, int] | None,
    open_end_ns: int | None,
) -> pa.Table:
    """Read the ranges of some threads as `canonical.RANGES`.

    Parameters
    ----------
    span
        Host time from the first to the second, inclusive: ranges that touch it; None takes all.
    open_end_ns
        As the first reading found it.
    """
    if not report.has(versions.NVTX, *_NEEDED):
        return canonical.RANGES.empty()
    where = f"eventType IN ({_PUSH_POP}, {_START_END}) AND globalTid IN ({', '.join(map(str, threads))})"
    if span is not None:
        where += f' AND "start" <= {span[1]} AND ("end" >= {span[0]} OR "end" IS NULL)'
    found = _events(report, strings, f"({where}) OR eventType = {_DOMAIN}")
    ranges = _of_kinds(found, _PUSH_POP, _START_END)
    return _table(ranges, open_end_ns, _of_kinds(found, _DOMAIN))[0]


def _events(report: Report, strings: Strings, where: str) -> pa.Table:
    columns = dict.fromkeys((*_NEEDED, "textId", "domainId"), "int") | {"text": "text"}
    found = report.select(versions.NVTX, columns, where=where)
    found = found.filter(pc.and_(pc.is_valid(found["start"]), pc.is_valid(found["globalTid"])))
    return found.set_column(found.schema.get_field_index("text"), "text", _texts(found, strings))


def _of_kinds(found: pa.Table, *kinds: int) -> pa.Table:
    return found.filter(pc.is_in(found["eventType"], value_set=pa.array(kinds)))


def _table(ranges: pa.Table, open_end: int | None, domains: pa.Table) -> tuple[pa.Table, int]:
    """Return `canonical.RANGES`, and how many of all ranges were dropped for their times."""
    starts, threads = ranges["start"].to_numpy(), ranges["globalTid"].to_numpy()
    ends = as_int(ranges["end"], open_end or 0)
    forwards = (ends >= starts) & (ends < TIME_LIMIT) & (starts > -TIME_LIMIT)
    is_never, is_library = _of_libraries(ranges, domains)
    kept = forwards & ~is_never & pc.is_valid(ranges["text"]).to_numpy()
    table = canonical.RANGES.table(
        {
            "process_id": process_of(threads[kept]),
            "thread_id": threads[kept],
            "start_ns": starts[kept],
            "end_ns": ends[kept],
            "text": ranges["text"].filter(pa.array(kept)),
            "is_library": is_library[kept],
        }
    )
    return table, int(np.count_nonzero(~forwards))


def _texts(found: pa.Table, strings: Strings) -> pa.DictionaryArray:
    """Merge ``text`` (inline) and ``textId`` (a string's id) into one dictionary column; neither is null."""
    by_id = as_int(found["textId"], _ABSENT)
    ids, id_index = np.unique(by_id, return_inverse=True)
    named = strings.lookup(ids)
    inline = found["text"].combine_chunks().dictionary_encode()
    if inline.dictionary.to_pylist() in ([], [""]):
        return pa.DictionaryArray.from_arrays(pa.array(id_index.astype(np.int32)), named)
    text_index = inline.indices.to_numpy()
    is_inline = pc.not_equal(found["text"], "").to_numpy()
    index = np.where(is_inline, ids.size + text_index, id_index).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.concat_arrays([named, inline.dictionary]))


def _open_end(report: Report, ranges: pa.Table, operation_ends: Iterable[pa.ChunkedArray]) -> int:
    """Return the end of ranges that were never closed."""
    last: list[int | None] = [pc.max(column).as_py() for column in (*operation_ends, ranges["start"], ranges["end"])]
    calls = [name for name in ("start", "end") if report.has(versions.RUNTIME, name)]
    last += [report.number(versions.RUNTIME, f'max("{name}")') for name in calls]
    return min(max(value for value in last if value is not None) + 1, TIME_LIMIT)


def _of_libraries(ranges: pa.Table, domains: pa.Table) -> tuple[Flags, Flags]:
    """Tell which ranges are NCCL's or MPI's own, and which any library's; domain ids are per process."""
    texts = ranges["text"].combine_chunks()
    by_text = pc.match_substring_regex(texts.dictionary, _NEVER_TEXT)
    never: Flags = pc.fill_null(by_text.take(texts.indices), fill_value=False).to_numpy(zero_copy_only=False)
    library: Flags = np.zeros(never.size, np.bool_)
    processes = process_of(ranges["globalTid"].to_numpy())
    domain_ids = as_int(ranges["domainId"], 0)
    for row in domains.select(["text", "globalTid", "domainId"]).to_pylist():
        name = row["text"] or ""
        if row["domainId"] is None or not is_library_domain(name):
            continue
        owner = process_of_thread(row["globalTid"])
        own = (processes == owner) & (domain_ids == row["domainId"])
        if name.startswith(_NEVER_DOMAINS):
            never = never | own
        library = library | own
    return never, library


def _has_texts(ranges: pa.Table, pattern: str) -> bool:
    """Tell whether any range's text matches."""
    texts = ranges["text"].combine_chunks()
    texts = texts.dictionary.take(pc.unique(texts.indices).drop_null())
    return bool(pc.any(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _n_nccl(ranges: pa.Table, domains: pa.Table) -> int:
    """Count NCCL's ranges: by their text, and by the domain where a release names them otherwise."""
    texts = ranges["text"].combine_chunks()
    by_text = pc.match_substring_regex(texts.dictionary, _NCCL_TEXT).take(texts.indices)
    own = domains.filter(pc.starts_with(domains["text"].cast(pa.string()), _NEVER_DOMAINS[0]))
    by_domain = pc.is_in(ranges["domainId"], own["domainId"].drop_null())
    return pc.sum(pc.or_kleene(by_text, by_domain)).as_py() or 0


def _mpi_ranks(names: pa.Table) -> dict[int, int]:
    """Return the rank of each process that one row names; contradicting rows name none."""
    found: dict[int, set[int]] = {}
    for thread, text in zip(names["globalTid"].to_pylist(), names["text"].to_pylist(), strict=True):
        if match := _MPI_RANK.match(text or ""):
            found.setdefault(process_of_thread(thread), set()).add(int(match[1]))
    return {process: ranks.pop() for process, ranks in found.items() if len(ranks) == 1}
