"""A run with other findings or problems than its reports give: more of them than any reports would."""

from __future__ import annotations

from nsyspipe.model import schema

_FINDING = {"severity": "low", "action": "", "evidence": "{}"}
_PROBLEM = {"code": "x", "severity": "warning", "report": None, "rank": None, "fix": None}


class Changed:
    """A run of which some answers are others than its reports gave."""

    def __init__(self, run, *, findings=None, problems=None, **others):
        self._run = run
        if findings is not None:
            self.findings = lambda: schema.FINDINGS.from_rows([_FINDING | row for row in findings])
        if problems is not None:
            self.problems = schema.PROBLEMS.from_rows([_PROBLEM | row for row in problems])
        vars(self).update(others)

    def __getattr__(self, name):
        return getattr(self._run, name)


def finding(number):
    words = {"id": f"rule-{number}", "title": f"found {number}", "advice": f"set option_{number}=1"}
    return words | {"saving_ns_per_step": 100.0 - number}
