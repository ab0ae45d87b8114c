"""A run read back from a store, with the same tables and operations."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.links import LinkVerdict, SlowestLink
from nsyspipe.analysis.operations import overlapping_rows
from nsyspipe.analysis.steps import check_steps
from nsyspipe.errors import DatasetError, require
from nsyspipe.findings.judge import rule_names
from nsyspipe.model import schema
from nsyspipe.model.captured import RunCapture
from nsyspipe.model.definitions import FIRST_VERSION
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.schema import EVENT_TABLES
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.model.table import conform
from nsyspipe.model.typed_tables import (
    EventsTable,
)
from nsyspipe.model.user_paths import UserPath
from nsyspipe.nsys.command_words import (
    BETWEEN_VALUES,
    PYTHON_SAMPLING,
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
from nsyspipe.store.choice import find_saved
from nsyspipe.store.layout import file_name
from nsyspipe.store.read import (
    AGAIN,
    LARGEST,
    RunFiles,
    check_ranks,
    check_steps_known,
    parsed_object,
    path_in_store,
    read_run_files,
)

# The code of the note about skipped checks.
_SKIPPED_CHECKS_CODE = "not-judged"
# Tables that the first stores did not have.
_LATER_TABLES = ("host_lines", "counter_bars", "line_bars", "peers")
# The form of each text in these fields of a header.
_FORM_OF_FIELD = {
    "driver_versions": VERSION,
    "cuda_driver_versions": VERSION,
    "traced_events": TRACED,
    "cuda_graph_traces": TRACED,
    "cuda_traces": TRACED,
    "python_samplings": PYTHON_SAMPLING,
}
# These tables may also have steps without a window on the GPU, because a capture may end while data
# for the next step is fetched.
_TABLES_WITH_OTHER_STEPS = ("collectives", "phases", "steps")
# These tables may also have ranks without a recorded device.
_TABLES_WITH_OTHER_RANKS = ("host_steps", "problems", "ranks", "runs")


@dataclass(frozen=True, repr=False, eq=False)
class SavedRun(Run):
    """A run that `write.save` wrote.

    All files are of one save. They are read together when the first is needed, except operations,
    which are read when they are asked for.
    """

    store: UserPath
    run_id: str
    # A label that replaces the saved one.
    given_label: str | None = None

    def _make(self, name: str) -> pa.Table:
        if name == "summary":
            return conform(self._table("runs"), schema.SUMMARY)
        if name == "host_steps" and self._details.n_host_steps is None:
            # An older nsyspipe saved the run, without this table.
            return schema.HOST_STEPS.empty()
        if name == "counters" and self._details.n_counters is None:
            return schema.COUNTERS.empty()
        if name in _LATER_TABLES and not self.files.has(name):
            # An older nsyspipe saved the run, without this table.
            return schema.RUN_TABLES[name].empty()
        table = self.files.table(name)
        path = self._path(name)
        if name not in _TABLES_WITH_OTHER_RANKS:
            ranks = self._table("ranks")["rank"]
            check_ranks(table, ranks.to_pylist(), path)
            if name not in _TABLES_WITH_OTHER_STEPS:
                check_steps_known(table, self._table("steps"), path)
        return table

    @cached_property
    def files(self) -> RunFiles:
        """All files of the run, of one save."""
        return read_run_files(self.store, self.run_id)

    def _path(self, name: str, rank: int | None = None) -> Path:
        return path_in_store(self.store, file_name(name, rank), self.run_id)

    @cached_property
    def _row(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._table("runs").to_pylist()[0])

    @cached_property
    def _details(self) -> Details:
        try:
            return parse_details(self._row["details"])
        except ValueError as error:
            path = str(self._path("runs"))
            raise DatasetError(path, f"has no usable details ({error})", fix=AGAIN) from error

    @property
    def inputs(self) -> tuple[Path, ...]:
        return (self.store.path,)

    @cached_property
    def header(self) -> RunHeader:
        header = self._details.header
        n_host_steps = self._details.n_host_steps or 0
        steps_from = header.steps_from
        if not steps_from:
            steps_from = steps_source(header.n_ranks, n_host_steps, self.step_family)
        label = self.given_label or self._row["label"]
        return replace(header, run_id=self.run_id, label=label, steps_from=steps_from)

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
            problems = self._table("problems").to_pylist()
            notes = [problem for problem in problems if problem["code"] == _SKIPPED_CHECKS_CODE]
            return tuple(_check_of_text(note["message"], note["fix"]) for note in notes)
        return tuple(check.as_skipped() for check in saved)

    @property
    def nccl(self) -> NcclFacts | None:
        return self._details.nccl

    @property
    def has_peer_records(self) -> bool:
        return self._details.n_peers is not None

    @property
    def link(self) -> LinkVerdict | None:
        return self._details.link

    @property
    def _saved_again(self) -> str:
        """The fix that also saves the operations, under the label of the run."""
        return f"{AGAIN} DIR --events, and --label {shlex.quote(self.header.label)}"

    def operations(
        self, steps: AskedSteps = None, ranks: AskedRanks = None
    ) -> Iterator[schema.OfRank]:
        chosen = self.chosen_ranks(ranks)
        checked_steps = None if steps is None else check_steps(self.steps(), steps)
        all_ranks = self.ranks["rank"].to_pylist()
        # A run is saved with the operations of all ranks or of none. If only those of a chosen rank
        # are missing, the file is missing, and reading raises that error.
        has_operations = any(self.files.has("events", rank) for rank in all_ranks)
        if chosen and not has_operations:
            problem = "was saved without single operations"
            raise DatasetError(f"run {self.run_id}", problem, fix=self._saved_again)
        return (self._operations_of_rank(rank, checked_steps) for rank in chosen)

    def _operations_of_rank(self, rank: int, steps: tuple[int, int] | None) -> schema.OfRank:
        """Return the operations and phase ranges of a rank, of all steps or of a range of steps."""
        try:
            events, ranges = (self.files.table(name, rank) for name in EVENT_TABLES)
        except DatasetError as error:
            # Operations are only saved with a further option.
            if error.fix:
                error.fix = error.fix.replace(AGAIN, self._saved_again)
            raise
        for name, table in zip(EVENT_TABLES, (events, ranges), strict=True):
            check_ranks(table, [rank], self._path(name, rank))
        if steps is None:
            return rank, events, ranges
        all_steps = self.steps()
        is_of_rank = pc.equal(all_steps["rank"], rank)
        is_asked = pc.and_(is_of_rank, _is_in_steps(all_steps, steps))
        events_of_steps = _overlapping_events(events, all_steps.filter(is_asked))
        ranges_of_steps = ranges.filter(_is_in_steps(ranges, steps))
        return rank, events_of_steps, ranges_of_steps


def _overlapping_events(events: EventsTable, windows: pa.Table) -> pa.Table:
    """Return the events that overlap the time from the first start to the last end of windows."""
    if not windows.num_rows:
        return events.slice(0, 0)
    start_ns = pc.min(windows["start_ns"]).as_py()
    end_ns = pc.max(windows["end_ns"]).as_py()
    event_starts = events["start_ns"].to_numpy()
    event_ends = events["end_ns"].to_numpy()
    rows = overlapping_rows(event_starts, event_ends, (start_ns, end_ns))
    return events.take(pa.array(rows))


def _is_in_steps(table: pa.Table, steps: tuple[int, int]) -> pa.ChunkedArray:
    first_step, last_step = steps
    numbers = table["step"]
    is_after_start = pc.greater_equal(numbers, first_step)
    is_before_end = pc.less_equal(numbers, last_step)
    return pc.and_(is_after_start, is_before_end)


def open_saved(path: Path, run_id: str | None = None, label: str | None = None) -> SavedRun:
    """Open the run of a store that `choice.find_saved` finds. A `label` replaces the saved one."""
    store, saved_id = find_saved(path, run_id, label)
    return SavedRun(UserPath.of(store), saved_id, label)


# --- what no column of a run contains, as JSON in its row ---

_MAX_EVIDENCE_DEPTH = 8


@dataclass(frozen=True)
class SavedCheck:
    """A skipped check, as the row of a run contains it."""

    rules: list[str]
    reason: str
    fix: str | None

    def as_skipped(self) -> SkippedCheck:
        """Return it as a run has it."""
        return SkippedCheck(tuple(self.rules), self.reason, self.fix)


def _check_of_text(message: str, fix: str | None) -> SkippedCheck:
    """Return the skipped check of a run that an older nsyspipe saved, from the text of its note.

    The text names the rules, and then has the reason in brackets. A text that names no rule is
    about all rules.
    """
    text_of_rules, _, text_in_brackets = message.partition("(")
    all_names = {*rule_names()}
    words = set(re.findall(r"[a-z]+(?:-[a-z]+)*", text_of_rules))
    names = all_names.intersection(words) or all_names
    reason = text_in_brackets.removesuffix(")") or message
    return SkippedCheck(tuple(sorted(names)), reason, fix)


@dataclass(frozen=True)
class Details:
    """What the row of a run contains as JSON, because no column has it."""

    header: RunHeader
    skipped_steps: list[int]
    nccl: NcclFacts | None
    link: LinkVerdict | None
    # The number of rows of `schema.HOST_STEPS`. None if an older nsyspipe saved the run, without
    # this table.
    n_host_steps: int | None = None
    # As `n_host_steps`, of `schema.COUNTERS`.
    n_counters: int | None = None
    # The number of rows of `schema.PEERS`. None without a file of NCCL Inspector, or if an older
    # nsyspipe saved the run.
    n_peers: int | None = None
    # None if an older nsyspipe saved the run, without this field.
    skipped_checks: list[SavedCheck] | None = None


def parse_details(text: str) -> Details:
    """Read the details that `write.runs_table` wrote; a ValueError names a bad field.

    Unknown fields are left out, as a later nsyspipe may have written them. Texts are masked again,
    as an older nsyspipe may have recorded parts that can be secret.
    """
    details: Details = _parsed_value("Details", parsed_object(text), "")
    header = details.header
    _check_utc_time(header.captured_at_utc, "header")
    if header.capture is not None:
        _check_utc_time(header.capture.captured_at_utc, "header.capture")
    nccl = details.nccl
    if nccl is not None:
        values_by_name: dict[str, list[str]] = {}
        for name, values in nccl.settings.items():
            values_by_name[name] = values.split(BETWEEN_VALUES)
        settings = recorded_settings(values_by_name, Mask())
        nccl = replace(nccl, settings=settings)
    masked_header = _masked_header(header)
    return replace(details, header=masked_header, nccl=nccl)


def _masked_header(header: RunHeader) -> RunHeader:
    """Return a header in which only texts remain that nsyspipe records.

    Texts without the form of their field are left out.
    """
    capture = header.capture
    if capture is not None:
        command = capture.command
        if command is not None:
            command = recorded_command(command, Mask())
        capture_environment = recorded_environment(capture.environment, Mask())
        capture = replace(capture, command=command, environment=capture_environment)
    environment = header.environment
    if environment is not None:
        environment = recorded_environment(environment, Mask())
    commands = shown_commands(map(shlex.split, header.commands))
    texts: dict[str, Any] = {}
    for name, form in _FORM_OF_FIELD.items():
        texts[name] = shown_alone(getattr(header, name), form)
    return replace(header, capture=capture, environment=environment, commands=commands, **texts)


def _parsed_value(kind: str, value: Any, place: str) -> Any:  # noqa: ANN401 - any JSON
    """Return a value of JSON as a value of a kind.

    A kind is the text of a type, such as ``list[SavedCheck]`` or ``str | None``. `place` names the
    field in the message of the ValueError for a value of another kind.
    """
    # Without the None that the type may allow.
    needed = kind.removesuffix(" | None")
    may_be_none = needed != kind
    if value is None and may_be_none:
        return None
    item_kind = needed.removeprefix("list[").removesuffix("]")
    is_list_of_objects = needed.startswith("list[") and item_kind in _OBJECTS
    if is_list_of_objects:
        require(isinstance(value, list), f"{place} is not a list")
        items = []
        for index, item in enumerate(value):
            place_of_item = f"{place}[{index}]"
            items.append(_parsed_value(item_kind, item, place_of_item))
        return items
    if needed in _OBJECTS:
        require(isinstance(value, dict), f"{place} is not an object")
        return _parsed_fields(needed, value, place)
    require(_IS[needed](value), f"{place} is not {kind}")
    # JSON has lists only.
    return tuple(value) if needed.startswith("tuple") else value


def _parsed_fields(kind: str, json_object: dict[str, Any], place: str) -> object:
    """Return an object of JSON as an object of the class `kind`.

    Only fields with a default may be missing. `place` names the object in the message of the
    ValueError, and is empty for the outermost object.
    """
    values = {}
    for field in fields(_OBJECTS[kind]):
        name = field.name
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if name in json_object:
            field_place = f"{place}.{name}".lstrip(".")
            field_kind = str(field.type)
            values[name] = _parsed_value(field_kind, json_object[name], field_place)
        elif not has_default:
            raise ValueError(f"{place or 'it'} lacks {name}")
    return _OBJECTS[kind](**values)


def _is_number(value: object) -> bool:
    # A bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def _is_evidence(value: object, depth: int = 0) -> bool:
    if isinstance(value, dict | list):
        if depth >= _MAX_EVIDENCE_DEPTH:
            return False
        items = value.values() if isinstance(value, dict) else value
        return all(_is_evidence(item, depth + 1) for item in items)
    return value is None or isinstance(value, bool | str) or _is_number(value)


_DECLARED = (Details, SavedCheck, RunHeader, RunCapture, NcclFacts, LinkVerdict, SlowestLink)
_OBJECTS: dict[str, Any] = {declared.__name__: declared for declared in _DECLARED}
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


def _check_utc_time(text: str | None, place: str) -> None:
    """Raise a ValueError if a text is not a time in UTC. None is fine.

    Runs are sorted and compared by the text, so another time zone would be misread.
    """
    if text is None:
        return
    is_utc = False
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(text)
        is_utc = time.utcoffset() == timedelta(0)
    require(is_utc, f"{place}.captured_at_utc is not a time in UTC")
