"""One side of a comparison: a label, and its captures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nsyspipe.errors import OptionError
from nsyspipe.model.options import check_text
from nsyspipe.run.run import Run
from nsyspipe.run.work import Work


@dataclass(frozen=True)
class Side:
    """One side of a difference: a label, and one or several captures of the same configuration.

    Raises
    ------
    OptionError
        If the label is not a text, or if the side has no run or the same capture twice.
    """

    label: str
    runs: Sequence[Run]
    shown_as: str | None = (
        None  # what to call it in words, where the label does not tell it from others
    )

    @property
    def name(self) -> str:
        """The name of the side in texts."""
        return self.label if self.shown_as is None else self.shown_as

    @cached_property
    def work(self) -> Work:
        """What a step of a rank computes."""
        return Work.of(self.runs)

    def __post_init__(self) -> None:
        check_text("label", self.label or "", "a name in quotes, as 'main'")
        runs = [self.runs] if isinstance(self.runs, Run) else self.runs
        if not (isinstance(runs, list | tuple) and all(hasattr(run, "header") for run in runs)):
            raise OptionError.of_kind(
                "runs", self.runs, "a loaded run, or several,", "Side('main', [load(RUN)])"
            )
        object.__setattr__(self, "runs", tuple(runs))
        if not self.runs:
            raise OptionError(self.label, "has no run", fix="at least one capture on each side")
        run_id, count = Counter(run.header.run_id for run in self.runs).most_common(1)[0]
        if count > 1:  # their spread would be nothing
            raise OptionError(
                self.label,
                f"has the capture {run_id} twice",
                fix="name each capture of a side once",
            )
