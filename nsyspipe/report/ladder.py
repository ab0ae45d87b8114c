"""The ladder of a run: its mean step time, from exposed communication down to ideal compute."""

from collections.abc import Iterator
from typing import NamedTuple

from nsyspipe.analysis.work import RUNGS, ladder
from nsyspipe.model.figures import FIGURES
from nsyspipe.report import blocks
from nsyspipe.report.units import ms_text, percent_text
from nsyspipe.run.run import Run

_CAPTION = "From step time to ideal compute (mean over ranks and steps)"
_NOTE = (
    "The rows sum to the step time. Ideal compute is the time that the FLOPs take at the dense "
    "peak of the GPU. Its share is the MFU."
)


class _Rung(NamedTuple):
    """One part of the step time, in words."""

    label: str
    time: str
    percent: str


def ladder_blocks(run: Run) -> Iterator[blocks.Block]:
    """Yield the ladder as a table, if the FLOPs and the peak are known and possible."""
    if run.is_capture:
        return
    steps = ladder(run.breakdown())
    if steps is None or not steps.wall_ns:
        return
    rungs = []
    for name in RUNGS:
        time_ns = steps.rungs_ns[name]
        share = float(time_ns / steps.wall_ns)
        label = FIGURES[name].label
        rung = _Rung(label, ms_text(float(time_ns)), percent_text(share))
        rungs.append(rung)
    fields = [
        blocks.Field("Part of the step", _label, "prose"),
        blocks.Field("time", _time),
        blocks.Field("share", _percent),
    ]
    yield blocks.table_of(_CAPTION, rungs, fields, _NOTE)


def _label(rung: _Rung) -> str:
    return rung.label


def _time(rung: _Rung) -> str:
    return rung.time


def _percent(rung: _Rung) -> str:
    return rung.percent
