"""Errors: their tree, their lines, and their way between processes."""

from __future__ import annotations

import pickle

import pytest

from nsyspipe import errors
from nsyspipe.errors import InputError, OptionError

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__]
FACTS = {"found": "b.sqlite", "fix": "nsyspipe analyze b.sqlite"}


def test_parents_are_those_that_callers_catch():
    assert {one.__name__: one.__base__.__name__ for one in CLASSES} == {
        "NsyspipeError": "Exception",
        **dict.fromkeys(("InputError", "CaptureError", "OptionError", "OutputError"), "NsyspipeError"),
        **dict.fromkeys(("ReportNotFoundError", "NotAReportError", "DamagedReportError"), "InputError"),
        **dict.fromkeys(("MissingColumnError", "RankConflictError", "DatasetError"), "InputError"),
        **dict.fromkeys(("NsysNotFoundError", "NsysFailedError"), "CaptureError"),
    }


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("facts", [FACTS, {"found": None, "fix": None}, {**FACTS, "fix": None}])
def test_pickling_keeps_the_class_and_the_facts_and_every_error_ends_the_program_with_2(kind, facts):
    error = pickle.loads(pickle.dumps(kind("a.sqlite", "not a report", **facts)))
    assert type(error) is kind
    assert (error.subject, error.problem, error.exit_code) == ("a.sqlite", "not a report", 2)
    assert {"found": error.found, "fix": error.fix} == facts
    assert str(error) == "a.sqlite: not a report"


@pytest.mark.parametrize(("facts", "extra"), [
    ({}, []), ({"found": "", "fix": ""}, []),  # nothing is said of what is not known
    ({"fix": "-j 1"}, ["  fix: -j 1"]), ({"found": "2 files"}, ["  found: 2 files"]),
    (FACTS, ["  found: b.sqlite", "  fix: nsyspipe analyze b.sqlite"]),
])  # fmt: skip
def test_lines_are_the_message_then_what_was_found_then_the_fix(facts, extra):
    assert InputError("a", "b", **facts).lines() == ["a: b", *extra]


NEAREST = {"steptime": "step_time", "Step-Time": "step_time", "step_tim": "step_time"}


@pytest.mark.parametrize(("name", "fix"), [*NEAREST.items(), *((name, None) for name in ("step_tables", "x", 5, ""))])
def test_a_name_that_is_none_gets_the_nearest_as_its_fix(name, fix):
    error = OptionError.no_such_name(f"--sort {name!r}", "is no metric", name, ["idle", "step_time"])
    assert (error.found, error.fix) == ("idle, step_time", fix)
    assert str(error) == f"--sort {name!r}: is no metric"
