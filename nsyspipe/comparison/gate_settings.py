"""The thresholds of a gate: from options, else from the nearest ``nsyspipe.toml`` or ``pyproject.toml``."""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison.gate import FAIL_ON, check_confidence
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


_OWN, _PROJECT, _TABLE = "nsyspipe.toml", "pyproject.toml", "diff"
_NAME = b"nsyspipe"
_PERCENT = re.compile(r"\+?((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?) ?%?", re.ASCII)
_LARGEST_FILE = 2**20
# Settings whose option has another name.
_OPTIONS = {"metrics": "metric"}
_LARGEST_INTEGER = 2**63


@dataclass(frozen=True)
class GateSettings:
    """What is set; None is "not set".

    Attributes
    ----------
    min_effect, confidence
        As ratios.
    path
        The file that says so.
    """

    fail_on: str | None = None
    min_effect: float | None = None
    confidence: float | None = None
    metrics: tuple[str, ...] | None = None
    path: Path | None = None


def parse_min_effect(text: str, name: str = "--min-effect", fix: str = "--min-effect 2%") -> float:
    """Return a percentage as a ratio: ``2%`` and ``2`` are both 0.02; ``0.02`` may be either, and has to say ``%``.

    Parameters
    ----------
    name, fix
        How an error names it, and what could stand there.

    Raises
    ------
    OptionError
        If it is no percentage from 0, or may be a ratio.
    """
    found = _PERCENT.fullmatch(text.strip())
    value = float(found[1]) / 100 if found else math.inf
    if 0 < 100 * value < 1 and not text.strip().endswith("%"):
        either = f"{10000 * value:.4g}%", f"{100 * value:.4g}%"
        raise OptionError(
            f"{name} {text!r}",
            f"may mean {either[0]} (a ratio) or {either[1]} (per cent)",
            fix=f"write {either[0]} or {either[1]}",
        )
    if not math.isfinite(value):
        raise OptionError(f"{name} {text!r}", "is no percentage from 0", fix=fix)
    return value


