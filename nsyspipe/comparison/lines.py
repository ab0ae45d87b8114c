"""Lines of Python that findings of both sides name, where they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nsyspipe.comparison.changes import StepTable
from nsyspipe.findings.host_lines import HOST_CALL, HOST_FUNCTION, HOST_LINE, LOCK_HELD_BY_OTHER
from nsyspipe.run.run import Run

TOPIC = "lines"
# Evidence of a finding that names a place in the program -> what such a place is called. Of
# several in one finding, the first in this order counts.
_WORDS_OF_PLACE = {
    HOST_LINE: "line of Python",
    HOST_FUNCTION: "Python function",
    HOST_CALL: "call in Python",
}
_RELEASE = "line that released Python's lock"


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

        Each run names its files relative to a folder of its own. So the file names of one place may
        differ at their start: one name has to be the end of the other.
        """
        lines_and_function = (self.line, self.last_line, self.function)
        if lines_and_function != (place.line, place.last_line, place.function):
            return False
        # Each name begins with a slash, so that only whole folders count: `a.py` is no end of
        # `data.py`.
        file = f"/{self.file}"
        file_of_place = f"/{place.file}"
        return file.endswith(file_of_place) or file_of_place.endswith(file)


# What a finding names, in words with the finding -> the place that is named.
_Places = dict[str, _Place]


def line_changes(
    before: Sequence[StepTable], after: Sequence[StepTable]
) -> list[dict[str, str | None]]:
    """Return a row of `CHANGES` for each place that a finding names differently on both sides.

    The finding has to stand on both sides, and all captures of a side have to name the same place.
    """
    places_before = _places_of_side(before)
    places_after = _places_of_side(after)
    rows: list[dict[str, str | None]] = []
    for what in sorted(places_before.keys() & places_after.keys()):
        place_before = places_before[what]
        place_after = places_after[what]
        if not place_before.is_same(place_after):
            row: dict[str, str | None] = {"topic": TOPIC, "what": what}
            row |= {"baseline": place_before.text, "candidate": place_after.text}
            rows.append(row)
    return rows


def _places_of_side(captures: Iterable[StepTable]) -> _Places:
    """Return the places on which all captures of a side agree, as the first capture names them."""
    first_places, *further_places = [_places_of_run(capture.run) for capture in captures]
    agreed = first_places
    for places in further_places:
        common = agreed.keys() & places.keys()
        agreed = {what: agreed[what] for what in common if agreed[what].is_same(places[what])}
    return agreed


def _places_of_run(run: Run) -> _Places:
    """Return the places that the findings of a run name.

    A finding has at most two of them: the place where the program was, and the line at which
    another thread released Python's lock.
    """
    places = {}
    for finding in run.judged_findings().to_pylist():
        evidence = json.loads(finding["evidence"])
        finding_id = finding["id"]
        name_in_evidence = next((name for name in _WORDS_OF_PLACE if name in evidence), None)
        if name_in_evidence is not None:
            what = f"{_WORDS_OF_PLACE[name_in_evidence]} of {finding_id}"
            places[what] = _Place.of(evidence[name_in_evidence])
        if LOCK_HELD_BY_OTHER in evidence:
            what = f"{_RELEASE} in {finding_id}"
            places[what] = _Place.of(evidence[LOCK_HELD_BY_OTHER])
    return places
