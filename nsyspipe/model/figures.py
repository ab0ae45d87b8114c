"""Each figure of a step and of a run once: its name, unit and formula, which way is better, its words, and where it is shown."""

from typing import Literal, get_args

from msgspec import Struct

from nsyspipe.model.schema import STEPS, SUMMARY

Better = Literal["lower", "higher", "neither"]
LOWER, HIGHER, NEITHER = get_args(Better)

# Ratio -> numerator, denominator: columns of `schema.STEPS`, whose formulas say so.
RATIOS: dict[str, tuple[str, str]] = {
    column.name: (f"{above}_ns", f"{below}_ns")
    for column in STEPS.columns
    if column.unit == "ratio"
    for above, below in [column.doc.split(" / ")]
}
# Mean per (rank, step) -> column, and rate over transfer time -> column of `schema.COLLECTIVES`, likewise.
MEANS: dict[str, str] = {one.name: one.doc.split()[1] for one in SUMMARY.columns if one.doc.startswith("mean ")}
RATES: dict[str, str] = {column.name: column.doc.split()[2] for column in SUMMARY.columns if column.unit == "bytes/s"}

# A figure per line: the column of `schema.SUMMARY` that it is, or of `schema.STEPS` where a run has none; its name as
# --metric and --sort take it; which way is better (in brackets: neither by itself, but the best of a scoreboard is there);
# behind the colon its short label, its label, what that is of, and its colour. Communication may take longer when it hides
# better; shares of compute and of all communication change whenever anything else does.
_FIGURES = """
    step_time_ns                step_time              lower:    step time | Step time | slowest rank, median over steps
    throughput_steps_per_s      throughput             higher:   throughput | Throughput | 1 / mean step time
    compute_ns                  compute                lower:    compute | Compute | | compute
    comm_ns                     comm                   (lower):  comm in all
    exposed_comm_ns             exposed_comm           lower:    exposed comm | Exposed communication | | exposed
    exposed_memory_ns           exposed_memory         lower:    exposed copies | Exposed copies | | copies
    idle_ns                     idle                   lower:    idle | Idle | | idle
    dtod_ns_per_step            dtod                   lower:    DtoD copies | DtoD copies | device-to-device copies, mean per rank and step
    wait_ns                     wait                   lower:    waits for others
    transfer_ns                 transfer               (lower):  transfer
    idle_input_ns_per_step      idle_input             lower:    idle input
    idle_launch_ns_per_step     idle_launch            lower:    idle launch
    idle_blocked_ns_per_step    idle_blocked           lower:    idle blocked
    idle_dependency_ns_per_step idle_dependency        lower:    idle dependency
    idle_unknown_ns_per_step    idle_unknown           lower:    idle unknown
    comm_share                  comm_share             (lower):  comm in all | Communication | of step time, hidden or not
    exposed_comm_share          exposed_comm_share     lower:    exposed comm | Exposed communication | of step time, beside no compute | exposed
    overlap_ratio               overlap_ratio          higher:   hidden by compute | Hidden by compute | of communication, under compute | hidden
    backward_overlap_ratio      backward_overlap_ratio higher:   hidden by backward | Hidden by backward | of communication, under backward | hidden
    idle_share                  idle_share             lower:    idle | Idle | of step time, the device does nothing | idle
    compute_share               compute_share          (higher): compute | Compute | of step time | compute
    exposed_memory_share        exposed_memory_share   lower:    exposed copies | Exposed copies | of step time, copies and memsets beside nothing | copies
    wait_share                  wait_share             lower:    waits for others | Waiting for other ranks | of step time, inside communication | waiting
    transfer_share              transfer_share         (lower):  transfer | Transfer | of step time, with all ranks there
    collectives_per_step        collectives            (lower):  collectives per step | Collectives per step | mean per rank
    message_bytes_per_step      message_bytes          (lower):  message bytes | Message bytes | of all collectives, mean per rank and step
    dtod_bytes_per_step         dtod_bytes             (lower):  DtoD bytes | DtoD bytes | device-to-device copies, mean per rank and step
    algbw_bytes_per_s           algbw                  higher:   algbw | Algorithm bandwidth | message bytes over transfer time
    busbw_bytes_per_s           busbw                  higher:   bus bandwidth | Bus bandwidth | bus bytes over transfer time
"""

