"""One side of a difference: a label, and the captures of one configuration."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, filterfalse, islice
from pathlib import Path

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
    # Its name in texts, if another side has the same label.
    shown_as: str | None = None

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
        # A user may pass a single run.
        runs = [self.runs] if isinstance(self.runs, Run) else self.runs
        if not _are_runs(runs):
            needed = "a loaded run, or several,"
            fix = "Side('main', [load(RUN)])"
            raise OptionError.of_kind("runs", self.runs, needed=needed, fix=fix)
        object.__setattr__(self, "runs", tuple(runs))
        if not self.runs:
            raise OptionError(self.label, "has no run", fix="at least one capture on each side")
        n_captures_by_id = Counter(run_ids_of(self))
        run_id, n_captures = n_captures_by_id.most_common(1)[0]
        # The spread between a capture and itself would be zero.
        if n_captures > 1:
            what = f"has the capture {run_id} twice"
            raise OptionError(self.label, what, fix="name each capture of a side once")


def run_ids_of(side: Side) -> list[str]:
    """Return the run IDs of the captures of a side, in their order."""
    return [run.header.run_id for run in side.runs]


def _are_runs(runs: object) -> bool:
    if not isinstance(runs, list | tuple):
        return False
    return all(hasattr(run, "header") for run in runs)


def distinguish_sides(sides: Sequence[Side]) -> list[Side]:
    """Return sides with names that differ.

    Of several sides with the same name, a side with a label that a user gave keeps its name. But if
    users gave the labels of all of them, all are renamed. The new names are their directories. If
    these do not differ either, run IDs or numbers stand behind the old name.
    """
    names = [side.name for side in sides]
    for name, n_sides in Counter(names).items():
        if n_sides > 1:
            _replace_name(names, name, sides)
    distinct_sides = []
    for side, name in zip(sides, names, strict=True):
        is_renamed = side.name != name
        distinct = replace(side, shown_as=name) if is_renamed else side
        distinct_sides.append(distinct)
    return distinct_sides


def _replace_name(names: list[str], name: str, sides: Sequence[Side]) -> None:
    """Replace a name that several sides have by new names, in `names`.

    `names` has the name of each side, and is changed in place.
    """
    runs = [side.runs[0] for side in sides]
    with_name = [index for index, side_name in enumerate(names) if side_name == name]
    unlabelled = [index for index in with_name if runs[index].given_label is None]
    # If users gave the labels of all these sides, all are renamed.
    renamed = unlabelled or with_name
    not_renamed = set(range(len(names))).difference(renamed)
    taken = {names[index] for index in not_renamed}
    renamed_runs = [runs[index] for index in renamed]
    new_names = _find_distinct_names(name, renamed_runs, taken)
    for index, new_name in zip(renamed, new_names, strict=True):
        names[index] = new_name


def _find_distinct_names(name: str, runs: Sequence[Run], taken: set[str]) -> list[str]:
    """Return the first names for runs that differ from each other and are not taken."""
    for names in _ways_to_name(name, runs, taken):
        free_names = {*names} - taken
        if len(free_names) == len(runs):
            return names
    raise AssertionError("numbers are always distinct")


def _ways_to_name(name: str, runs: Sequence[Run], taken: set[str]) -> Iterator[list[str]]:
    """Yield names for runs: their directories with ever more parents, then IDs, then numbers."""
    yield from _directory_names(runs)
    run_ids = [run.header.run_id for run in runs]
    yield [f"{name} ({run_id})" for run_id in run_ids]
    numbered_names = (f"{name} ({number})" for number in count(2))
    all_names = chain([name], numbered_names)
    free_names = filterfalse(taken.__contains__, all_names)
    yield [*islice(free_names, len(runs))]


def _directory_of(run: Run) -> Path:
    """Return the directory of the first input of a run, or that input if it is a directory."""
    path = run.inputs[0].absolute()
    return path if path.is_dir() else path.parent


def _directory_names(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the names of the directories of runs, with ever more parents."""
    parts_of_runs = [_directory_of(run).parts for run in runs]
    max_parts = max(map(len, parts_of_runs))
    for n_parts in range(1, 1 + max_parts):
        last_parts = [parts[-n_parts:] for parts in parts_of_runs]
        yield [str(Path(*parts)) for parts in last_parts]
