"""Which runs of a store one line joins, what they are filtered by, and which figures the dashboard follows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.model.schema import RUNS
from nsyspipe.report.units import ms_text, percent_text, rate_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_VENDOR = "NVIDIA "
_LINKS = {
    "nvlink": "NVLink",
    "p2p": "P2P",
    "p2p_pcie": "P2P over PCIe",
    "shm": "host memory",
    "net": "network",
}
_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that one line joins."""

    group: str  # world size and GPU model
    label: str | None  # None where labels say nothing: most runs of the group have one of their own


@dataclass(frozen=True, slots=True)
class Facet:
    """One property that runs are filtered by: its distinct values in order, and which one each run has."""

    name: str
    title: str
    values: Sequence[str]
    codes: Sequence[int]


def gpu_name(run: Mapping[str, Any]) -> str:
    """Return the GPU models of a run, without the vendor that all of them share."""
    names = [name.removeprefix(_VENDOR) for name in run["gpu_names"].split(", ") if name]
    return ", ".join(names) or "GPU not recorded"


def group_name(run: Mapping[str, Any]) -> str:
    """Return how many ranks on what: runs that differ in it cannot be compared."""
    n_ranks, world_size = run["n_ranks"], run["world_size"]
    if world_size is None:
        return f"{n_ranks} \N{MULTIPLICATION SIGN} {gpu_name(run)}, world size not recorded"
    if world_size != n_ranks:
        return f"{n_ranks} of {world_size} ranks \N{MULTIPLICATION SIGN} {gpu_name(run)}"
    return f"{n_ranks} \N{MULTIPLICATION SIGN} {gpu_name(run)}"


def series_of(runs: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the series of each run.

    In a group where most runs share their label with another, a label is a series (a nightly job). Where most
    labels are there once (a commit's id, the variants of a study), the group is.
    """
    groups = [group_name(run) for run in runs]
    n_runs = Counter(groups)
    pairs = Counter((group, run["label"]) for group, run in zip(groups, runs, strict=True))
    n_sharing = Counter[str]()
    for (group, _), n in pairs.items():
        n_sharing[group] += n if n > 1 else 0
    return [
        Series(group, run["label"] if 2 * n_sharing[group] >= n_runs[group] else None)
        for group, run in zip(groups, runs, strict=True)
    ]


def facets(runs: Sequence[Mapping[str, Any]]) -> list[Facet]:
    """Return what runs can be filtered by; of a facet with one value there is nothing to choose.

    Labels come by their number of runs, the rest in their own order.
    """
    n_by_label = Counter(run["label"] for run in runs)
    sizes = [(run["world_size"] is None, run["world_size"] or 0) for run in runs]
    hosts = [len([host for host in run["hosts"].split(", ") if host]) for run in runs]
    return [
        _facet("label", "Label", [((-n_by_label[run["label"]], run["label"]), run["label"]) for run in runs]),
        _facet("world", "World size", [(key, _UNKNOWN if key[0] else str(key[1])) for key in sizes]),
        _facet("gpu", "GPU", [(gpu_name(run), gpu_name(run)) for run in runs]),
        _facet("hosts", "Hosts", [(n, str(n) if n else _UNKNOWN) for n in hosts]),
        _facet("link", "Slowest link", [_link(run["link_kind"]) for run in runs]),
    ]  # fmt: skip


def _link(kind: str | None) -> tuple[Any, str]:
    words = _LINKS.get(kind or "", _UNKNOWN if kind in (None, "unknown") else str(kind))
    return (words == _UNKNOWN, words), words


def _facet(name: str, title: str, found: Sequence[tuple[Any, str]]) -> Facet:
    """Return a facet of one (sort key, words) per run."""
    keys = sorted({key for key, _ in found})
    words = dict(found)
    codes = {key: at for at, key in enumerate(keys)}
    return Facet(name, title, [words[key] for key in keys], [codes[key] for key, _ in found])


NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of `schema.RUNS` with its words."""

    name: str
    title: str
    heading: str
    kind: str  # ``ns``, ``per_s`` or ``ratio``: how it is written
    better: int  # 1 if more is better, -1 if less is, 0 if neither can be said
    meaning: str  # in a few words, below its name
    category: str | None = None  # of the palette; None for figures that have no colour of their own

    @property
    def formula(self) -> str:
        """How it is computed, as `nsyspipe schema` says it."""
        return next(column.doc for column in RUNS.columns if column.name == self.name)


FIGURES = (
    Figure("step_time_ns", "Step time", "step time", "ns", -1, "slowest rank, median over steps"),
    Figure("throughput_steps_per_s", "Throughput", "throughput", "per_s", 1, "1 / mean step time"),
    Figure("exposed_comm_share", "Exposed communication", "exposed", "ratio", -1, "of step time, beside no compute", "exposed"),
    Figure("comm_share", "Communication", "comm", "ratio", 0, "of step time, hidden or not"),
    Figure("backward_overlap_ratio", "Hidden by backward", "hidden", "ratio", 1, "of communication, under backward", "hidden"),
    Figure("wait_share", "Waiting for other ranks", "waiting", "ratio", -1, "of step time, inside communication", "waiting"),
    Figure("idle_share", "Idle", "idle", "ratio", -1, "of step time, the device does nothing", "idle"),
)  # fmt: skip

_TEXTS = {"ns": ms_text, "per_s": rate_text, "ratio": percent_text}


def value_of(run: Mapping[str, Any], figure: Figure) -> float | None:
    """Return a figure of a row of `schema.RUNS`; a damaged one, which no page can carry, is null."""
    value = run[figure.name]
    return float(value) if value is not None and math.isfinite(value) else None


def value_text(run: Mapping[str, Any], figure: Figure) -> str:
    """Return a figure as words, and why there is none."""
    value = value_of(run, figure)
    return missing_text(run, figure) if value is None else _TEXTS[figure.kind](value)


def missing_text(run: Mapping[str, Any], figure: Figure) -> str:
    """Return why a figure is null, as far as the run's own figures tell."""
    if figure.name == "wait_share" and run["n_ranks"] == 1:
        return "one rank"
    if figure.name in {"wait_share", "backward_overlap_ratio"} and run["comm_share"] == 0:
        return "no communication"
    return NOT_RECORDED
