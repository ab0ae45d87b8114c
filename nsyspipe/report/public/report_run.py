"""A run from its reports, as `nsyspipe.load` returns it."""

from dataclasses import dataclass

from nsyspipe.replay.answer import AnsweredRun
from nsyspipe.report.public.run import Run


@dataclass(frozen=True, repr=False, eq=False)
class ReportRun(AnsweredRun, Run):
    __doc__ = Run.__doc__
