"""NVTX ranges of a report.

Their texts are in two columns, domains belong to processes, and some ranges never end.
"""

import re
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from nsyspipe.analysis.attribution import filled
from nsyspipe.model import canonical
from nsyspipe.model.comm_kernels import ADVANCED_GROUP, comm_call_of, usual_text_of
from nsyspipe.model.names import is_library_domain
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    CommCallsOfReportTable,
    RangesOfReportTable,
)
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.facts import only_values
from nsyspipe.reader.report import NVTX, RUNTIME, TIME_LIMIT, Report, are_possible, process_of

# NVTX_EVENTS.eventType
THREAD_NAME_ROW = 39
_PUSH_POP = 59
_START_END = 60
DOMAIN_ROW = 75
# The domain in which nsys has samples of Python.
PYTHON_DOMAIN = "Python Backtrace"
# The domain in which nsys has when threads wait for Python's lock (GIL), and when they hold it.
LOCK_DOMAIN = "GIL Trace"
_WANTED = f"eventType IN ({THREAD_NAME_ROW}, {_PUSH_POP}, {_START_END}, {DOMAIN_ROW})"

_NEEDED = ("start", "end", "eventType", "globalTid")

# Ranges in these domains are never steps. Those of NCCL are also known by their texts, if no row
# names the domain.
_NCCL_DOMAIN = "NCCL"
_NEVER_STEP_DOMAINS = (_NCCL_DOMAIN, "MPI")
_NEVER_STEP_TEXT = r"^(nccl|MPI_)"
_NCCL_TEXT = r"(?i)^nccl"
_MPI_RANK = re.compile(r"^MPI Rank ([0-9]{1,18})$")
_ABSENT = -1


class Ranges(Struct, frozen=True):
    """What NVTX recorded."""

    # `canonical.RANGES`: ranges of all domains except those of NCCL, MPI and Python's lock.
    table: pa.Table
    # Rank by process, from thread names ``MPI Rank N``.
    mpi_ranks: dict[int, int]
    # Ranges that ended before they started, or at impossible times.
    n_dropped: int
    # The end of ranges that never closed, None if all did.
    open_end_ns: int | None
    # Whether the report has the table at all.
    is_recorded: bool
    # Whether NCCL or MPI opened a domain or a range.
    has_communication: bool = False
    # Ranges of NCCL, by their text or their domain.
    n_nccl: int = 0
    # `canonical.COMM_CALLS`: calls that communicate, in any domain.
    comm_calls: CommCallsOfReportTable = field(default_factory=canonical.COMM_CALLS.empty)
    # The process and number of each domain in which nsys has samples of Python, and of each in
    # which it has waits for Python's lock.
    python_domains: tuple[tuple[int, int], ...] = ()
    lock_domains: tuple[tuple[int, int], ...] = ()


def read_ranges(
    report: Report, strings: Strings, operation_ends: Iterable[pa.ChunkedArray]
) -> Ranges:
    """Read the ranges.

    A range that never closed ends 1 ns after the last event or operation of the report.
    """
    if not report.has(NVTX, *_NEEDED):
        return Ranges(
            table=canonical.RANGES.empty(),
            mpi_ranks={},
            n_dropped=0,
            open_end_ns=None,
            is_recorded=False,
        )
    events = _events(report, strings, _WANTED)
    ranges = _of_kinds(events, _PUSH_POP, _START_END)
    open_end_ns = None
    if ranges["end"].null_count:
        open_end_ns = _open_end_ns(report, ranges, operation_ends)
    domains = _of_kinds(events, DOMAIN_ROW)
    table, n_dropped = _table(ranges, open_end_ns, domains)
    has_comm_range = _matching(ranges, _NEVER_STEP_TEXT).any()
    has_communication = _has_comm_domain(domains) or bool(has_comm_range)
    is_in_nccl = of_domains(ranges, domains, _is_nccl_domain)
    # A report may lack the row that names NCCL's domain. Then the texts of its ranges tell.
    is_of_nccl = is_in_nccl | _matching(ranges, _NCCL_TEXT)
    n_nccl = np.count_nonzero(is_of_nccl)
    thread_names = _of_kinds(events, THREAD_NAME_ROW)
    mpi_ranks = _mpi_ranks(thread_names)
    comm_calls = _comm_calls(ranges, is_in_nccl, open_end_ns)
    return Ranges(
        table=table,
        mpi_ranks=mpi_ranks,
        n_dropped=n_dropped,
        open_end_ns=open_end_ns,
        is_recorded=True,
        has_communication=has_communication,
        n_nccl=int(n_nccl),
        comm_calls=comm_calls,
        python_domains=_domains_of_name(domains, PYTHON_DOMAIN),
        lock_domains=_domains_of_name(domains, LOCK_DOMAIN),
    )