def parse_confidence(
    text: str, name: str = "--confidence", fix: str = "--confidence 0.95"
) -> float:
    """Return a confidence above 0.5 and below 1.

    Parameters
    ----------
    name, fix
        How an error names it, and what could stand there.

    Raises
    ------
    OptionError
        If it is not.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    return check_confidence(value, f"{name} {text!r}", fix)


def parse_metrics(text: str, name: str = "--metric") -> tuple[str, ...]:
    """Return the names of metrics in a comma-separated list, each once.

    Raises
    ------
    OptionError
        If one of them is no metric.
    """
    from nsyspipe.comparison.metrics import METRICS  # noqa: PLC0415 - numpy, which a wrong option need not load

    found = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    for one in found:
        if one not in METRICS:
            raise OptionError.no_such_name(
                f"{name} {one!r}", "there is no such metric", one, METRICS
            )
    return found


def read_settings(directory: Path) -> GateSettings:
    """Return the settings of the nearest file, from a directory upwards; nothing is set without one.

    Of one directory ``nsyspipe.toml`` (table ``[diff]``) wins over ``pyproject.toml`` (``[tool.nsyspipe.diff]``), and
    a ``pyproject.toml`` without ``[tool.nsyspipe]`` is passed by, whatever else it is. Settings may stand outside of ``diff``, too; those
    inside win. Keys: ``fail-on``, ``min-effect``, ``confidence``, ``metric``.

    Raises
    ------
    OptionError
        If the file cannot be read, has a key that is not known, or a value that cannot be used.
    """
    for folder in (directory, *directory.parents):
        for name in (_OWN, _PROJECT):
            path = folder / name
            if _is_file(path):
                table = _table(path)
                if table is not None:
                    return _settings(table, path)
    return GateSettings()


def settled(options: GateSettings, file: GateSettings, names: Iterable[str]) -> GateSettings:
    """Return what options say, and where they are silent a file; its path only if it says anything of that.

    Parameters
    ----------
    names
        The attributes that count; the others are not set.

    Raises
    ------
    OptionError
        If something is taken from a file that others than its user may write, who could loosen the gate.
    """
    own = {name: getattr(options, name) for name in names}
    taken = {
        name: getattr(file, name)
        for name, value in own.items()
        if value is None and getattr(file, name) is not None
    }
    if taken and file.path is not None:
        _check_owner(file.path, taken)
    return GateSettings(**own | taken, path=file.path if taken else None)


def _check_owner(path: Path, taken: Iterable[str]) -> None:
    """Refuse a file that is not its user's own, or whose directories up to the root let others put another one there.

    Others are all users but this one and root. What a group may write is left alone: most have one of their own.
    """
    if not hasattr(os, "geteuid"):
        return
    ours = {0, os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        ours.add(int(os.environ["SUDO_UID"]))
    problem = next(
        filter(None, (_not_own(one, ours) for one in (path.absolute(), path.resolve()))), None
    )
    if problem is not None:
        options = " ".join(f"--{_OPTIONS.get(name, name.replace('_', '-'))}" for name in taken)
        problem = f"{problem}, who could loosen the gate with it: nothing is taken from it"
        raise OptionError(
            str(path), problem, fix=f"chown or chmod it and its directory, or {options}"
        )


def _not_own(path: Path, ours: set[int]) -> str | None:
    """Return what lets others than `ours` change a file, itself or by one of its directories; None if nothing does."""
    status = path.lstat()
    if status.st_uid not in ours:
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
        return "may be written by anybody"
    for folder in path.parents:
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"lies in a directory that anybody may write ({folder})"
        if not {folder.stat().st_uid, folder.lstat().st_uid} <= ours:
            return f"lies in a directory of another user ({folder})"
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # above a directory that may not be searched
        return False


def _table(path: Path) -> dict[str, Any] | None:
    """Return what a file sets; None if it is not for nsyspipe."""
    is_project = path.name == _PROJECT
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if is_project and _NAME not in content and len(content) <= _LARGEST_FILE:
            return None  # another's: nothing to us, even if it is broken
        if len(content) > _LARGEST_FILE:
            raise OptionError(str(path), "is too large for a file of settings")
        found: Any = tomllib.loads(content.decode())
    except OSError as error:
        raise OptionError(str(path), f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        problem = f"is no TOML ({' '.join(str(error).split())})"
        raise OptionError(str(path), problem, fix="mend or remove it") from error
    if is_project:
        tool = found.get("tool", {})
        found = tool.get(_NAME.decode()) if isinstance(tool, dict) else None
        if found is None:
            return None
    if not isinstance(found, dict) or not isinstance(found.get(_TABLE, {}), dict):
        fix = f"[tool.nsyspipe.{_TABLE}]" if is_project else f"[{_TABLE}]"
        raise OptionError(str(path), "has no table of settings where one was needed", fix=fix)
    outside = {key: value for key, value in found.items() if key != _TABLE}
    return _hyphened(outside, path) | _hyphened(found.get(_TABLE, {}), path)


def _hyphened(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a table whose keys have hyphens, as options do."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in found:
            raise OptionError(str(path), f"sets {name!r} twice, with - and with _")
        found[name] = value
    return found


def _settings(table: Mapping[str, Any], path: Path) -> GateSettings:
    unknown = sorted(set(table) - set(_READERS))
    if unknown:
        problem = f"sets {unknown[0]!r}, which nothing reads"
        raise OptionError.no_such_name(str(path), problem, unknown[0], _READERS)
    values = {key: _READERS[key](table[key], f"{path}: {key} =") for key in table}
    return GateSettings(
        fail_on=values.get("fail-on"),
        min_effect=values.get("min-effect"),
        confidence=values.get("confidence"),
        metrics=values.get("metric"),
        path=path,
    )


def _fail_on(value: object, name: str) -> str:
    if value not in FAIL_ON:
        raise OptionError.no_such_name(f"{name} {value!r}", "is no gate", str(value), FAIL_ON)
    return str(value)


def _min_effect(value: object, name: str) -> float:
    return parse_min_effect(_number_text(value), name, 'min-effect = "2%"')


def _confidence(value: object, name: str) -> float:
    return parse_confidence(_number_text(value), name, "confidence = 0.95")


def _number_text(value: object) -> str:
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return "a number too large"  # Python writes no integers of thousands of digits
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number or isinstance(value, str) else type(value).__name__


def _metrics(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = ",".join(value)
    if not isinstance(value, str):
        raise OptionError(f"{name} {value!r}", "is no list of metrics", fix='metric = ["step_time"]')  # fmt: skip
    return parse_metrics(value, name)


_READERS: dict[str, Callable[[object, str], Any]] = {
    "fail-on": _fail_on,
    "min-effect": _min_effect,
    "confidence": _confidence,
    "metric": _metrics,
}
