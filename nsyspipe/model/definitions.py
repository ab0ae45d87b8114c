"""Which definitions a run was analyzed with, and which columns mean something else since an older version of them."""

from collections.abc import Iterable

from nsyspipe.model.schema import CHANGED_COLUMNS

DEFINITIONS_VERSION = 2
FIRST_VERSION = 1  # of runs that were saved before there was this number
ANALYZE_AGAIN = "analyze the reports again"


def changed_columns(version: int, latest: int) -> frozenset[str]:
    """Return the columns whose meaning changed after one version, up to and including another."""
    since = (
        columns for changed_in, columns in CHANGED_COLUMNS.items() if version < changed_in <= latest
    )
    return frozenset().union(*since)


def latest_of(versions: Iterable[int]) -> int:
    """Return the latest of some versions; the one of this nsyspipe where there are none."""
    return max(versions, default=DEFINITIONS_VERSION)
