"""A difference and its gate, as `nsyspipe.diff` returns them."""

from dataclasses import dataclass
from functools import cached_property

from nsyspipe.comparison import difference
from nsyspipe.report.public.shown import ShownInNotebooks


@dataclass(frozen=True, repr=False, eq=False)
class Gate(difference.Gate, ShownInNotebooks):
    __doc__ = difference.Gate.__doc__

    def __repr__(self) -> str:
        return f"<{self.headline}>"


@dataclass(frozen=True, repr=False, eq=False)
class RunDifference(difference.RunDifference, ShownInNotebooks):
    __doc__ = difference.RunDifference.__doc__

    @cached_property
    def gate(self) -> Gate | None:
        """Whether the difference passes, by what the user asked to fail on; None without that."""
        if self.fail_on is None:
            return None
        return Gate.of(self.judged_rows, self.fail_on)
