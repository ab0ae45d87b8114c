"""The version of the definitions of a run, and the columns whose meaning changed since."""

from collections.abc import Iterable

from nsyspipe.model.schema import CHANGED_COLUMNS

DEFINITIONS_VERSION = 2
# The version of runs that were saved before there was this number.
FIRST_VERSION = 1
ANALYZE_AGAIN = "analyze the reports again"


def changed_columns(version: int, latest: int) -> frozenset[str]:
    """Return the columns whose meaning changed after `version`, up to and including `latest`."""
    changed: set[str] = set()
    for changed_in, columns in CHANGED_COLUMNS.items():
        if version < changed_in <= latest:
            changed |= columns
    return frozenset(changed)


def latest_of(versions: Iterable[int]) -> int:
    """Return the latest of some versions, or without any the version of this nsyspipe."""
    return max(versions, default=DEFINITIONS_VERSION)
