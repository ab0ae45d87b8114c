"""A run read back from a store, with the same tables and operations."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.links import SlowestLink
from nsyspipe.analysis.operations import overlapping_rows
from nsyspipe.analysis.steps import check_steps
from nsyspipe.errors import DatasetError, require, whole_path
from nsyspipe.findings.judge import rule_names
from nsyspipe.findings.slow_link import LinkVerdict
from nsyspipe.model import schema
from nsyspipe.model.captured import RunCapture
from nsyspipe.model.definitions import FIRST_VERSION
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.schema import EVENT_TABLES
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.model.table import conform
from nsyspipe.nsys.command_words import (
    BETWEEN_VALUES,
    TRACED,
    VERSION,
    Mask,
    recorded_command,
    recorded_environment,
    recorded_settings,
    shown_alone,
    shown_commands,
)
from nsyspipe.run.run import AskedRanks, AskedSteps, Run, RunHeader, steps_source
from nsyspipe.store.layout import file_name, find_saved, published
from nsyspipe.store.read import (
    AGAIN,
    LARGEST,
    RunFiles,
    check_ranks,
    check_steps_known,
    parsed_object,
    read_run_files,
)

_NOT_JUDGED = "not-judged"  # the code of the note about skipped checks
# Tables that name steps of which no window was seen, too: a capture ends while data for the next
# step is fetched.
_OF_OTHER_STEPS = ("collectives", "phases", "steps")
_OF_OTHER_RANKS = (
    "host_steps",
    "problems",
    "ranks",
    "runs",
)  # ranks of which no device was recorded, too


@dataclass(frozen=True, repr=False, eq=False)
class SavedRun(Run):
    """A run that `write.save` wrote: all files of one save, read when the first is needed; operations when asked for."""

    store: Path
    run_id: str
    given_label: str | None = None  # another name for it

    def _make(self, name: str) -> pa.Table:
        if name == "summary":
            return conform(self._table("runs"), schema.SUMMARY)
        if name == "host_steps" and self._details.n_host_steps is None:
            return schema.HOST_STEPS.empty()  # saved before there was this table
        table = self.files.table(name)
        path = self._path(name)
        if name not in _OF_OTHER_RANKS:
            check_ranks(table, self._table("ranks")["rank"].to_pylist(), path)
            if name not in _OF_OTHER_STEPS:
                check_steps_known(table, self._table("steps"), path)
        return table

    @cached_property
    def files(self) -> RunFiles:
        """All its files, of one save."""
        return read_run_files(self.store, self.run_id)

    def _path(self, name: str, rank: int | None = None) -> Path:
        return self.store / published(file_name(name, rank), self.run_id)

    @cached_property
    def _row(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._table("runs").to_pylist()[0])

    @cached_property
    def _details(self) -> Details:
        try:
            return parse_details(self._row["details"])
        except ValueError as error:
            raise DatasetError(
                str(self._path("runs")), f"has no usable details ({error})", fix=AGAIN
            ) from error

    @property
    def inputs(self) -> tuple[Path, ...]:
        return (self.store,)

    @cached_property
    def header(self) -> RunHeader:
        header = self._details.header
        found = header.steps_from or steps_source(
            header.n_ranks, self._details.n_host_steps or 0, self.step_family
        )
        return replace(
            header,
            run_id=self.run_id,
            label=self.given_label or self._row["label"],
            steps_from=found,
        )

    @property
    def definitions_version(self) -> int:
        return int(self._row["definitions_version"] or FIRST_VERSION)

    @property
    def step_family(self) -> str | None:
        return cast("str | None", self._row["step_family"])

    @property
    def skipped_steps(self) -> list[int]:
        return list(self._details.skipped_steps)

    @property
    def skipped_checks(self) -> tuple[SkippedCheck, ...]:
        saved = self._details.skipped_checks
        if saved is None:
            notes = [
                row for row in self._table("problems").to_pylist() if row["code"] == _NOT_JUDGED
            ]
            return tuple(_check_of_text(row["message"], row["fix"]) for row in notes)
        return tuple(SkippedCheck(tuple(check.rules), check.reason, check.fix) for check in saved)

    @property
    def nccl(self) -> NcclFacts | None:
        return self._details.nccl

    @property
    def link(self) -> LinkVerdict | None:
        return self._details.link

    @property
    def _saved_again(self) -> str:
        """What saves the operations too, under the label that the run has."""
        return f"{AGAIN} DIR --events, and --label {shlex.quote(self.header.label)}"

    def operations(
        self, steps: AskedSteps = None, ranks: AskedRanks = None
    ) -> Iterator[schema.OfRank]:
        chosen = self.chosen_ranks(ranks)
        if steps is not None:
            steps = check_steps(self.steps(), steps)
        if chosen and not any(
            self.files.has("events", rank) for rank in self.ranks["rank"].to_pylist()
        ):
            raise DatasetError(
                f"run {self.run_id}", "was saved without single operations", fix=self._saved_again
            )
        return (self._of_rank(rank, steps) for rank in chosen)

    def _of_rank(self, rank: int, steps: tuple[int, int] | None) -> schema.OfRank:
        try:
            events, ranges = (self.files.table(name, rank) for name in EVENT_TABLES)
        except DatasetError as error:
            error.fix = error.fix and error.fix.replace(AGAIN, self._saved_again)
            raise
        for name, table in zip(EVENT_TABLES, (events, ranges), strict=True):
            check_ranks(table, [rank], self._path(name, rank))
        if steps is None:
            return rank, events, ranges
        all_steps = self.steps()
        windows = all_steps.filter(
            pc.and_(pc.equal(all_steps["rank"], rank), _between(all_steps, steps))
        )
        rows = np.empty(0, np.int64)
        if windows.num_rows:
            span = pc.min(windows["start_ns"]).as_py(), pc.max(windows["end_ns"]).as_py()
            rows = overlapping_rows(
                events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), span
            )
        return rank, events.take(pa.array(rows)), ranges.filter(_between(ranges, steps))


def _between(table: pa.Table, steps: tuple[int, int]) -> pa.ChunkedArray:
    return pc.and_(
        pc.greater_equal(table["step"], steps[0]), pc.less_equal(table["step"], steps[1])
    )


def open_saved(path: Path, run_id: str | None = None, label: str | None = None) -> SavedRun:
    """Open a run of a store, as `layout.find_saved` finds it; to be called by another name if one is given."""
    store, found = find_saved(path, run_id, label)
    return SavedRun(whole_path(store), found, label)


# --- what no column of a run holds, as JSON in its row ---

_DEEPEST = 8


@dataclass(frozen=True)
class SavedCheck:
    """A skipped check as a run's row has it."""

    rules: list[str]
    reason: str
    fix: str | None


