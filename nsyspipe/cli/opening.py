"""From a command's arguments to a run, with the processes that read it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.export_cache import exported_reports
from nsyspipe.parallel import PRELOAD, executor_for
from nsyspipe.read.discover import RAW_SUFFIX, find_logs, find_named, split_logs
from nsyspipe.store.find import is_saved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nsyspipe.cli.progress import OnProgress, Stage
    from nsyspipe.run import Run

__all__ = ["exports_of", "opened_run"]


def exports_of(reports: Sequence[str], *, jobs: int | None, stage: Stage) -> list[Path]:
    """Return the exports of the reports that are named; a stage of its own only where any is to be made."""
    named = find_named(reports)
    is_raw = any(path.suffix == RAW_SUFFIX for path in named)
    on_progress = stage("exporting reports") if is_raw else None
    return exported_reports(named, jobs=jobs, on_progress=on_progress)


@contextlib.contextmanager
def opened_run(
    reports: Sequence[str],
    nccl_logs: Sequence[str],
    options: Mapping[str, Any],
    *,
    jobs: int | None,
    stage: Stage = lambda _: None,
) -> Iterator[Callable[[OnProgress | None], Run]]:
    """Yield what loads the run; the processes that read its reports end with the context.

    Parameters
    ----------
    reports
        Reports, or one saved run.
    nccl_logs
        Logs; text files among the reports are taken for further ones.
    options
        Of `nsyspipe.load`, by name.
    stage
        Starts the progress of a stage.
    """
    if any(is_saved(Path(report)) for report in reports):
        from nsyspipe.loading import load

        yield lambda _: load(reports, **options, nccl_log=nccl_logs)
        return
    if nccl_logs:
        reports, more_logs = split_logs(reports)
        nccl_logs = [*nccl_logs, *more_logs]
    logs = find_logs(nccl_logs)
    paths = exports_of(reports, jobs=jobs, stage=stage)
    with executor_for(paths, jobs, preload=PRELOAD) as executor:
        # Heavy, so imported while the workers do the same.
        from nsyspipe.loading import load

        yield lambda on_progress: load(
            paths, **options, nccl_log=logs, executor=executor, on_progress=on_progress
        )
