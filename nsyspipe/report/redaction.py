"""What a redaction removed, by class, and what it kept, for a terminal."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nsyspipe.model.names import decoded, few, grouped, printable
from nsyspipe.redact.copy import UNKNOWN, Amount
from nsyspipe.redact.redact import Redaction

_KEPT = (
    "names of kernels, NVTX ranges and phases (check them for private words before you share)",
    "names of CUDA calls, GPU models, versions of nsys",
    (
        "times of all GPU operations, calls and ranges, and the session start (UTC), which aligns "
        "clocks"
    ),
    "numbers of processes, threads, GPUs and streams, ranks and world size",
    "numbers in NCCL's NVTX payloads: communicator, message size, rank",
)


def redaction_text(done: Redaction, out: Path) -> str:
    """Return the summary: copies, what was removed, what stays, what to mind."""
    what = f"{len(done.places)} report{'s'[: len(done.places) != 1]}"
    n_hosts = "no host" if not done.n_hosts else f"{done.n_hosts} host{'s'[: done.n_hosts != 1]}"
    lines = [f"{what} redacted into {printable(decoded(str(out)))} ({n_hosts} renamed)"]
    for heading, texts in {
        "Removed": _removed(done.removed.amounts()),
        "Kept": _KEPT,
        "Note": _notes(done),
    }.items():
        lines += ["", heading, *(f"  {text}" for text in texts)]
    return "\n".join(lines) + "\n"


def _removed(amounts: Iterable[Amount]) -> list[str]:
    ordered = sorted(amounts, key=lambda one: (one.kind, one.unit, one.place))
    groups = grouped(((one.kind, one.unit), one) for one in ordered)
    if not groups:
        return ["nothing, because the report contains only what analysis needs"]
    totals = {
        (kind, unit): f"{sum(one.n for one in group):,} {unit}"
        for (kind, unit), group in groups.items()
    }
    wide = max(len(kind) for kind, _ in groups)
    n_wide = max(map(len, totals.values()))
    return [
        f"{key[0]:<{wide}}  {totals[key]:>{n_wide}}  {_places(key[0], group)}"
        for key, group in groups.items()
    ]


def _places(kind: str, amounts: list[Amount]) -> str:
    if kind in UNKNOWN:
        return ", ".join(f"{printable(amount.place)} ({amount.n:,})" for amount in amounts)
    columns: dict[str, list[str]] = {}
    for amount in amounts:
        table, _, column = amount.place.partition(".")
        columns.setdefault(table, []).extend([column] if column else [])
    single = {table: ".".join([table, *own]) for table, own in columns.items() if len(own) <= 1}
    return few(
        [
            printable(single.get(table, f"{table} ({len(own)} columns)"))
            for table, own in columns.items()
        ],
        3,
    )


def _notes(done: Redaction) -> Iterator[str]:
    n = done.removed.n_named
    if n:
        texts = "1 kept text still contains" if n == 1 else f"{n:,} kept texts still contain"
        yield f"warning: {texts} a host name, a user name or a home directory"
    yield "file names stay, so check them for private words"
    if len(done.places) == 1 and done.n_hosts:
        several = (
            "redact the reports of several hosts in one call, so that they get different names"
        )
        yield f"the host is called host-0 in the copy ({several})"
    elif done.n_hosts:
        yield "hosts are called host-0, host-1, ... in the order of the reports"
    if any(amount.kind in UNKNOWN for amount in done.removed.amounts()):
        yield "unknown tables were left out (a later nsyspipe may know them)"
    if done.beside:
        yield (
            "not copied, although analyze uses these files: "
            f"{few([*map(printable, done.beside)], 3)}"
        )
    if done.beside or done.has_others_beside:
        files = "NCCL logs, topology files and sidecars"
        yield (
            f"{files} contain host names, addresses and commands, so check them before you share "
            "them"
        )
