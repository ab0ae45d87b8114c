"""The ladder of a run: its mean step time, from exposed communication down to ideal compute."""

from collections.abc import Iterator
from typing import NamedTuple

from nsyspipe.analysis.work import RUNGS, ladder
from nsyspipe.model.figures import FIGURES
from nsyspipe.model.names import KERNEL_NAMES, OPTION
from nsyspipe.model.peaks import peak_flops_per_s, peaks_of
from nsyspipe.model.typed_tables import RanksColumn
from nsyspipe.report import blocks
from nsyspipe.report.units import flop_rate_text, ms_text, percent_text
from nsyspipe.run.run import Run

_CAPTION = "From step time to ideal compute (mean over ranks and steps)"
_NOTE = (
    "The rows sum to the step time. Ideal compute is the time that the FLOPs take at the dense "
    "peak of the GPU. Its share is the MFU. Slow compute is the rest of compute."
)
_PEAK_COLUMNS: list[RanksColumn] = ["gpu_name", "peak_datatype", "peak_datatype_source"]
# What shows the datatype of a peak, by `peak_datatype_source`.
_SENTENCE_OF_SOURCE = {
    OPTION: "The datatype is that of --peak.",
    KERNEL_NAMES: (
        "nsyspipe took the datatype from the names of the kernels. --peak DATATYPE sets another."
    ),
}


class _Rung(NamedTuple):
    """One part of the step time, in words."""

    label: str
    time: str
    percent: str


def ladder_blocks(run: Run) -> Iterator[blocks.Block]:
    """Yield the ladder as a table: the parts of the step time, from exposed to ideal.

    Nothing is yielded without a ladder, for example if FLOPs or the peak of the GPU are not known.
    """
    if run.is_capture:
        return
    step_ladder = ladder(run.breakdown())
    if step_ladder is None or not step_ladder.wall_ns:
        return
    rungs = []
    for name in RUNGS:
        time_ns = step_ladder.rungs_ns[name]
        share = float(time_ns / step_ladder.wall_ns)
        label = FIGURES[name].label
        rung = _Rung(label, ms_text(float(time_ns)), percent_text(share))
        rungs.append(rung)
    fields = [
        blocks.Field("Part of the step", _label, kind="prose"),
        blocks.Field("time", _time),
        blocks.Field("share", _percent),
    ]
    note = " ".join([_NOTE, *_peak_sentences(run)])
    yield blocks.table_of(_CAPTION, rungs, fields, note)


def _peak_sentences(run: Run) -> Iterator[str]:
    """Yield what each peak is, where it is from, and what shows its datatype.

    A peak is that of a GPU model for a datatype. Ranks with the same GPU model and datatype share
    their sentences.
    """
    rows = run.ranks.select(_PEAK_COLUMNS).to_pylist()
    source_of_peak: dict[tuple[str | None, str | None], str] = {}
    for row in rows:
        gpu_and_datatype = (row["gpu_name"], row["peak_datatype"])
        source_of_peak[gpu_and_datatype] = row["peak_datatype_source"]
    for (gpu_name, datatype), source_of_datatype in source_of_peak.items():
        gpu = peaks_of(gpu_name)
        flops_per_s = None if datatype is None else peak_flops_per_s(gpu_name, datatype)
        if gpu is not None and flops_per_s:
            peak = flop_rate_text(flops_per_s)
            yield f"The {datatype} peak of {gpu_name} is {peak}. Source: {gpu.source}."
            # A saved run may name another source.
            if source_of_datatype in _SENTENCE_OF_SOURCE:
                yield _SENTENCE_OF_SOURCE[source_of_datatype]


def _label(rung: _Rung) -> str:
    return rung.label


def _time(rung: _Rung) -> str:
    return rung.time


def _percent(rung: _Rung) -> str:
    return rung.percent
