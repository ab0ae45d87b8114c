"""The class `nsyspipe.Run`."""

from nsyspipe.report.public.shown import ShownInNotebooks
from nsyspipe.run import run


class Run(run.Run, ShownInNotebooks):
    __doc__ = run.Run.__doc__

    def __repr__(self) -> str:
        text = super().__repr__()
        # The headline rests on the findings, which may take long.
        has_findings = "findings" in self._made
        return self._with_headline(text) if has_findings else text