def _domains_of_name(domains: pa.Table, name: str) -> tuple[tuple[int, int], ...]:
    """Return the process and number of each domain that has some name, sorted."""
    has_name = pc.equal(domains["text"], name)
    has_name = pc.fill_null(has_name, fill_value=False)
    rows = domains.filter(has_name)
    threads = rows["globalTid"].to_pylist()
    numbers = rows["domainId"].to_pylist()
    processes_and_numbers = set()
    for thread, number in zip(threads, numbers, strict=True):
        if thread is not None and number is not None:
            processes_and_numbers.add((process_of(thread), number))
    return tuple(sorted(processes_and_numbers))


def condition_of_domains(domains: Iterable[tuple[int, int]]) -> str:
    """Return the SQL condition for rows in some domains, each with its process and number."""
    # The globalTids of a process are its globalPid, with any thread number in the low bits. The
    # globalPid of -1, which has all bits, has all bits but these.
    thread_bits = ~process_of(-1)
    conditions = []
    for process, number in domains:
        of_process = f"globalTid BETWEEN {process} AND {process | thread_bits}"
        conditions.append(f"(domainId = {number} AND {of_process})")
    return f"({' OR '.join(conditions)})"


def read_ranges_again(
    report: Report,
    strings: Strings,
    threads: Iterable[int],
    *,
    span: tuple[int, int] | None,
    open_end_ns: int | None,
) -> pa.Table:
    """Read the ranges of some threads as `canonical.RANGES`.

    Only ranges that touch a span (first, last) of host time are read. Without a span, all are read.
    `open_end_ns` is the end of ranges that never closed.
    """
    if not report.has(NVTX, *_NEEDED):
        return canonical.RANGES.empty()
    thread_ids = ", ".join(map(str, threads))
    where = f"eventType IN ({_PUSH_POP}, {_START_END}) AND globalTid IN ({thread_ids})"
    if span is not None:
        first_ns, last_ns = span
        # A sum is a number, but a column of type TEXT would be compared letter by letter.
        ends_later = f'("end" + 0 >= {first_ns} OR "end" IS NULL)'
        where += f' AND "start" + 0 <= {last_ns} AND {ends_later}'
    where = f"({where}) OR eventType = {DOMAIN_ROW}"
    events = _events(report, strings, where)
    ranges = _of_kinds(events, _PUSH_POP, _START_END)
    domains = _of_kinds(events, DOMAIN_ROW)
    table, _ = _table(ranges, open_end_ns, domains)
    return table


def _events(report: Report, strings: Strings, where: str) -> pa.Table:
    """Return the NVTX rows that meet an SQL condition and have a start and a thread."""
    columns = dict.fromkeys((*_NEEDED, "textId", "domainId"), "int")
    columns["text"] = "text"
    events = report.select(NVTX, columns, where=where)
    has_start = pc.is_valid(events["start"])
    has_thread = pc.is_valid(events["globalTid"])
    is_complete = pc.and_(has_start, has_thread)
    events = events.filter(is_complete)
    text_column = events.schema.get_field_index("text")
    names = names_of_rows(events, strings)
    return events.set_column(text_column, "text", names)


def _of_kinds(events: pa.Table, *kinds: int) -> pa.Table:
    wanted_kinds = pa.array(kinds)
    is_of_kinds = pc.is_in(events["eventType"], value_set=wanted_kinds)
    return events.filter(is_of_kinds)


def _table(ranges: pa.Table, open_end_ns: int | None, domains: pa.Table) -> tuple[pa.Table, int]:
    """Return `canonical.RANGES`, and the number of ranges with impossible times.

    The table leaves out these ranges, those without a text, and those that are never steps.
    `open_end_ns` is the end of ranges that never closed; None if all closed.
    """
    starts = ranges["start"].to_numpy()
    threads = ranges["globalTid"].to_numpy()
    ends = _ends(ranges, open_end_ns)
    is_possible = are_possible(starts, ends)
    is_library = of_domains(ranges, domains, is_library_domain)
    is_never_step = of_domains(ranges, domains, _is_never_domain)
    is_never_step |= _matching(ranges, _NEVER_STEP_TEXT)
    texts = ranges["text"]
    has_text = pc.is_valid(texts).to_numpy()
    is_chosen = is_possible & ~is_never_step & has_text
    processes = process_of(threads)
    columns = {
        "process_id": processes[is_chosen],
        "thread_id": threads[is_chosen],
        "start_ns": starts[is_chosen],
        "end_ns": ends[is_chosen],
        "is_library": is_library[is_chosen],
        "text": texts.filter(pa.array(is_chosen)),
    }
    n_impossible = np.count_nonzero(~is_possible)
    return canonical.RANGES.table(columns), int(n_impossible)


