"""A run from a store, as `nsyspipe.load` returns it."""

from dataclasses import dataclass

from nsyspipe.report.public.run import Run
from nsyspipe.store import saved_run


@dataclass(frozen=True, repr=False, eq=False)
class SavedRun(saved_run.SavedRun, Run):
    __doc__ = Run.__doc__
