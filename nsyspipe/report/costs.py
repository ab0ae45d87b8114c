"""The most expensive kernels, collectives and communicators of a run, as tables and as CSV."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nsyspipe.analysis.kernels import COLLECTIVES, KERNELS, TABLES, TRAFFIC
from nsyspipe.analysis.traffic import (
    DATA,
    OTHER,
    Dimension,
    bubble_ns_per_step,
    dimensions,
    mean_over_ranks,
    parallelism,
)
from nsyspipe.model.names import few, printable, ranges
from nsyspipe.model.typed_tables import (
    TrafficTable,
)
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
from nsyspipe.report.words import MIN_VISIBLE_DIFFERENCE
from nsyspipe.run.run import Run

Row = dict[str, Any]
# Terminal widths from which on columns are shown that are not needed most.
_NARROWEST_WIDTH = 48
_NARROW_WIDTH = 60
_STANDARD_WIDTH = 79
_WIDE_WIDTH = 92
_WIDEST_WIDTH = 100
# Longer names differ in their template arguments, which nobody reads in a table.
_MAX_NAME_CHARS = 160
_CAPTIONS = {
    KERNELS: "Top kernels",
    COLLECTIVES: "Collectives by type and size",
    TRAFFIC: "Communication by process group",
}
# Where, or for what, stages of a pipeline wait.
_WHERE_STAGES_WAIT = "in the pipeline bubble, or for a stage that launches late"
_TRAFFIC_NOTE = "Means per step over the ranks of a communicator. Rows may overlap in time."
_SLOWDOWN_NOTE = (
    "Slowdown under communication: how much longer a kernel takes than equal kernels that run "
    "without communication. In brackets: how many were compared."
)
_MESSAGE_HINT = "the whole array, as nccl-tests counts"
SLOWER = (
    "over the whole capture, compared with equal kernels that ran without communication. In "
    "brackets: how many were compared"
)
# Of the ranks that communicate, at most so many groups, and of each group so many ranges of ranks.
_MAX_SHOWN_GROUPS = 4
_MAX_SHOWN_RANGES_OF_GROUP = 4
# A spreadsheet takes a cell that begins with one of these for a formula.
_STARTS_OF_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def cost_tables(run: Run, n_shown: int, *names: str) -> dict[str, Table]:
    """Return the most expensive rows by table, of all tables unless some are named.

    A table without rows is left out.
    """
    costs: list[Row] = [{**row} for row in run.costs().to_pylist()]
    tables = {}
    for name in names or TABLES:
        rows = [row for row in costs if row["table"] == name]
        if rows:
            table = _cost_table(name, rows, n_shown, is_capture=run.is_capture)
            tables[name] = table
    return tables


def _cost_table(name: str, rows: Sequence[Row], n_shown: int, *, is_capture: bool) -> Table:
    """Return the first rows of one table of costs, with notes below them.

    `rows` are all rows of the table, the most expensive first.
    """
    shown = rows[:n_shown]
    make_fields_of_table = {
        KERNELS: _kernel_fields,
        COLLECTIVES: _collective_fields,
        TRAFFIC: _traffic_fields,
    }
    make_fields = make_fields_of_table[name]
    fields = make_fields(shown, is_capture=is_capture)
    if is_capture and name != KERNELS:
        # A capture without steps has no times per step. Columns of dashes would look as if these
        # times had not been recorded.
        fields = [field for field in fields if _has_values(field, shown)]
    notes = [*_notes_about_rows(name, shown, is_capture=is_capture)]
    if len(rows) > n_shown:
        left_out = rows[n_shown:]
        notes.append(_left_out_note(left_out, is_capture=is_capture))
    note = " ".join(notes)
    return table_of(_CAPTIONS[name], shown, fields, note or None)


def _notes_about_rows(name: str, shown: Sequence[Row], *, is_capture: bool) -> Iterator[str]:
    """Yield what the columns of one table of costs mean, as far as its shown rows need it."""
    has_slowdown = any(row["slowdown_ratio"] is not None for row in shown)
    if name == KERNELS and has_slowdown:
        yield _SLOWDOWN_NOTE
    if name == TRAFFIC and not is_capture:
        yield _TRAFFIC_NOTE
    has_bubble = any(row["bubble_ns_per_step"] is not None for row in shown)
    if has_bubble:
        yield f"Wait time of a pipeline is for other stages, {_WHERE_STAGES_WAIT}."


def _has_values(field: Field, rows: Sequence[Row]) -> bool:
    cells = [field.cell(row) for row in rows]
    return any(cell != absent for cell in cells)


def _left_out_note(rows: Sequence[Row], *, is_capture: bool) -> str:
    """Return how many rows are not shown, what they take of a step, and where they are."""
    whole = "the capture" if is_capture else "step time"
    shares = [row["step_share"] for row in rows]
    share = ""
    if None not in shares:
        percent = percent_text(sum(shares))
        share = f", {percent} of {whole}"
    n_rows = len(rows)
    return f"{n_rows} more{share}. --csv has all rows and full names."


def _ms(name: str, hint: str, from_width: int = 0) -> Field:
    """Return the column of a time per step, such as ``wait``."""
    cell = of(f"{name}_ns_per_step", ms_text)
    return Field(f"{name}\nms", cell, hint=hint, from_width=from_width, unit="ms")


def _calls_and_time(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:
    """Return the columns of calls and of time: per step and rank, or in sum for a capture."""
    if is_capture:
        whole = "of all ranks"
        calls_column = "n_calls"
        time_column = "total_ns"
        hint = "sum of durations, of all ranks"
    else:
        whole = "per step"
        calls_column = "calls_per_step"
        time_column = "time_ns_per_step"
        hint = "sum of durations, mean over ranks and steps"
    calls = of(calls_column, count_text)
    value = itemgetter(time_column)
    time = barred(rows, f"ms\n{whole}", value, category="accent", hint=hint, unit="ms")
    calls_field = Field(f"calls\n{whole}", calls, from_width=_NARROWEST_WIDTH)
    return [calls_field, time]


def _bandwidths(*, algbw_from_width: int, busbw_from_width: int) -> list[Field]:
    """Return the columns of algorithm and bus bandwidth, each shown from a terminal width on."""
    algbw = Field(
        "algbw\nGB/s",
        of("algbw_bytes_per_s", bandwidth_text),
        hint="message / transfer",
        from_width=algbw_from_width,
        unit="GB/s",
    )
    busbw = Field(
        "busbw\nGB/s",
        of("busbw_bytes_per_s", bandwidth_text),
        hint="algbw x 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all_to_all",
        from_width=busbw_from_width,
        unit="GB/s",
    )
    return [algbw, busbw]


def _kernel_fields(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:
    calls, time = _calls_and_time(rows, is_capture=is_capture)
    share_heading = "of time" if is_capture else "of\nstep"
    share_hint = (
        "sum of durations / sum of step times, over ranks and steps. Kernels may run at the same "
        "time"
    )
    share = Field(share_heading, of("step_share", percent_text), hint=share_hint)
    fields = [Field("kernel", _kernel_name_cell, "name"), time, share]
    if any(row["phase"] for row in rows):
        phase = Field("phase", of("phase"), "word", from_width=_STANDARD_WIDTH)
        fields.append(phase)
    concurrent = barred(
        rows,
        "concurrent\nwith comm",
        itemgetter("beside_comm_ratio"),
        category="hidden",
        hint="share of the kernel's time during which communication runs",
        write=percent_text,
    )
    fields += [calls, concurrent]
    # Without concurrent communication, no kernel can be slower because of it.
    if any(row["beside_comm_ratio"] for row in rows):
        slowdown = Field(
            "slowdown under\ncomm (all steps)", _slowdown_cell, hint=SLOWER, from_width=_WIDE_WIDTH
        )
        fields.append(slowdown)
    return fields


def _kernel_name_cell(row: Row) -> str:
    return printable(row["name"])[:_MAX_NAME_CHARS]


def _slowdown_cell(row: Row) -> str:
    """Return the slowdown, and how many kernels were compared."""
    if row["slowdown_ratio"] is None:
        return absent
    slowdown = percent_text(row["slowdown_ratio"])
    n_kernels = row["n_slowed"]
    return f"{slowdown} ({n_kernels})"


def _collective_fields(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:
    sizes = {row["message_bytes"] for row in rows}
    # A third digit if two different sizes look the same with two.
    size_texts = {*map(bytes_text, sizes)}
    are_texts_distinct = len(size_texts) == len(sizes)
    digits = 2 if are_texts_distinct else 3
    size_text = of("message_bytes", partial(bytes_text, n_decimals=digits))
    collective = Field("collective", of("name"), "word")
    message = Field("message", size_text, hint=_MESSAGE_HINT)
    calls, time = _calls_and_time(rows, is_capture=is_capture)
    parts_of_time = [
        _ms("exposed", "while no compute runs", _NARROW_WIDTH),
        _ms("wait", "until the last rank has arrived", _STANDARD_WIDTH),
        _ms("transfer", "after all ranks have arrived", _STANDARD_WIDTH),
    ]
    bandwidths = _bandwidths(algbw_from_width=_WIDE_WIDTH, busbw_from_width=_NARROWEST_WIDTH)
    return [collective, message, calls, time, *parts_of_time, *bandwidths]


# The functions that make the fields of tables have the same parameters.
def _traffic_fields(rows: Sequence[Row], *, is_capture: bool) -> list[Field]:  # noqa: ARG001
    size_text = of("bytes_per_step", bytes_text)
    size_hint = "whole messages, as nccl-tests counts them"
    size = Field("size", size_text, hint=size_hint, from_width=_STANDARD_WIDTH)
    time_ns = itemgetter("time_ns_per_step")
    time_hint = "union of its operations"
    time = barred(rows, "ms", time_ns, category="accent", hint=time_hint, unit="ms")
    wait_hint = "for other ranks, or for other stages of a pipeline"
    wait = Field("wait\nms", _wait_cell, hint=wait_hint, from_width=_NARROW_WIDTH, unit="ms")
    # The table calls hidden communication overlapped.
    hidden = _ms("hidden", "while compute runs", from_width=_WIDEST_WIDTH)
    overlapped = replace(hidden, heading="overlapped\nms")
    exposed = _ms("exposed", "while no compute runs")
    n_calls = of("calls_per_step", count_text)
    communicator_and_calls = [
        Field("parallelism", of("role"), "word", "what the communicator is for"),
        Field("collective", of("name"), "word"),
        Field("ranks", of("ranks", _ranks_text), "name", from_width=_NARROW_WIDTH, most=24),
        Field("calls", n_calls, from_width=_NARROW_WIDTH),
    ]
    bandwidths = _bandwidths(algbw_from_width=_WIDEST_WIDTH, busbw_from_width=_NARROW_WIDTH)
    communicator = Field("communicator", of("communicator"), "name", from_width=_WIDEST_WIDTH)
    return [
        *communicator_and_calls,
        size,
        time,
        exposed,
        overlapped,
        wait,
        *bandwidths,
        communicator,
    ]


def _ranks_text(ranks: str) -> str:
    numbers = map(int, ranks.split(","))
    return ",".join(ranges(numbers))


def _wait_cell(row: Row) -> str:
    """Return the wait time; of a pipeline, its bubble."""
    bubble_ns = row["bubble_ns_per_step"]
    if bubble_ns is not None:
        return ms_text(bubble_ns)
    return ms_text(row["wait_ns_per_step"])


def is_more_than_data(traffic: TrafficTable) -> bool:
    """Tell whether communication serves anything but the gradients of whole models."""
    roles = {*parallelism(traffic)}
    return not roles <= {DATA, OTHER}


def traffic_text(
    traffic: TrafficTable, n_ranks: int, world_size: int | None, exposed_ns: float | None
) -> str | None:
    """Return the kinds of parallelism, each with its number of ranks, and what is exposed most.

    `world_size` is the number of ranks of the job, and `n_ranks` those with a report. `exposed_ns`
    is the exposed communication of a mean step.

    None if no kind of parallelism is known. Also None if every rank has a report, and nothing is
    known but data parallelism without a size, or of one rank.
    """
    kinds = dimensions(traffic, world_size)
    if not kinds:
        return None
    degrees = list(map(_degree_text, kinds))
    has_missing_ranks = world_size not in (None, n_ranks)
    is_size_missing_or_1 = degrees[0] in {DATA, f"{DATA} 1"}
    says_nothing = is_size_missing_or_1 and not is_more_than_data(traffic)
    if says_nothing and not has_missing_ranks:
        return None
    sizes = [kind.size for kind in kinds]
    separator = _separator(sizes, world_size)
    text = f"Parallelism: {separator.join(degrees)}"
    if has_missing_ranks and None in sizes:
        text += f" (of how many ranks is not known from {n_ranks} of {world_size})"
    if exposed_ns and is_more_than_data(traffic):
        text += _most_exposed_text(traffic, n_ranks, exposed_ns)
    bubble_ns = bubble_ns_per_step(traffic, n_ranks)
    if bubble_ns:
        wait = ms_text(bubble_ns)
        text += f". Ranks wait {wait} of each step for other stages, {_WHERE_STAGES_WAIT}"
    return text


def _separator(sizes: Sequence[int | None], world_size: int | None) -> str:
    """Return what stands between kinds of parallelism: a times sign if they are a grid of ranks."""
    # A kind of unknown size makes no grid.
    n_ranks_of_grid = math.prod(size or 0 for size in sizes)
    is_grid = n_ranks_of_grid == world_size
    return " \N{MULTIPLICATION SIGN} " if is_grid else ", "


def _degree_text(kind: Dimension) -> str:
    """Return a kind of parallelism with its size, and its groups of ranks if it has several.

    The groups are left out if their size is not known.
    """
    name_and_size = str(kind)
    if not kind.size or len(kind.groups) <= 1:
        return name_and_size
    groups = [few(ranges(ranks), _MAX_SHOWN_RANGES_OF_GROUP, ",") for ranks in kind.groups]
    groups_text = few(groups, _MAX_SHOWN_GROUPS, " / ")
    return f"{name_and_size} (ranks {groups_text})"


def _most_exposed_text(traffic: TrafficTable, n_ranks: int, exposed_ns: float) -> str:
    """Return which role or collective has most of the exposed time, with its share.

    Roles are compared if the run has several. A role is what communication is for, such as data
    parallelism. Otherwise collectives are compared. Empty if there is only one to compare.
    """
    n_roles = len(parallelism(traffic))
    column = "role" if n_roles > 1 else "collective"
    exposed_part_ns = _exposed_parts(traffic, column, n_ranks, exposed_ns)
    if len(exposed_part_ns) <= 1:
        return ""
    # If several have the same time, this is the last in the alphabet, so the text never varies.
    most_exposed = max(exposed_part_ns, key=lambda name: (exposed_part_ns[name], name))
    if most_exposed == OTHER:
        whose = "for none of these"
    elif column == "role":
        whose = f"for {most_exposed} parallelism"
    else:
        whose = most_exposed
    share = percent_text(exposed_part_ns[most_exposed] / exposed_ns, 0)
    text = f". {share} of exposed communication is {whose}"
    sum_of_parts_ns = sum(exposed_part_ns.values())
    sum_of_wholes_ns = _sum_of_whole_times_ns(traffic, column, n_ranks)
    # The parts split time in which several are exposed. The whole times count it several times.
    has_split_time = _is_visibly_larger(sum_of_wholes_ns, sum_of_parts_ns)
    if has_split_time:
        text += " (time with several exposed at once is split evenly)"
    return text


def _exposed_parts(
    traffic: TrafficTable, column: str, n_ranks: int, exposed_ns: float
) -> dict[str, float]:
    """Return the exposed time of each role or collective, ns, as parts that sum to `exposed_ns`.

    Empty if the parts are not known. A run that was saved by an older version has no parts, only
    the whole exposed time of each role or collective. If their sum is not visibly larger than
    `exposed_ns`, they do not overlap, and are the parts.
    """
    part_ns = mean_over_ranks(traffic, "exposed_part_ns_per_step", column, n_ranks)
    if part_ns is not None:
        return part_ns
    whole_ns = mean_over_ranks(traffic, "exposed_ns_per_step", column, n_ranks) or {}
    do_overlap = _is_visibly_larger(sum(whole_ns.values()), exposed_ns)
    return {} if do_overlap else whole_ns


def _sum_of_whole_times_ns(traffic: TrafficTable, column: str, n_ranks: int) -> float:
    """Return the sum of the exposed times of all roles or collectives; 0 if they are not known.

    Time in which several of them are exposed counts several times.
    """
    whole_ns = mean_over_ranks(traffic, "exposed_ns_per_step", column, n_ranks) or {}
    return sum(whole_ns.values())


def _is_visibly_larger(time_ns: float, than_ns: float) -> bool:
    """Tell whether a time is larger than another time by so much that their words differ."""
    return time_ns > (1 + MIN_VISIBLE_DIFFERENCE) * than_ns


def csv_cell(value: object) -> str:
    """Write one value: empty for null, and a text that looks like a formula with an apostrophe."""
    if isinstance(value, str):
        text = printable(value)
        is_like_formula = text.startswith(_STARTS_OF_FORMULAS)
        return f"'{text}" if is_like_formula else text
    return "" if value is None else str(value)


def csv_text(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


def costs_csv(run: Run) -> str:
    """Return `schema.COSTS` as CSV, the most expensive rows first, with the run ID in each row."""
    costs = run.costs()
    run_id = run.header.run_id
    rows = ([run_id, *row.values()] for row in costs.to_pylist())
    return csv_text(["run_id", *costs.column_names], rows)


def run_id_of_csv(path: Path) -> str | None:
    """Return the run ID of a file that `costs_csv` wrote; None if it is not such a file.

    Only the head of the file is read.
    """
    try:
        rows = csv.DictReader(io.StringIO(head_of(path)))
        first_row = next(rows, {})
    except csv.Error:
        return None
    if not {"run_id", "table"} <= first_row.keys():
        return None
    # `csv_cell` writes an apostrophe before a text that looks like a formula.
    return str(first_row["run_id"]).removeprefix("'")
