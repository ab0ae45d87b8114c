"""Which steps a run's figures rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["Selection", "check_steps", "select_steps"]


@dataclass(frozen=True)
class Selection:
    """The summary steps of a run, in order of time.

    Attributes
    ----------
    skipped
        Complete steps that were dropped at the start.
    is_fallback
        True when no step is complete on every rank, so that cut-off steps are used.
    """

    steps: Int64
    skipped: Int64
    is_fallback: bool


def select_steps(
    step: Int64, starts: Int64, is_complete: NDArray[np.bool_], n_ranks: int, skip_first: int | None
) -> Selection:
    """Choose the steps that are complete on every rank, less the skipped.

    Parameters
    ----------
    step, starts, is_complete
        One value per (rank, step) with a window.
    skip_first
        How many complete steps to drop at the start; None drops the first (it holds the ranks'
        different profiler starts) when another one remains.

    Returns
    -------
    Selection
        When no step is complete on every rank: all steps that every rank has, none skipped.

    Raises
    ------
    OptionError
        If nothing would be left.
    """
    numbers, index = np.unique(step, return_inverse=True)
    first_start = np.full(numbers.size, np.iinfo(np.int64).max)
    np.minimum.at(first_start, index, starts)
    order = np.lexsort((numbers, first_start))
    n_windows = np.bincount(index, minlength=numbers.size)
    n_complete = np.bincount(index[is_complete], minlength=numbers.size)
    complete = numbers[order][n_complete[order] == n_ranks]
    if not complete.size:
        return Selection(numbers[order][n_windows[order] == n_ranks], complete, is_fallback=True)
    n_skipped = min(1, complete.size - 1) if skip_first is None else skip_first
    if n_skipped >= complete.size:
        raise OptionError(
            f"--skip-first {n_skipped}",
            f"leaves no step: {complete.size} are complete on every rank",
            fix=f"--skip-first {complete.size - 1}, or capture more steps",
        )
    return Selection(complete[n_skipped:], complete[:n_skipped], is_fallback=False)


def check_steps(all_steps: pa.Table, wanted: tuple[int, int]) -> None:
    """Raise unless some rank has one of the steps asked for.

    Parameters
    ----------
    all_steps
        `schema.STEPS`.
    wanted
        The first and the last, by number.

    Raises
    ------
    OptionError
        With the steps that there are.
    """
    first, last = wanted
    numbers = all_steps["step"].to_numpy()
    if ((numbers >= first) & (numbers <= last)).any():
        return
    known = (int(numbers.min()), int(numbers.max())) if numbers.size else None
    raise OptionError(
        f"steps {first}:{last}",
        "no rank has such a step",
        found=f"steps {known[0]} to {known[1]}" if known else "no steps at all",
        fix=f"--perfetto-steps {known[0]}:{known[1]}" if known else None,
    )