def _check_of_text(message: str, fix: str | None) -> SkippedCheck:
    """Return the skipped check of a run that was saved when only the text of its note named the rules."""
    names = {*rule_names()}
    words = set(re.findall(r"[a-z]+(?:-[a-z]+)*", message.partition(" (")[0]))
    reason = message.partition("(")[2].removesuffix(")") or message
    return SkippedCheck(tuple(sorted(names & words or names)), reason, fix)


@dataclass(frozen=True)
class Details:
    """What a run's row says beside its columns."""

    header: RunHeader
    skipped_steps: list[int]
    nccl: NcclFacts | None
    link: LinkVerdict | None
    n_host_steps: int | None = (
        None  # rows of `schema.HOST_STEPS`; None: saved before there was that table
    )
    skipped_checks: list[SavedCheck] | None = None  # None: saved before they were in the row


def parse_details(text: str) -> Details:
    """Read what `write.runs_table` wrote, less what no nsyspipe or only a later one should; a ValueError names a bad field."""
    details: Details = _value("Details", parsed_object(text), "")
    header = details.header
    capture = details.header.capture
    environment = details.header.environment
    _check_moment(header.captured_at_utc, "header")
    if capture is not None:
        _check_moment(capture.captured_at_utc, "header.capture")
        command = None if capture.command is None else recorded_command(capture.command, Mask())
        capture = replace(
            capture, command=command, environment=recorded_environment(capture.environment, Mask())
        )
    environment = None if environment is None else recorded_environment(environment, Mask())
    header = replace(
        header,
        driver_versions=shown_alone(header.driver_versions, VERSION),
        cuda_driver_versions=shown_alone(header.cuda_driver_versions, VERSION),
        traced_events=shown_alone(header.traced_events, TRACED),
        cuda_graph_traces=shown_alone(header.cuda_graph_traces, TRACED),
        commands=shown_commands(map(shlex.split, header.commands)),
    )
    nccl = details.nccl
    if nccl is not None:
        settings = {name: values.split(BETWEEN_VALUES) for name, values in nccl.settings.items()}
        nccl = replace(nccl, settings=recorded_settings(settings, Mask()))
    return replace(
        details, header=replace(header, capture=capture, environment=environment), nccl=nccl
    )


def _value(kind: str, found: Any, where: str) -> Any:  # noqa: ANN401 - whatever stands there
    needed = kind.removesuffix(" | None")
    if found is None and needed != kind:
        return None
    of_list = needed.removeprefix("list[").removesuffix("]")
    if needed.startswith("list[") and of_list in _OBJECTS:
        require(isinstance(found, list), f"{where} is not a list")
        return [_value(of_list, one, f"{where}[{at}]") for at, one in enumerate(found)]
    if needed not in _OBJECTS:
        require(_IS[needed](found), f"{where} is not {kind}")
        return tuple(found) if needed.startswith("tuple") else found
    require(isinstance(found, dict), f"{where} is not an object")
    values = {}
    for field in fields(_OBJECTS[needed]):
        if field.name in found:
            values[field.name] = _value(
                str(field.type), found[field.name], f"{where}.{field.name}".lstrip(".")
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where or 'it'} lacks {field.name}")
    return _OBJECTS[needed](**values)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST  # type: ignore[arg-type]


def _is_evidence(value: object, depth: int = 0) -> bool:
    if isinstance(value, dict | list):
        held = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and all(_is_evidence(one, depth + 1) for one in held)
    return value is None or isinstance(value, bool | str) or _is_number(value)


_DECLARED = (Details, SavedCheck, RunHeader, RunCapture, NcclFacts, LinkVerdict, SlowestLink)
_OBJECTS: dict[str, Any] = {one.__name__: one for one in _DECLARED}
_IS: dict[str, Callable[[object], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int and 0 <= value <= LARGEST,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "list[str]": lambda value: isinstance(value, list) and {*map(type, value)} <= {str},
    "list[int]": lambda value: isinstance(value, list) and all(map(_IS["int"], value)),
    "dict[str, str]": lambda value: (
        isinstance(value, dict) and {*map(type, value.values())} <= {str}
    ),
    "tuple[str, ...]": lambda value: (
        isinstance(value, list) and [*map(type, value)] in ([], [str, str])
    ),
    "Mapping[str, Any]": lambda value: isinstance(value, dict) and _is_evidence(value),
}


def _check_moment(text: str | None, where: str) -> None:
    is_utc = text is None
    with contextlib.suppress(ValueError):
        is_utc = is_utc or datetime.fromisoformat(str(text)).tzinfo is not None
    require(is_utc, f"{where}.captured_at_utc is not a time in UTC")
