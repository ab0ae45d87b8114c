"""`load` for tests that read the same reports many times over: a run never changes, so that one is enough."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsyspipe import api
from nsyspipe.model.user_paths import UserPath
from nsyspipe.report.public.report_run import ReportRun

# Of a run: by whom it is read, which changes nothing of it.
_HOW_TO_READ = ("jobs", "executor", "on_progress")


def load_once() -> Callable[..., Any]:
    """Return `load`, which gives the same run again for the same reports, options and words for them.

    Put it in the place of `api.load` with monkeypatch: commands load their runs there.
    """
    api_load = api.load
    runs: dict[str, ReportRun] = {}

    def load(*arguments: Any, **options: Any) -> Any:
        run = api_load(*arguments, **options)
        if not isinstance(run, ReportRun):
            return run
        asked = [
            _as_asked(getattr(run, field.name))
            for field in dataclasses.fields(run)
            if field.name not in _HOW_TO_READ
        ]
        return runs.setdefault(str(asked), run)

    return load


def _as_asked(option: Any) -> Any:
    """Return an option, of paths the file, how it is named from here and how the user named it."""
    if isinstance(option, UserPath):
        return _as_asked(option.path), option.spelling
    if isinstance(option, Path):
        return option.resolve(), os.path.relpath(option)
    if isinstance(option, tuple):
        return [_as_asked(one) for one in option]
    return option
