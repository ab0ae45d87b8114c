"""A scoreboard, as `nsyspipe.compare` returns it."""

from dataclasses import dataclass

from nsyspipe.comparison import scoreboard
from nsyspipe.report.public.shown import ShownInNotebooks


@dataclass(frozen=True, repr=False, eq=False)
class Scoreboard(scoreboard.Scoreboard, ShownInNotebooks):
    __doc__ = scoreboard.Scoreboard.__doc__

    def __repr__(self) -> str:
        text = super().__repr__()
        return self._with_headline(text)