# Where figures are shown, in this order.
PLACES = {
    "ranks": "compute_share exposed_comm_share exposed_memory_share idle_share comm_share overlap_ratio "
    "backward_overlap_ratio wait_share",
    "dashboard": "step_time_ns throughput_steps_per_s comm_share exposed_comm_share overlap_ratio "
    "backward_overlap_ratio wait_share idle_share",
    "scoreboard": "comm_share exposed_comm_share overlap_ratio backward_overlap_ratio wait_share dtod_ns_per_step "
    "message_bytes_per_step",
    "scoreboard, if known": "idle_share collectives_per_step busbw_bytes_per_s",
    "scoreboard table": "step_time_ns comm_share exposed_comm_share overlap_ratio backward_overlap_ratio compute_share "
    "exposed_memory_share idle_share wait_share dtod_ns_per_step dtod_bytes_per_step collectives_per_step "
    "message_bytes_per_step busbw_bytes_per_s",
    "difference": "step_time_ns throughput_steps_per_s compute_ns comm_ns exposed_comm_ns exposed_memory_ns idle_ns "
    "wait_ns dtod_ns_per_step overlap_ratio backward_overlap_ratio message_bytes_per_step busbw_bytes_per_s",
}


class Figure(Struct, frozen=True):
    """One figure: what it is called, and what is good.

    Of a step, ranks make one of it: a time is the largest over ranks, a ratio the sum of numerators by that of
    denominators, anything else the mean.
    """

    column: str  # of `schema.SUMMARY`; of `schema.STEPS` where a run has none
    name: str  # as --metric and --sort take it
    unit: str
    better: Better  # if neither, a change of it is no news by itself
    is_most_first: bool  # whether a scoreboard sorted by it begins with the largest
    short: str  # what it is called where room is short
    label: str
    meaning: str  # in a few words, below its label
    category: str | None  # of the palette; None for figures that have no colour of their own

    @property
    def heading(self) -> str:
        """The short label in two lines, as narrow as can be."""
        words = self.short.split()
        ways = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
        return "\n".join(min(ways, key=lambda lines: max(map(len, lines)), default=(self.short,)))

    @property
    def of_step(self) -> tuple[str, str | None]:
        """The column of steps, or of matched collectives, that it is made of, and that of its denominator."""
        if self.column in RATIOS:
            return RATIOS[self.column]
        if self.column in RATES:
            return RATES[self.column], "transfer_ns"
        is_whole = self.column in {"step_time_ns", "throughput_steps_per_s"}
        return "wall_ns" if is_whole else MEANS.get(self.column, self.column), None

    @property
    def formula(self) -> str:
        """How it is made of a step, in words."""
        above, below = self.of_step
        if self.unit == "1/s":
            return "1e9 / step_time"
        if below is None:
            return f"{'largest' if self.unit == 'ns' else 'mean of'} {above} over ranks"
        return f"sum of {above} / sum of {below} over {'ranks' if self.column in RATIOS else 'matched collectives'}"


def _figure(line: str) -> Figure:
    head, _, words = line.partition(":")
    column, name, better = head.split()
    short, label, meaning, category = [*map(str.strip, words.split("|")), "", "", ""][:4]
    unit = next(one.unit for one in (*SUMMARY.columns, *STEPS.columns) if one.name == column)
    way = better.strip("()")
    direction = NEITHER if way != better else LOWER if way == LOWER else HIGHER
    return Figure(column, name, unit, direction, way == HIGHER, short, label or short, meaning, category or None)


# By column, in the order in which a difference has them; and by the name that --metric takes.
FIGURES: dict[str, Figure] = {one.column: one for one in map(_figure, _FIGURES.strip().splitlines())}
METRICS: dict[str, Figure] = {one.name: one for one in FIGURES.values()}


def shown(place: str) -> tuple[Figure, ...]:
    """Return the figures that are shown in a place: one of `PLACES`."""
    return tuple(FIGURES[column] for column in PLACES[place].split())
