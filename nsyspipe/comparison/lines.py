"""Lines of Python that findings of both sides name, where they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nsyspipe.comparison.changes import StepTable
from nsyspipe.findings.host_lines import HOST_CALL, HOST_FUNCTION, HOST_LINE, LOCK_HOLDER_LINE
from nsyspipe.run.run import Run

TOPIC = "lines"
# What a finding names, and what this is called. Of the first three, the first counts.
_WHERE = {
    HOST_LINE: "line of Python",
    HOST_FUNCTION: "Python function",
    HOST_CALL: "call in Python",
}
_HOLDER = "line that held Python's lock"


class _Place(NamedTuple):
    """A line, or a function with its first and last line."""

    file: str
    line: int
    last_line: int
    function: str

    @classmethod
    def of(cls, figure: Mapping[str, Any]) -> _Place:
        """Return the place in a figure of a finding."""
        line = figure["line"]
        last_line = figure.get("last_line", line)
        return cls(figure["file"], line, last_line, figure["function"])

    @property
    def text(self) -> str:
        """The place in words."""
        lines = f"{self.line}"
        if self.line != self.last_line:
            lines += f"-{self.last_line}"
        return f"{self.file}:{lines} in {self.function}"

    def is_same(self, place: _Place) -> bool:
        """Tell whether a place of another run is the same.

        Files are relative to a folder that depends on the files of the run. So one name may be the
        end of the other.
        """
        if self[1:] != place[1:]:
            return False
        # With a root, a whole name is an end too.
        file = f"/{self.file}"
        file_of_place = f"/{place.file}"
        return file.endswith(file_of_place) or file_of_place.endswith(file)


_Places = dict[str, _Place]


def line_changes(
    before: Sequence[StepTable], after: Sequence[StepTable]
) -> list[dict[str, str | None]]:
    """Return the lines that findings of both sides name, if they differ, as rows of `CHANGES`.

    A finding counts if all captures of its side name the same line.
    """
    old_places = _places_of_side(before)
    new_places = _places_of_side(after)
    rows: list[dict[str, str | None]] = []
    for what in sorted(old_places.keys() & new_places.keys()):
        old = old_places[what]
        new = new_places[what]
        if not old.is_same(new):
            row: dict[str, str | None] = {"topic": TOPIC, "what": what}
            row |= {"baseline": old.text, "candidate": new.text}
            rows.append(row)
    return rows


def _places_of_side(captures: Iterable[StepTable]) -> _Places:
    """Return the places on which all captures of a side agree."""
    places_of_captures = [_places_of_run(capture.run) for capture in captures]
    agreed = places_of_captures[0]
    for places in places_of_captures:
        common = agreed.keys() & places.keys()
        agreed = {what: agreed[what] for what in common if agreed[what].is_same(places[what])}
    return agreed


def _places_of_run(run: Run) -> _Places:
    places = {}
    for finding in run.judged_findings().to_pylist():
        evidence = json.loads(finding["evidence"])
        finding_id = finding["id"]
        names = [name for name in _WHERE if name in evidence]
        for name in names[:1]:
            what = f"{_WHERE[name]} of {finding_id}"
            places[what] = _Place.of(evidence[name])
        if LOCK_HOLDER_LINE in evidence:
            what = f"{_HOLDER} in {finding_id}"
            places[what] = _Place.of(evidence[LOCK_HOLDER_LINE])
    return places
