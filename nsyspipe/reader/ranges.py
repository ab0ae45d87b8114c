"""NVTX ranges of a report: texts from two columns, domains per process, ends that were never recorded."""

import re
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from nsyspipe.analysis.attribution import filled
from nsyspipe.model import canonical
from nsyspipe.model.comm_kernels import comm_call_of
from nsyspipe.model.names import is_library_domain
from nsyspipe.model.table import Flags
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.report import TIME_LIMIT, Report, process_of

# NVTX_EVENTS.eventType
THREAD_NAME_ROW = 39
_PUSH_POP = 59
_START_END = 60
DOMAIN_ROW = 75
_WANTED = f"eventType IN ({THREAD_NAME_ROW}, {_PUSH_POP}, {_START_END}, {DOMAIN_ROW})"

_NEEDED = ("start", "end", "eventType", "globalTid")

# Their ranges are for nobody's steps, and NCCL's are known by their texts even where no row names
# the domain.
_NEVER_DOMAINS = ("NCCL", "MPI")
_NEVER_TEXT = r"^(nccl|MPI_)"
_NCCL_TEXT = r"(?i)^nccl"
_MPI_RANK = re.compile(r"^MPI Rank ([0-9]{1,18})$")
_ABSENT = -1


class Ranges(Struct, frozen=True):
    """What NVTX recorded."""

    table: pa.Table  # `canonical.RANGES`: ranges of all domains but NCCL's and MPI's
    mpi_ranks: dict[int, int]  # rank by process, from thread-name rows ``MPI Rank N``
    n_dropped: int  # ranges that ended before they started, or at impossible times
    open_end_ns: int | None  # the end of ranges that were never closed; None when all were
    is_recorded: bool  # whether the report has the table at all
    has_communication: bool = False  # whether NCCL or MPI opened a domain or a range
    n_nccl: int = 0  # ranges of NCCL, by their text or their domain
    # `canonical.COMM_CALLS`: calls that communicate, whatever domain they are in
    comm_calls: pa.Table = field(default_factory=canonical.COMM_CALLS.empty)


def read_ranges(
    report: Report, strings: Strings, operation_ends: Iterable[pa.ChunkedArray]
) -> Ranges:
    """Read the ranges; one that was never closed ends 1 ns after the report's last event, operations included."""
    if not report.has(versions.NVTX, *_NEEDED):
        return Ranges(canonical.RANGES.empty(), {}, 0, None, is_recorded=False)
    events = _events(report, strings, _WANTED)
    ranges = _of_kinds(events, _PUSH_POP, _START_END)
    open_end = _open_end(report, ranges, operation_ends) if ranges["end"].null_count else None
    domains = _of_kinds(events, DOMAIN_ROW)
    table, n_dropped = _table(ranges, open_end, domains)
    is_named = any((name or "").startswith(_NEVER_DOMAINS) for name in domains["text"].to_pylist())
    is_nccls = of_domains(ranges, domains, lambda name: name.startswith(_NEVER_DOMAINS[0]))
    is_nccls |= _matching(ranges, _NCCL_TEXT)
    ranks = _mpi_ranks(_of_kinds(events, THREAD_NAME_ROW))
    return Ranges(
        table,
        ranks,
        n_dropped,
        open_end,
        is_recorded=True,
        has_communication=is_named or bool(_matching(ranges, _NEVER_TEXT).any()),
        n_nccl=int(np.count_nonzero(is_nccls)),
        comm_calls=_comm_calls(ranges, open_end),
    )


def read_ranges_again(
    report: Report,
    strings: Strings,
    threads: Iterable[int],
    *,
    span: tuple[int, int] | None,
    open_end_ns: int | None,
) -> pa.Table:
    """Read the ranges of some threads as `canonical.RANGES`: those that touch a host time (first, last), or all."""
    if not report.has(versions.NVTX, *_NEEDED):
        return canonical.RANGES.empty()
    where = (
        f"eventType IN ({_PUSH_POP}, {_START_END}) AND globalTid IN "
        f"({', '.join(map(str, threads))})"
    )
    if span is not None:
        where += f' AND "start" + 0 <= {span[1]} AND ("end" + 0 >= {span[0]} OR "end" IS NULL)'
    events = _events(report, strings, f"({where}) OR eventType = {DOMAIN_ROW}")
    return _table(
        _of_kinds(events, _PUSH_POP, _START_END), open_end_ns, _of_kinds(events, DOMAIN_ROW)
    )[0]


def _events(report: Report, strings: Strings, where: str) -> pa.Table:
    columns = dict.fromkeys((*_NEEDED, "textId", "domainId"), "int") | {"text": "text"}
    events = report.select(versions.NVTX, columns, where=where)
    events = events.filter(pc.and_(pc.is_valid(events["start"]), pc.is_valid(events["globalTid"])))
    return events.set_column(
        events.schema.get_field_index("text"), "text", names_of_rows(events, strings)
    )


def _of_kinds(events: pa.Table, *kinds: int) -> pa.Table:
    return events.filter(pc.is_in(events["eventType"], value_set=pa.array(kinds)))