def _ends(ranges: pa.Table, open_end_ns: int | None) -> Int64:
    """Return the end of each range, `open_end_ns` for those that never closed."""
    # The value 0 is not used, because None means that all ranges closed.
    return filled(ranges["end"], 0 if open_end_ns is None else open_end_ns)


def _has_comm_domain(domains: pa.Table) -> bool:
    """Tell whether NCCL or MPI opened a domain."""
    names = domains["text"].to_pylist()
    return any(name.startswith(_NEVER_STEP_DOMAINS) for name in names if name)


def _is_nccl_domain(name: str) -> bool:
    return name.startswith(_NCCL_DOMAIN)


def _is_never_domain(name: str) -> bool:
    """Tell whether the ranges of a domain are left out of `canonical.RANGES`.

    The ranges of Python's lock are left out too. A thread holds the lock nearly all the time, so
    that they do not show when the thread is busy.
    """
    is_of_communication = is_library_domain(name) and name.startswith(_NEVER_STEP_DOMAINS)
    return is_of_communication or name == LOCK_DOMAIN


def _comm_calls(ranges: pa.Table, is_in_nccl: Flags, open_end_ns: int | None) -> pa.Table:
    """Return the ranges that are calls that communicate, as `canonical.COMM_CALLS`.

    `is_in_nccl` tells which ranges are in NCCL's domain. `open_end_ns` is the end of ranges that
    never closed. Calls at impossible times are left out.
    """
    texts = _usual_texts(ranges["text"].combine_chunks(), is_in_nccl)
    distinct_texts = texts.dictionary.to_pylist()
    is_call_of_text = [_is_comm_call(text) for text in distinct_texts]
    if not any(is_call_of_text):
        return canonical.COMM_CALLS.empty()
    # Ranges without a text get one more index, and are no calls.
    text_of_range = pc.fill_null(texts.indices, len(distinct_texts))
    is_call_of_text.append(False)
    is_call = np.array(is_call_of_text)[text_of_range.to_numpy()]
    rows_of_calls = pa.array(np.flatnonzero(is_call))
    call_ranges = ranges.take(rows_of_calls)
    threads = call_ranges["globalTid"].to_numpy()
    starts = call_ranges["start"].to_numpy()
    ends = _ends_of_calls(call_ranges, open_end_ns)
    columns = {
        "process_id": process_of(threads),
        "thread_id": threads,
        "start_ns": starts,
        "end_ns": ends,
        "text": texts.take(rows_of_calls),
    }
    calls = canonical.COMM_CALLS.table(columns)
    is_possible = are_possible(starts, ends)
    if is_possible.all():
        return calls
    return calls.filter(pa.array(is_possible))


def _ends_of_calls(calls: pa.Table, open_end_ns: int | None) -> Int64:
    """Return the end of each call.

    A call that starts a group of calls ends when it starts. The advanced NCCL trace has a range
    around the whole group in place of this call, so that its end is not used.
    """
    ends = _ends(calls, open_end_ns)
    is_group = pc.equal(calls["text"], ADVANCED_GROUP)
    is_group = pc.fill_null(is_group, fill_value=False).to_numpy()
    return np.where(is_group, calls["start"].to_numpy(), ends)


def _usual_texts(texts: pa.DictionaryArray, is_in_nccl: Flags) -> pa.DictionaryArray:
    """Return the text of each range, in NCCL's usual spelling if the range is in NCCL's domain.

    The advanced NCCL trace spells texts in another way than NCCL itself.
    """
    distinct_texts = texts.dictionary.to_pylist()
    usual_texts = [text and usual_text_of(text) for text in distinct_texts]
    if usual_texts == distinct_texts or not is_in_nccl.any():
        return texts
    # The new dictionary has the texts as they are, and after them the usual spelling of each.
    joint_texts = pa.array([*distinct_texts, *usual_texts], pa.string())
    text_of_range = texts.indices.to_numpy(zero_copy_only=False)
    usual_text_of_range = text_of_range + len(distinct_texts)
    index_of_range = np.where(is_in_nccl, usual_text_of_range, text_of_range)
    # If ranges lack a text, Arrow gives indices as floats, with NaN for these ranges.
    has_text = pc.is_valid(texts).to_numpy(zero_copy_only=False)
    indices = np.nan_to_num(index_of_range).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=~has_text), joint_texts)


