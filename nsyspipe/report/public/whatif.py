"""The answer to a simulation, as `nsyspipe.whatif` returns it."""

from dataclasses import dataclass

from nsyspipe.replay import answer
from nsyspipe.report.public.shown import ShownInNotebooks


@dataclass(frozen=True, repr=False, eq=False)
class WhatIf(answer.WhatIf, ShownInNotebooks):
    __doc__ = answer.WhatIf.__doc__

    def __repr__(self) -> str:
        text = super().__repr__()
        return self._with_headline(text)