def _table(ranges: pa.Table, open_end: int | None, domains: pa.Table) -> tuple[pa.Table, int]:
    starts = ranges["start"].to_numpy()
    threads = ranges["globalTid"].to_numpy()
    ends = filled(ranges["end"], open_end or 0)
    forwards = (ends >= starts) & (ends < TIME_LIMIT) & (starts > -TIME_LIMIT)
    is_library = of_domains(ranges, domains, is_library_domain)
    is_never = of_domains(
        ranges, domains, lambda name: is_library_domain(name) and name.startswith(_NEVER_DOMAINS)
    )
    is_never |= _matching(ranges, _NEVER_TEXT)
    is_kept = forwards & ~is_never & pc.is_valid(ranges["text"]).to_numpy()
    columns = {
        "process_id": process_of(threads),
        "thread_id": threads,
        "start_ns": starts,
        "end_ns": ends,
    }
    columns = {
        name: values[is_kept] for name, values in (columns | {"is_library": is_library}).items()
    }
    table = canonical.RANGES.table(columns | {"text": ranges["text"].filter(pa.array(is_kept))})
    return table, int(np.count_nonzero(~forwards))


def _comm_calls(ranges: pa.Table, open_end: int | None) -> pa.Table:
    texts = ranges["text"].combine_chunks()
    is_call = [
        text is not None and comm_call_of(text) is not None for text in texts.dictionary.to_pylist()
    ]
    if not any(is_call):
        return canonical.COMM_CALLS.empty()
    rows = np.flatnonzero(
        np.append(is_call, False)[pc.fill_null(texts.indices, len(is_call)).to_numpy()]
    )
    chosen = ranges.take(pa.array(rows))
    threads = chosen["globalTid"].to_numpy()
    starts = chosen["start"].to_numpy()
    ends = filled(chosen["end"], open_end or 0)
    columns = {
        "process_id": process_of(threads),
        "thread_id": threads,
        "start_ns": starts,
        "end_ns": ends,
    }
    calls = canonical.COMM_CALLS.table(columns | {"text": chosen["text"]})
    is_possible = (ends >= starts) & (ends < TIME_LIMIT) & (starts > -TIME_LIMIT)
    return calls if is_possible.all() else calls.filter(pa.array(is_possible))


def names_of_rows(rows: pa.Table, strings: Strings) -> pa.DictionaryArray:
    """Merge ``text`` (inline) and ``textId`` (a string's id) into one dictionary column; neither is null."""
    ids, id_index = np.unique(filled(rows["textId"], _ABSENT), return_inverse=True)
    named = strings.lookup(ids)
    inline = rows["text"].combine_chunks().dictionary_encode()
    if inline.dictionary.to_pylist() in ([], [""]):
        return pa.DictionaryArray.from_arrays(pa.array(id_index.astype(np.int32)), named)
    is_inline = pc.not_equal(rows["text"], "").to_numpy()
    index = np.where(is_inline, ids.size + inline.indices.to_numpy(), id_index).astype(np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(index), pa.concat_arrays([named, inline.dictionary])
    )


def _open_end(report: Report, ranges: pa.Table, operation_ends: Iterable[pa.ChunkedArray]) -> int:
    last: list[int | None] = [
        pc.max(column).as_py() for column in (*operation_ends, ranges["start"], ranges["end"])
    ]
    calls = [name for name in ("start", "end") if report.has(versions.RUNTIME, name)]
    last += [report.number(versions.RUNTIME, f'max("{name}")') for name in calls]
    return min(max(value for value in last if value is not None) + 1, TIME_LIMIT)


def of_domains(rows: pa.Table, domains: pa.Table, is_wanted: Callable[[str], bool]) -> Flags:
    """Tell which rows are in a domain with such a name, as rows of ``DOMAIN_ROW`` give it; domain ids are per process."""
    processes = process_of(rows["globalTid"].to_numpy())
    domain_ids = filled(rows["domainId"], 0)
    inside = np.zeros(rows.num_rows, np.bool_)
    named = (domains[name].to_pylist() for name in ("text", "globalTid", "domainId"))
    for text, thread, domain in zip(*named, strict=True):
        if None not in {text, thread, domain} and is_wanted(text):
            inside |= (processes == process_of(thread)) & (domain_ids == domain)
    return inside


def _matching(ranges: pa.Table, pattern: str) -> Flags:
    texts = ranges["text"].combine_chunks()
    hits = pc.match_substring_regex(texts.dictionary, pattern).take(texts.indices)
    flags: Flags = pc.fill_null(hits, fill_value=False).to_numpy(zero_copy_only=False)
    return flags


def _mpi_ranks(names: pa.Table) -> dict[int, int]:
    """Return the rank of each process that one row names; contradicting rows name none."""
    ranks_of_process: dict[int, set[int]] = {}
    for thread, text in zip(names["globalTid"].to_pylist(), names["text"].to_pylist(), strict=True):
        match = _MPI_RANK.match(text or "")
        if match:
            ranks_of_process.setdefault(process_of(thread), set()).add(int(match[1]))
    return {process: ranks.pop() for process, ranks in ranks_of_process.items() if len(ranks) == 1}
