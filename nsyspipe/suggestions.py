"""Errors about runs of a store that do not exist, with the runs that do, and the nearest of them.

The store decides which run the user means. If there is none, or more than one, it raises an error
that is worded here.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsyspipe.errors import OptionError, nearest_name

_MAX_RUNS_IN_ERROR = 6
# An id that is less similar is no typing error. Ids of captures of one day are less similar.
_MIN_SIMILARITY_OF_IDS = 0.8


def argument_of(store: Path, name: str) -> str:
    """Return how one run of a store is named in a shell, by its id or label."""
    return shlex.quote(f"{store}:{name}")


@dataclass(frozen=True)
class RunChoice:
    """The runs among which a user has to choose one."""

    # As the user wrote it.
    path: Path
    store: Path
    # Run id -> label, by time of capture. The label of a run that cannot be read is "".
    labels: Mapping[str, str]

    @property
    def ids(self) -> list[str]:
        """The ids of the runs, the latest last."""
        return [*self.labels]

    def ids_with_label(self, label: str) -> list[str]:
        """Return the ids of the runs with a label, the latest last."""
        return [run_id for run_id in self.labels if self.labels[run_id] == label]

    def latest_runs_text(self) -> str:
        """Return the ids of the latest runs with their labels, and how many earlier runs there are.

        A label that is the id again is left out.
        """
        texts = []
        for run_id in self.ids[-_MAX_RUNS_IN_ERROR:]:
            label = self.labels[run_id]
            says_more_than_id = label not in ("", run_id)
            texts.append(f"{run_id} ({label})" if says_more_than_id else run_id)
        text = ", ".join(texts)
        n_earlier = len(self.ids) - _MAX_RUNS_IN_ERROR
        return f"{text} and {n_earlier} more" if n_earlier > 0 else text

    def doctor_command(self) -> str:
        """Return the command that lists the runs, and what the command shows."""
        # A run that cannot be read has the label "".
        are_all_readable = all(self.labels.values())
        purpose = "lists its runs" if are_all_readable else "shows what is wrong"
        store = shlex.quote(str(self.store))
        return f"nsyspipe doctor {store}, which {purpose}"

    def no_such_label(self, label: str) -> OptionError:
        """Return the error of a label that no run has, in a store that has runs."""
        latest_id = self.ids[-1]
        known_labels = {*self.labels.values()} - {""}
        suggestion = nearest_name(label, known_labels) or self.labels[latest_id]
        fix = self.doctor_command()
        # The latest run may have no label that can be read.
        if suggestion:
            fix = f"--label {shlex.quote(suggestion)}, or {fix}"
        problem = f"no run of {self.path} has that label"
        return self._error(f"--label {label}", problem, fix)

    def several_runs(self, ids_with_operations: Sequence[str]) -> OptionError:
        """Return the error of a store where the user has to name one of the runs."""
        fix = None
        if self.ids:
            # A run with its operations fits every command, so the latest of these is suggested.
            # Without any, it is the latest run.
            candidates = ids_with_operations or self.ids
            suggestion = candidates[-1]
            argument = argument_of(self.store, suggestion)
            fix = f"{argument}, or {self.doctor_command()}"
        problem = f"contains {len(self.ids)} runs, choose one"
        return self._error(str(self.path), problem, fix)

    def no_such_run_id(self, run_id: str) -> OptionError:
        """Return the error of a ``--run-id`` that the store does not have."""
        nearest_id_or_label = self._nearest(run_id)
        if nearest_id_or_label is None:
            # In a store without runs, "ID" stands for an id.
            latest_id = self.ids[-1] if self.ids else "ID"
            fix = f"--run-id {latest_id}, or {self.doctor_command()}"
        elif nearest_id_or_label in self.ids:
            fix = f"--run-id {nearest_id_or_label}"
        else:
            # A label is no value of --run-id, but the id of its latest run is.
            nearest_id = self._latest_id_by_label()[nearest_id_or_label]
            fix = f"--run-id {nearest_id}"
        problem = f"{self.path} has no such run"
        return self._error(f"--run-id {run_id}", problem, fix)

    def no_such_run(self, name: str) -> OptionError:
        """Return the error of a path ``STORE:NAME`` where no run has that id or label."""
        nearest = self._nearest(name)
        fix = self.doctor_command()
        if nearest is not None:
            argument = argument_of(self.store, nearest)
            fix = f"{argument}, or {fix}"
        return self._error(str(self.path), "has no such run", fix)

    def _error(self, subject: str, problem: str, fix: str | None) -> OptionError:
        """Return an error that shows the runs among which to choose."""
        return OptionError(subject, problem, found=self.latest_runs_text(), fix=fix)

    def _latest_id_by_label(self) -> dict[str, str]:
        # The runs are by time, so a later run replaces an earlier one with the same label.
        return {label: run_id for run_id, label in self.labels.items() if label}

    def _nearest(self, name: str) -> str | None:
        """Return the label, or else the id, that is most similar to a name; None without one."""
        nearest_label = nearest_name(name, self._latest_id_by_label())
        return nearest_label or nearest_name(name, self.ids, cutoff=_MIN_SIMILARITY_OF_IDS)


@dataclass(frozen=True)
class LabelChoice:
    """The labels among which a user of ``--against LABEL`` has to choose."""

    # The store as the user wrote it.
    place: str
    baseline: str
    # Label -> run id -> whether the run has all ranks.
    runs: Mapping[str, Mapping[str, bool]]

    @property
    def option(self) -> str:
        """The option as the user wrote it."""
        return f"--against {self.baseline}"

    @property
    def other_labels(self) -> list[str]:
        """The labels of the store without that of the baseline."""
        return [label for label in self.runs if label != self.baseline]

    def counts_text(self) -> str:
        """Return all labels, each with its number of runs."""
        texts = []
        for label, ids in self.runs.items():
            noun = "run" if len(ids) == 1 else "runs"
            texts.append(f"{label} ({len(ids)} {noun})")
        return ", ".join(texts)

    def command_with(self, candidate: str) -> str:
        """Return the command that compares the baseline with a candidate."""
        words = ["nsyspipe", "diff", "--against", self.baseline, self.place, candidate]
        return shlex.join(words)

    def command_with_first_label(self) -> str:
        """Return the command with the first other label of the store.

        If there is no other label, "REPORTS" stands for the candidate.
        """
        candidate = self.other_labels[0] if self.other_labels else "REPORTS"
        return self.command_with(candidate)

    def no_such_baseline(self) -> OptionError:
        """Return the error of a baseline that is no label of the store."""
        is_id_of_run = any(self.baseline in ids for ids in self.runs.values())
        if is_id_of_run:
            argument = argument_of(Path(self.place), self.baseline)
            fix = f"nsyspipe diff {argument} CANDIDATE"
            problem = "is the id of a run, not a label"
        else:
            first_label, *_ = self.runs
            suggestion = nearest_name(self.baseline, self.runs) or first_label
            fix = f"--against {shlex.quote(suggestion)}"
            problem = f"{self.place} has no run of that label"
        return self._error(self.option, problem, fix)

    def same_label_twice(self) -> OptionError:
        """Return the error of a candidate that is the label of the baseline."""
        problem = "is the label of the baseline, too"
        return self._error(self.baseline, problem, self.command_with_first_label())

    def no_such_candidate(self, name: str) -> OptionError:
        """Return the error of a candidate that is neither a label nor a place."""
        suggestion = nearest_name(name, self.other_labels)
        fix = self.command_with(suggestion) if suggestion else self.command_with_first_label()
        problem = f"is not a label of {self.place}, a file or a directory"
        return self._error(name, problem, fix)

    def no_candidate(self) -> OptionError:
        """Return the error of a missing candidate in a store with none or several other labels."""
        amount = "several other labels" if self.other_labels else "no other label"
        problem = f"{self.place} has {amount}, and the candidate is missing"
        return self._error(self.option, problem, self.command_with_first_label())

    def _error(self, subject: str, problem: str, fix: str) -> OptionError:
        """Return an error that shows the labels among which to choose."""
        return OptionError(subject, problem, found=self.counts_text(), fix=fix)
