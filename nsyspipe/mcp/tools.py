"""The four tools of the server: they read runs, and answer with the JSON of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from nsyspipe.api import diff, load
from nsyspipe.comparison.gate import check_metrics, parse_min_effect
from nsyspipe.errors import InputError, NotAReportError, OptionError, shortened
from nsyspipe.mcp.arguments import (
    MAX_NAME_CHARACTERS,
    AnalyzeArguments,
    DiffArguments,
    QueryArguments,
    Reading,
    WhatifArguments,
)
from nsyspipe.mcp.query import query_document
from nsyspipe.mcp.roots import Roots
from nsyspipe.model.names import few
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.nsys.find_reports import RAW_SUFFIXES, named_reports
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.knobs import knobs_of
from nsyspipe.report.difference import difference_formats
from nsyspipe.report.export import FORMATS
from nsyspipe.report.formats import dumps
from nsyspipe.report.whatif import whatif_formats
from nsyspipe.run.run import Run
from nsyspipe.store.choice import find_saved
from nsyspipe.store.layout import is_saved

MAX_ANSWER_BYTES = 1_000_000
_MAX_KEYS_SHOWN = 40


class Tools(Struct, frozen=True):
    """What the server can do. Each method returns the text of its answer, and writes nothing."""

    roots: Roots
    max_answer_bytes: int = MAX_ANSWER_BYTES

    def analyze(self, asked: AnalyzeArguments) -> str:
        """Return what ``nsyspipe analyze --json -`` prints."""
        run = self._opened(asked.reports, asked, asked.label)
        text = FORMATS["json"].text(run)
        return self._limited(text, asked.keys)

    def diff(self, asked: DiffArguments) -> str:
        """Return what ``nsyspipe diff --json -`` prints where there is no file of settings."""
        # Without an option, `nsyspipe.diff` has its default.
        options: dict[str, Any] = {}
        if asked.metrics is not None:
            options["metrics"] = check_metrics(asked.metrics)
        if asked.min_effect is not None:
            ratio = parse_min_effect(asked.min_effect)
            # Rounded, because 100 times a ratio such as 0.07 is not a whole number.
            percent = round(100 * ratio, 12)
            options["min_effect_pct"] = f"{percent}%"
        if asked.confidence is not None:
            options["confidence"] = asked.confidence
        baseline = self._captures(asked.baseline, asked, asked.baseline_label)
        candidate = self._captures(asked.candidate, asked, asked.candidate_label)
        for run in (*baseline, *candidate):
            # This reads the reports of one run before those of the next.
            _ = run.steps()
        difference = diff(baseline, candidate, **options)
        text = difference_formats(difference)["json"].text()
        return self._limited(text, asked.keys)

    def whatif(self, asked: WhatifArguments) -> str:
        """Return what ``nsyspipe whatif --json -`` prints."""
        changes = asked.changes()
        # This raises the error for impossible changes, before anything is read.
        _ = knobs_of(**changes)
        run = self._opened(asked.run, asked, asked.label)
        answer = whatif(run, **changes)
        text = whatif_formats(answer, run)["json"].text()
        return self._limited(text, asked.keys)

    def query(self, asked: QueryArguments) -> str:
        """Return rows of a table of a saved run as JSON."""
        self.roots.check(asked.run)
        if not is_saved(Path(asked.run)):
            fix = "STORE, STORE:ID or STORE:LABEL"
            raise OptionError(asked.run, "is not a saved run", fix=fix)
        run = self._opened([asked.run], Reading(), None)
        document = query_document(run, asked, self.max_answer_bytes)
        # The rows are limited. The rest is small, and of a known size.
        return dumps(document)

    def _captures(self, places: Sequence[str], asked: Reading, label: str | None) -> list[Run]:
        """Return the captures of one side, not read yet: the other side may be no run at all."""
        return [self._opened([place], asked, label) for place in places]

    def _opened(self, places: Sequence[str], asked: Reading, label: str | None) -> Run:
        """Open the one run that all places name together: one saved run, or reports.

        Raise an InputError if any part of the run is outside of the roots.
        """
        for place in places:
            self.roots.check(place)
        options = asked.options()
        saved_places = [place for place in places if is_saved(Path(place))]
        for place in saved_places:
            store, _ = find_saved(Path(place))
            self.roots.check_store(store)
        if saved_places:
            # `load` raises an error if there are other places beside one saved run.
            return load(places, label=label, **options)
        reports = named_reports(places)
        for report in reports:
            self.roots.check_file(report.path)
            _check_is_exported(report)
        return load(reports, label=label, **options)

    def _limited(self, text: str, keys: Sequence[str] | None) -> str:
        """Return a document, or some keys of it; an `InputError` if it is too large."""
        if keys is not None:
            text = with_keys(text, keys)
        # Our JSON escapes all letters beyond ASCII, so each character is one byte.
        n_bytes = len(text)
        if n_bytes > self.max_answer_bytes:
            problem = f"has {n_bytes} bytes, more than the limit of {self.max_answer_bytes} bytes"
            fix = "ask for some keys of the document, or save the run and use query"
            raise InputError("the answer", problem, found=_sizes(text), fix=fix)
        return text


def _check_is_exported(report: ReportFile) -> None:
    """Refuse a report that nsys would have to export, because the server writes nothing."""
    if report.path.suffix in RAW_SUFFIXES:
        problem = "is not exported to SQLite, and this server writes no export"
        raise NotAReportError(str(report), problem, fix=f"nsyspipe convert {report}")


def with_keys(text: str, keys: Sequence[str]) -> str:
    """Return some top-level keys of a document, each with the same bytes as in the document."""
    document: dict[str, Any] = json.loads(text)
    for key in keys:
        if key not in document:
            name = shortened(key, MAX_NAME_CHARACTERS)
            raise OptionError.no_such_name(f"key {name!r}", "is not in the answer", name, document)
    return dumps({key: value for key, value in document.items() if key in keys})


def _sizes(text: str) -> str:
    """Return the keys of a document with their sizes in bytes, the largest first."""
    document: dict[str, Any] = json.loads(text)
    size_of_key = {key: len(dumps({key: value})) for key, value in document.items()}
    largest_first = sorted(size_of_key, key=size_of_key.__getitem__, reverse=True)
    return few([f"{key} {size_of_key[key]}" for key in largest_first], _MAX_KEYS_SHOWN)
