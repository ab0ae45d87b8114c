"""What a redaction removed and kept, for a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from nsyspipe.model.names import counted, decoded, few, grouped, noun_for, printable
from nsyspipe.redact.copy import UNKNOWN, Amount
from nsyspipe.redact.redact import Redaction

# More names are counted.
_MAX_NAMES = 3

_KEPT = (
    "names of kernels, NVTX ranges and phases (check them for private words before you share)",
    "names of CUDA calls, GPU models, versions of nsys",
    (
        "times of all GPU operations, calls and ranges, and the session start (UTC), which aligns "
        "clocks"
    ),
    "numbers of processes, threads, GPUs and streams, ranks and world size",
    "samples of the GPU metrics that analysis reads, and which GPUs are the same",
    "numbers in NCCL's NVTX payloads: communicator, message size, rank",
)


def redaction_text(redaction: Redaction, out: Path) -> str:
    """Return the summary: copies, what was removed, what was kept, and what to check."""
    reports = counted(len(redaction.places), "report")
    hosts = counted(redaction.n_hosts, "host") if redaction.n_hosts else "no host"
    target = printable(decoded(str(out)))
    lines = [f"{reports} redacted into {target} ({hosts} renamed)"]
    removed = _removed(redaction.removed.amounts())
    sections = {"Removed": removed, "Kept": _KEPT, "Note": _notes(redaction)}
    for heading, texts in sections.items():
        lines += ["", heading]
        lines += [f"  {text}" for text in texts]
    text = "\n".join(lines)
    return f"{text}\n"


def _removed(amounts: Iterable[Amount]) -> list[str]:
    """Return a line for each kind and unit of what was removed: how much, and where."""
    sorted_amounts = sorted(amounts, key=attrgetter("kind", "unit", "place"))
    if not sorted_amounts:
        return ["nothing, because the report contains only what analysis needs"]
    by_kind_and_unit = grouped(((amount.kind, amount.unit), amount) for amount in sorted_amounts)
    groups = [*by_kind_and_unit.values()]
    kinds = [group[0].kind for group in groups]
    totals = [_total_text(group) for group in groups]
    kind_width = max(map(len, kinds))
    total_width = max(map(len, totals))
    lines = []
    for kind, total, group in zip(kinds, totals, groups, strict=True):
        places = _places(kind, group)
        lines.append(f"{kind:<{kind_width}}  {total:>{total_width}}  {places}")
    return lines


def _total_text(amounts: Sequence[Amount]) -> str:
    """Return the sum of amounts in one unit."""
    total = sum(amount.n for amount in amounts)
    # Units are plurals: rows, values, views.
    unit = noun_for(total, amounts[0].unit.removesuffix("s"))
    return f"{total:,} {unit}"


def _places(kind: str, amounts: Iterable[Amount]) -> str:
    """Return the tables or columns in which something was removed.

    All unknown tables are named, but only a few of the other tables.
    """
    if kind in UNKNOWN:
        places = [f"{printable(amount.place)} ({amount.n:,})" for amount in amounts]
        return ", ".join(places)
    columns_of_table: dict[str, list[str]] = {}
    for amount in amounts:
        # A place is ``table.column``, or ``table`` for a whole table.
        table, _, column = amount.place.partition(".")
        columns = columns_of_table.setdefault(table, [])
        if column:
            columns.append(column)
    items = columns_of_table.items()
    tables = [_table_text(table, columns) for table, columns in items]
    return few(tables, _MAX_NAMES)


def _table_text(table: str, columns: Sequence[str]) -> str:
    """Return a table with its only column, or with the number of its columns."""
    if len(columns) > 1:
        return printable(f"{table} ({len(columns)} columns)")
    return printable(".".join([table, *columns]))


def _notes(redaction: Redaction) -> Iterator[str]:
    """Yield what to check before the copies are shared."""
    n_texts_with_names = redaction.removed.n_named
    if n_texts_with_names:
        if n_texts_with_names == 1:
            texts_contain = "1 kept text still contains"
        else:
            texts_contain = f"{n_texts_with_names:,} kept texts still contain"
        yield f"warning: {texts_contain} a host name, a user name or a home directory"
    yield "file names stay, so check them for private words"
    if redaction.n_hosts:
        yield _host_note(len(redaction.places))
    kinds = {amount.kind for amount in redaction.removed.amounts()}
    if not kinds.isdisjoint(UNKNOWN):
        yield "unknown tables were left out (a later nsyspipe may know them)"
    files_beside_reports = redaction.beside
    if files_beside_reports:
        names = map(printable, files_beside_reports)
        files = few(names, _MAX_NAMES)
        yield f"not copied, although analyze uses these files: {files}"
    # Other files beside the reports may also be logs that a user shares.
    if files_beside_reports or redaction.has_others_beside:
        yield (
            "NCCL logs, topology files and sidecars (JSON files of launchers) contain host names, "
            "addresses and commands, so check them before you share them"
        )


def _host_note(n_reports: int) -> str:
    """Return what hosts are called in the copies."""
    if n_reports == 1:
        return (
            "the host is called host-0 in the copy (redact the reports of several hosts in one "
            "call, so that they get different names)"
        )
    return "hosts are called host-0, host-1, ... in the order of the reports"
