"""Open a run: from what a user names to a `Run` that reads nothing yet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError
from nsyspipe.export_cache import exported_reports
from nsyspipe.ranks import parse_rank_map
from nsyspipe.report_run import ReportRun
from nsyspipe.settings import AUTO, Reading, parse_skip_first
from nsyspipe.store.find import is_saved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from nsyspipe.run import Run

__all__ = ["load"]


def load(
    reports: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    step: str | None = None,
    backward: str | None = None,
    forward: str | None = None,
    optimizer: str | None = None,
    data: str | None = None,
    comm_kernel: str | None = None,
    skip_first: int | str = AUTO,
    rank_map: Mapping[str, int] | str | None = None,
    jobs: int | None = None,
    label: str | None = None,
    run_id: str | None = None,
    nccl_log: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    topology: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Open a run; nothing is read yet.

    Parameters
    ----------
    reports
        A path, a directory, a glob, or several of them; or one store that ``analyze --out`` wrote (with several
        runs, ``run_id`` says which), whose run has its figures already: of the options it takes `label` only.
        An ``.nsys-rep`` file is exported first, by nsys, into a cache.
    step
        Regular expression for the texts of NVTX step ranges; None detects the family.
    backward, forward, optimizer, data
        Regular expressions for phase names; None keeps the default.
    comm_kernel
        Regular expression for communication kernels besides NCCL's.
    skip_first
        How many complete steps to leave out at the start; ``"auto"`` leaves out the first when another remains.
    rank_map
        Rank by report name, as a mapping or as text (``"a.sqlite=0,b.sqlite=1"``, or a file of such pairs).
    jobs
        Processes to use; None takes what cores, memory and the reports' sizes suggest.
    label, run_id
        Name and identifier; None makes them from the reports.
    nccl_log
        Logs of the run with ``NCCL_DEBUG=INFO``, one or several.
    topology
        A file with the output of ``nvidia-smi topo -m`` on a host of the run.
    executor
        Runs the work on each report; None starts spawned processes (or none, for small reports).
    on_progress
        Called with (reports done, reports in all).

    Raises
    ------
    InputError
        If an argument names no report, or a log or topology is none.
    CaptureError
        If nsys cannot export a report.
    OptionError
        If a regular expression, the rank map or skip_first cannot be used, or an option does not go with a saved run.
    """
    arguments = [reports] if isinstance(reports, str | os.PathLike) else list(reports)
    if any(is_saved(Path(argument)) for argument in arguments):
        reading_options = {
            "--step": step,
            "--backward": backward,
            "--forward": forward,
            "--optimizer": optimizer,
            "--data": data,
            "--comm-kernel": comm_kernel,
            "--skip-first": None if skip_first == AUTO else skip_first,
            "--rank-map": rank_map,
            "--nccl-log": nccl_log or None,
            "--topology": topology,
        }
        return _saved_run(arguments, reading_options, label=label, run_id=run_id)
    logs = [nccl_log] if isinstance(nccl_log, str | os.PathLike) else list(nccl_log)
    reading = Reading.from_text(
        step=step,
        comm_kernel=comm_kernel,
        backward=backward,
        forward=forward,
        optimizer=optimizer,
        data=data,
    )
    return ReportRun(
        paths=tuple(exported_reports([os.fspath(argument) for argument in arguments], jobs=jobs)),
        reading=reading,
        skip_first=parse_skip_first(skip_first),
        rank_map=parse_rank_map(rank_map) if isinstance(rank_map, str) else rank_map,
        jobs=jobs,
        label=label,
        run_id=run_id,
        nccl_logs=tuple(Path(log) for log in logs),
        topology=None if topology is None else Path(topology),
        executor=executor,
        on_progress=on_progress,
        expect=_with_expected_savings,
    )


def _with_expected_savings(run: Run, findings: pa.Table) -> pa.Table:
    from nsyspipe.replay.expected import with_expected_savings  # noqa: PLC0415 - not all runs need a replay

    return with_expected_savings(run, findings)


def _saved_run(
    arguments: Sequence[str | os.PathLike[str]],
    reading_options: Mapping[str, object],
    *,
    label: str | None,
    run_id: str | None,
) -> Run:
    if len(arguments) > 1:
        raise OptionError(
            ", ".join(map(str, arguments)),
            "a saved run and something else, which are no one run",
            fix="pass the saved run alone",
        )
    given = [name for name, value in reading_options.items() if value is not None]
    store = Path(arguments[0])
    if given:
        raise OptionError(
            ", ".join(given),
            f"{store} is a saved run, whose figures are made",
            fix="leave them out, or analyze the reports again",
        )
    from nsyspipe.store.saved_run import open_saved  # noqa: PLC0415 - Parquet takes as long as all else to import

    return open_saved(store, run_id, label)
