"""What costs most of a run, as tables and as CSV: kernels, collectives by kind and size, communicators by what they serve."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from nsyspipe.analysis.kernels import COLLECTIVES, KERNELS, TABLES, TRAFFIC
from nsyspipe.analysis.traffic import (
    DATA,
    OTHER,
    bubble_ns_per_step,
    dimensions,
    mean_over_ranks,
    parallelism,
)
from nsyspipe.model.figures import RATES
from nsyspipe.model.names import few, printable, ranges
from nsyspipe.report.blocks import Field, Table, barred, of, table_of
from nsyspipe.report.files import head_of
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
)
from nsyspipe.report.words import SEEN
from nsyspipe.run.run import Run

Row = dict[str, Any]
# How wide a terminal has room for columns that are not needed most.
_NARROWEST = 48
_NARROW = 60
_USUAL = 79
_WIDE = 92
_WIDEST = 100
_LONGEST_NAME = 160  # longer ones differ in their template arguments, which nobody reads in a table
_CAPTIONS = {
    KERNELS: "Top kernels",
    COLLECTIVES: "Collectives by type and size",
    TRAFFIC: "Communication by process group",
}
# what stages of a pipeline wait for
_OF_STAGES = "in the pipeline bubble, or for a stage that launches late"
_OF_TRAFFIC = "Means per step over the ranks of a communicator. Rows may overlap in time."
_WHOLE = "the whole array, as nccl-tests counts"
SLOWER = (
    "over the whole capture, compared with equal kernels that ran without communication. In "
    "brackets: how many were compared"
)
_SHOWN_GROUPS = 4  # of ranks that communicate, and ranks of each
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
)  # what a spreadsheet takes for one at the start of a cell


def cost_tables(run: Run, most: int, *names: str) -> dict[str, Table]:
    """Return the costliest rows by table, all of them unless named; one without rows is not there."""
    fields_of = {KERNELS: _kernels, COLLECTIVES: _collectives, TRAFFIC: _traffic}
    costs = run.costs().to_pylist()
    tables = {}
    for name in names or TABLES:
        rows = [row for row in costs if row["table"] == name]
        shown = rows[:most]
        left = [row["step_share"] for row in rows[most:]]
        fields = fields_of[name](shown, is_capture=run.is_capture)
        if (
            run.is_capture and name != KERNELS
        ):  # which has nothing per step; that is not the same as not recorded
            fields = [field for field in fields if any(field.cell(row) != absent for row in shown)]
        whole = "the capture" if run.is_capture else "step time"
        share = "" if None in left else f", {percent_text(sum(left))} of {whole}"
        notes = [_OF_TRAFFIC] if name == TRAFFIC and not run.is_capture else []
        is_staged = any(row["bubble_ns_per_step"] is not None for row in shown)
        notes += (
            [f"Wait time of a pipeline is for other stages, {_OF_STAGES}."] if is_staged else []
        )
        notes += [f"{len(left)} more{share}. --csv has all rows."] if left else []
        if rows:
            tables[name] = table_of(_CAPTIONS[name], shown, fields, " ".join(notes) or None)
    return tables


def _ms(name: str, hint: str, from_width: int = 0) -> Field:
    cell = of(f"{name}_ns_per_step", ms_text)
    return Field(f"{name}\nms", cell, hint=hint, from_width=from_width, unit="ms")


def _amount(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:
    per_step = (
        "calls_per_step",
        "time_ns_per_step",
        "per step",
        "sum of durations, mean over ranks and steps",
    )
    in_all = ("n_calls", "total_ns", "of all ranks", "sum of durations, of all ranks")
    calls, time, unit, hint = in_all if is_capture else per_step
    bar = barred(rows, f"ms\n{unit}", itemgetter(time), "accent", hint, unit="ms")
    return [Field(f"calls\n{unit}", of(calls, count_text), from_width=_NARROWEST), bar]


def _rates(*from_widths: int) -> list[Field]:
    hints = (
        "message / transfer",
        "algbw x 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all_to_all",
    )
    return [
        Field(
            f"{name.partition('_')[0]}\nGB/s",
            of(name, bandwidth_text),
            hint=hint,
            from_width=width,
            unit="GB/s",
        )
        for name, hint, width in zip(RATES, hints, from_widths, strict=True)
    ]


def _kernels(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:
    def slowdown(row: Row) -> str:
        return (
            absent
            if row["slowdown_ratio"] is None
            else f"{percent_text(row['slowdown_ratio'])} ({row['n_slowed']})"
        )

    calls, time = _amount(rows, is_capture=is_capture)
    return [
        Field("kernel", lambda row: printable(row["name"])[:_LONGEST_NAME], "name"),
        time,
        Field(
            "of time" if is_capture else "of\nstep",
            of("step_share", percent_text),
            hint="sum of durations / sum of step times, over ranks and steps. Kernels may run at "
            "the same time",
        ),
        *(
            [Field("phase", of("phase"), "word", from_width=_USUAL)]
            if any(row["phase"] for row in rows)
            else []
        ),
        calls,
        barred(
            rows,
            "concurrent\nwith comm",
            itemgetter("beside_comm_ratio"),
            "hidden",
            "share of the kernel's time during which communication runs",
            write=percent_text,
        ),
        Field("slowdown under\ncomm (all steps)", slowdown, hint=SLOWER, from_width=_WIDE),
    ]


def _collectives(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:
    sizes = {row["message_bytes"] for row in rows}
    digits = 2 + (
        len({*map(bytes_text, sizes)}) < len(sizes)
    )  # one more where it tells two sizes apart
    return [
        Field("collective", of("name"), "word"),
        Field("message", of("message_bytes", partial(bytes_text, digits=digits)), hint=_WHOLE),
        *_amount(rows, is_capture=is_capture),
        _ms("exposed", "while no compute runs", _NARROW),
        _ms("wait", "until the last rank has arrived", _USUAL),
        _ms("transfer", "after all ranks have arrived", _USUAL),
        *_rates(_WIDE, _NARROWEST),
    ]


def _traffic(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:  # noqa: ARG001 - as the others
    def waits(row: Row) -> str:
        return ms_text(
            row["wait_ns_per_step"]
            if row["bubble_ns_per_step"] is None
            else row["bubble_ns_per_step"]
        )

    return [
        Field("parallelism", of("role"), "word", "what the communicator is for"),
        Field("collective", of("name"), "word"),
        Field(
            "ranks",
            of("ranks", lambda ranks: ",".join(ranges(map(int, ranks.split(","))))),
            "name",
            from_width=_NARROW,
            most=24,
        ),
        Field("calls", of("calls_per_step", count_text), from_width=_NARROW),
        Field(
            "size",
            of("bytes_per_step", bytes_text),
            hint="whole messages, as nccl-tests counts them",
            from_width=_USUAL,
        ),
        barred(
            rows,
            "ms",
            itemgetter("time_ns_per_step"),
            "accent",
            "union of its operations",
            unit="ms",
        ),
        _ms("exposed", "while no compute runs"),
        replace(_ms("hidden", "while compute runs", _WIDEST), heading="overlapped\nms"),
        Field(
            "wait\nms",
            waits,
            hint="for other ranks, or for other stages of a pipeline",
            from_width=_NARROW,
            unit="ms",
        ),
        *_rates(_WIDEST, _NARROW),
        Field("communicator", of("communicator"), "name", from_width=_WIDEST),
    ]


def is_more_than_data(traffic: pa.Table) -> bool:
    """Tell whether communication serves anything but gradients of whole models."""
    return bool({*parallelism(traffic)} - {DATA, OTHER})


def traffic_text(
    traffic: pa.Table, n_ranks: int, world_size: int | None, exposed_ns: float | None
) -> str | None:
    """Return what communication serves, over how many ranks, whose most of a rank's exposed is, and the pipeline's bubble.

    None where there is none or nobody knows what it serves, and of gradients of all ranks where
    nothing says how many share.
    """
    groups = dimensions(traffic, world_size)
    if not groups:
        return None
    degrees = []
    for one in groups:
        ranks = [few(ranges(group), _SHOWN_GROUPS, ",") for group in one.groups]
        of_which = (
            f" (ranks {few(ranks, _SHOWN_GROUPS, ' / ')})" if one.size and len(ranks) > 1 else ""
        )
        degrees.append(f"{one}{of_which}")
    is_part = world_size not in (None, n_ranks)
    if not is_part and not is_more_than_data(traffic) and degrees[0] in {DATA, f"{DATA} 1"}:
        return None
    is_grid = math.prod(one.size or 0 for one in groups) == world_size
    text = "Parallelism: " + (" \N{MULTIPLICATION SIGN} " if is_grid else ", ").join(degrees)
    if is_part and None in [one.size for one in groups]:
        text += f" (of how many ranks is not known from {n_ranks} of {world_size})"
    key = "role" if len(parallelism(traffic)) > 1 else "collective"
    exposed = _exposed_parts(traffic, key, n_ranks, exposed_ns)
    if is_more_than_data(traffic) and len(exposed) > 1 and exposed_ns:
        most = max(exposed, key=lambda name: (exposed[name], name))
        whose = f"for {most} parallelism" if key == "role" else most
        whose = "for none of these" if most == OTHER else whose
        text += (
            f". {percent_text(exposed[most] / exposed_ns, 0)} of exposed communication is {whose}"
        )
        whole = mean_over_ranks(traffic, "exposed_ns_per_step", key, n_ranks) or {}
        if sum(whole.values()) > (1 + SEEN) * sum(exposed.values()):
            text += " (time with several exposed at once is split evenly)"
    bubble = bubble_ns_per_step(traffic, n_ranks)
    return (
        f"{text}. Ranks wait {ms_text(bubble)} of each step for other stages, {_OF_STAGES}"
        if bubble
        else text
    )


def _exposed_parts(
    traffic: pa.Table, key: str, n_ranks: int, exposed_ns: float | None
) -> dict[str, float]:
    """Return exposed time by role or collective: parts that sum to all of it; nothing where these are not known.

    A run that was saved before there were such parts has whole times: they are parts where they sum
    to no more.
    """
    parts = mean_over_ranks(traffic, "exposed_part_ns_per_step", key, n_ranks)
    if parts is not None:
        return parts
    whole = mean_over_ranks(traffic, "exposed_ns_per_step", key, n_ranks) or {}
    return whole if sum(whole.values()) <= (1 + SEEN) * (exposed_ns or 0.0) else {}


def csv_cell(value: object) -> str:
    """Write one value: nothing where null; a text that would be taken for a formula begins with an apostrophe."""
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else str(value)


def csv_text(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [names, *([*map(csv_cell, row)] for row in rows)]
    )
    return text.getvalue()


def costs_csv(run: Run) -> str:
    """Return `schema.COSTS` as CSV: one header, all rows, costliest first; the first column says which run they are of."""
    costs = run.costs()
    run_id = run.header.run_id
    return csv_text(
        ["run_id", *costs.column_names], ([run_id, *row.values()] for row in costs.to_pylist())
    )


def run_id_of_csv(path: Path) -> str | None:
    """Return the id of the run that a file of `costs_csv` is of; None if it is no such file. Reads only its head."""
    try:
        row = next(csv.DictReader(io.StringIO(head_of(path))), {})
    except csv.Error:
        return None
    return str(row["run_id"]).removeprefix("'") if {"run_id", "table"} <= row.keys() else None
