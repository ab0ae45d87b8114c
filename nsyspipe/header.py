"""What identifies a run: id, label, sizes, versions, hosts, time of capture."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.captured import NOTHING_CAPTURED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from nsyspipe.captured import Captured
    from nsyspipe.digest import ReportDigest
    from nsyspipe.sidecar_model import RunCapture

__all__ = ["CAPTURE", "RunHeader", "header_of", "steps_source"]

# What the steps of a run come from.
RANGES, HOST, CAPTURE = "ranges", "host", "capture"

_RANK_SUFFIX = re.compile(r"(?i)[._-]*(?:rank)?[._-]*\d+$")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RunHeader:
    """The ``run`` object of the JSON document, field by field.

    Attributes
    ----------
    run_id
        The user's, else the capture's start and a digest of what was captured: the same capture always
        has the same id, wherever its reports lie and whichever nsys exported them.
    world_size
        As captured; None when nothing says.
    captured_at_utc
        Start of the earliest session, ISO 8601.
    capture
        How the run was captured, from the sidecar beside its reports; None without one.
    steps_from
        ``ranges``; ``host``, of a run without device activity; ``capture``: there are no steps, and figures are of the
        capture as a whole. None where nothing was recorded at all.
    """

    run_id: str
    label: str
    n_ranks: int
    world_size: int | None
    gpu_names: list[str]
    hosts: list[str]
    nsys_versions: list[str]
    export_schema_versions: list[str]
    captured_at_utc: str | None
    reports: list[str]
    capture: RunCapture | None = None
    steps_from: str | None = None


def steps_source(n_ranks: int, n_host_steps: int, *, has_family: bool) -> str | None:
    """Return what a run's steps come from, as `RunHeader.steps_from` says it."""
    if n_ranks:
        return RANGES if has_family else CAPTURE
    return HOST if n_host_steps else None


def header_of(
    digests: Sequence[ReportDigest],
    ranks: pa.Table,
    names: Sequence[str],
    *,
    world_size: int | None,
    label: str | None,
    run_id: str | None,
    captured: Captured = NOTHING_CAPTURED,
    steps_from: str | None = None,
) -> RunHeader:
    """Describe a run.

    Parameters
    ----------
    ranks
        `schema.RANKS`.
    names
        What to call each report.
    """
    facts = [digest.facts for digest in digests]
    starts = [one.session_start_utc_ns for one in facts if one.session_start_utc_ns is not None]
    start = _EPOCH + timedelta(microseconds=min(starts) // 1000) if starts else None
    return RunHeader(
        run_id=run_id or _run_id(digests, start),
        label=label or _captured_label(captured, len(names)) or _label(names),
        n_ranks=ranks.num_rows,
        world_size=world_size,
        gpu_names=_distinct(ranks["gpu_name"].to_pylist()),
        hosts=_distinct(ranks["host"].to_pylist()),
        nsys_versions=_distinct(one.nsys_version for one in facts),
        export_schema_versions=_distinct(one.schema_version for one in facts),
        captured_at_utc=start.isoformat().replace("+00:00", "Z") if start else None,
        reports=list(names),
        capture=captured.facts,
        steps_from=steps_from,
    )


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})


def _host_captures(digests: Sequence[ReportDigest]) -> list[tuple[int, ...]]:
    """Tell captures without device activity apart by their hosts' steps."""
    return sorted(
        (digest.facts.session_start_utc_ns or 0, host.process_id, *host.span)
        for digest in digests
        for host in digest.hosts
        if host.members.num_rows
    )


def _run_id(digests: Sequence[ReportDigest], captured: datetime | None) -> str:
    captures = sorted(
        (
            digest.facts.session_start_utc_ns or 0,
            process.process_id,
            *process.span,
            process.n_kernels,
        )
        for digest in digests
        for process in digest.processes
    )
    found = captures or _host_captures(digests)
    fingerprint = hashlib.sha256(repr(found).encode()).hexdigest()[:8]
    return f"{captured:%Y%m%dT%H%M%S}-{fingerprint}" if captured else f"run-{fingerprint}"


def _captured_label(captured: Captured, n_reports: int) -> str | None:
    """Return the capture's name, if it is that of all reports."""
    return captured.name if len(captured.by_argument) == n_reports else None


def _label(names: Sequence[str]) -> str:
    """Return what the reports' names have in common, without rank numbers."""
    stems = [Path(name).stem for name in names]
    if len(stems) > 1:
        stems = [_RANK_SUFFIX.sub("", stem) for stem in stems]
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*stems, strict=False))
    return "".join(letters[0] for letters in same).rstrip(" ._-") or "run"