def _is_comm_call(text: str | None) -> bool:
    return text is not None and comm_call_of(text) is not None


def names_of_rows(rows: pa.Table, strings: Strings) -> pa.DictionaryArray:
    """Return the name of each row: its own ``text``, or else the string with the id ``textId``.

    The name is null if a row has neither.
    """
    text_ids = filled(rows["textId"], _ABSENT)
    distinct_ids, id_of_row = np.unique(text_ids, return_inverse=True)
    texts_of_ids = strings.lookup(distinct_ids)
    texts = rows["text"]
    inline = texts.combine_chunks().dictionary_encode()
    # An empty text is no text.
    has_no_inline_text = inline.dictionary.to_pylist() in ([], [""])
    if has_no_inline_text:
        index = pa.array(id_of_row.astype(np.int32))
        return pa.DictionaryArray.from_arrays(index, texts_of_ids)
    # The dictionary has the texts of the ids, and after them the inline texts.
    dictionary = pa.concat_arrays([texts_of_ids, inline.dictionary])
    index_of_inline_text = distinct_ids.size + inline.indices.to_numpy()
    is_inline = pc.not_equal(texts, "").to_numpy()
    index_of_row = np.where(is_inline, index_of_inline_text, id_of_row)
    index = pa.array(index_of_row.astype(np.int32))
    return pa.DictionaryArray.from_arrays(index, dictionary)


def _open_end_ns(
    report: Report, ranges: pa.Table, operation_ends: Iterable[pa.ChunkedArray]
) -> int:
    """Return the time 1 ns after the last event or operation of the report.

    `ranges` is not empty, and its starts are known. The result is at most `TIME_LIMIT`. Starts
    count too, because an event may have no end.
    """
    time_columns = (*operation_ends, ranges["start"], ranges["end"])
    latest_times_ns = [pc.max(times).as_py() for times in time_columns]
    for name in ("start", "end"):
        if report.has(RUNTIME, name):
            last_call_ns = report.number(RUNTIME, f'max("{name}")')
            latest_times_ns.append(last_call_ns)
    known_times_ns: list[int] = [time_ns for time_ns in latest_times_ns if time_ns is not None]
    open_end_ns = max(known_times_ns) + 1
    return min(open_end_ns, TIME_LIMIT)


def of_domains(rows: pa.Table, domains: pa.Table, is_wanted: Callable[[str], bool]) -> Flags:
    """Tell which rows are in a domain with a wanted name.

    `domains` are the rows of kind ``DOMAIN_ROW``, each of which names a domain. Processes number
    their domains themselves, so that process and number identify a domain.
    """
    threads = rows["globalTid"].to_numpy()
    process_of_row = process_of(threads)
    domain_of_row = filled(rows["domainId"], 0)
    is_inside = np.zeros(rows.num_rows, np.bool_)
    columns = [domains[name].to_pylist() for name in ("text", "globalTid", "domainId")]
    for domain_name, thread, domain_id in zip(*columns, strict=True):
        is_known = None not in {domain_name, thread, domain_id}
        if is_known and is_wanted(domain_name):
            is_of_process = process_of_row == process_of(thread)
            is_inside |= is_of_process & (domain_of_row == domain_id)
    return is_inside


def _matching(ranges: RangesOfReportTable, pattern: str) -> Flags:
    """Tell which ranges have a text that a pattern matches."""
    texts = ranges["text"].combine_chunks()
    matches_of_text = pc.match_substring_regex(texts.dictionary, pattern)
    matches_of_range = matches_of_text.take(texts.indices)
    # A range without a text does not match.
    is_matching = pc.fill_null(matches_of_range, fill_value=False)
    flags: Flags = is_matching.to_numpy(zero_copy_only=False)
    return flags


def _mpi_ranks(names: pa.Table) -> dict[int, int]:
    """Return the rank of each process, as the names of its threads state it.

    A process whose threads state different ranks is left out. `names` are rows that name threads.
    """
    ranks_of_process: dict[int, set[int]] = {}
    threads = names["globalTid"].to_pylist()
    texts = names["text"].to_pylist()
    for thread, text in zip(threads, texts, strict=True):
        match = _MPI_RANK.match(text or "")
        if match:
            rank = int(match[1])
            ranks = ranks_of_process.setdefault(process_of(thread), set())
            ranks.add(rank)
    return only_values(ranks_of_process)
