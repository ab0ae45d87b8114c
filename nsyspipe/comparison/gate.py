"""What a comparison is asked: what makes its gate fail, from where on a change counts, how sure; by options or a file."""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model.options import several

if TYPE_CHECKING:
    from nsyspipe.model.figures import Better

REGRESSION = "regression"
ANY_CHANGE = "any-change"
FAIL_ON = (REGRESSION, ANY_CHANGE)

_GIVEN = f"--fail-on {REGRESSION}"
_FIX = f"--fail-on {ANY_CHANGE}"
DEFAULT_MIN_EFFECT_PCT = 2.0
DEFAULT_CONFIDENCE = 0.95
DEFAULT_MIN_EFFECT = DEFAULT_MIN_EFFECT_PCT / 100
_LEAST_CONFIDENCE = 0.5
_LEAST_NUMBER = 0.1  # per cent: what is less is noise in any capture, and a ratio that was meant
_PERCENT = re.compile(r"\+?((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?) ?%?", re.ASCII)
_OWN = "nsyspipe.toml"
_PROJECT = "pyproject.toml"
_TABLE = "diff"
_NAME = b"nsyspipe"
_LARGEST_FILE = 2**20
_LARGEST_INTEGER = 2**63


def check_gate(fail_on: object, name: str = "--fail-on") -> str:
    """Return the name of a gate; an `OptionError` in which it is called `name` if there is none such."""
    if fail_on in FAIL_ON:
        return str(fail_on)
    raise OptionError.no_such_name(f"{name} {fail_on!r}", "is not a gate", str(fail_on), FAIL_ON)


def check_can_fail(
    fail_on: str, judged: Mapping[str, Better], given: str = _GIVEN, fix: str = _FIX
) -> None:
    """Refuse a gate for regressions of metrics without a better side, named as `given`; `fix` is what could stand there."""
    without = [name for name, better in judged.items() if better == "neither"]
    if check_gate(fail_on) == REGRESSION and without:
        are = (
            f"{', '.join(without)} {'is' if len(without) == 1 else 'are'} without a better "
            "direction"
        )
        raise OptionError(given, f"can never fail: {are}", fix=fix)


def check_confidence(
    confidence: object, name: str = "--confidence", fix: str = "--confidence 0.95"
) -> float:
    """Return a confidence above 0.5 and below 1, of a text too; an `OptionError` in which it is called `name` if it is none."""
    value = _number(confidence)
    if not _LEAST_CONFIDENCE < value < 1:
        given = f"{name} {short_repr(confidence)}"
        raise OptionError(given, f"is not a number between {_LEAST_CONFIDENCE} and 1", fix=fix)
    return value


def effect_ratio(min_effect_pct: object) -> float:
    """Return a percentage from 0 as a ratio, of a text as `parse_min_effect` reads it; a number below 0.1 may be one already."""
    if isinstance(min_effect_pct, str):
        return parse_min_effect(min_effect_pct)
    value = _number(min_effect_pct)
    given = f"min_effect_pct={short_repr(min_effect_pct)}"
    return _checked_effect(
        value / 100, given, "min_effect_pct=2", is_told=not 0 < value < _LEAST_NUMBER
    )


def parse_min_effect(text: str, name: str = "--min-effect", fix: str = "--min-effect 2%") -> float:
    """Return a percentage as a ratio: ``2%`` and ``2`` are both 0.02; ``0.02`` may be either, and has to say ``%``."""
    found = _PERCENT.fullmatch(text.strip())
    value = float(found[1]) / 100 if found else math.nan
    is_told = text.strip().endswith("%") or not 0 < 100 * value < 1
    return _checked_effect(value, f"{name} {short_repr(text)}", fix, is_told=is_told)


def _checked_effect(value: float, given: str, fix: str, *, is_told: bool) -> float:
    if not is_told:
        ratio = f"{10000 * value:.4g}%"
        percent = f"{100 * value:.4g}%"
        problem = f"may mean {ratio} (a ratio) or {percent} (percent)"
        raise OptionError(given, problem, fix=f"write '{ratio}' or '{percent}'")
    if not 0 <= value < 1:
        is_percentage = 1 <= value < math.inf
        problem = (
            "is 100% of the baseline or more, which is larger than any change"
            if is_percentage
            else "is not a percentage of at least 0"
        )
        raise OptionError(given, problem, fix=fix)
    return value


def check_metrics(names: Iterable[str], option: str = "--metric") -> tuple[str, ...]:
    """Return names of metrics, each once, of a text those between commas; an `OptionError` with `option` if one is none."""
    from nsyspipe.model.figures import METRICS  # noqa: PLC0415 - numpy, which a wrong option need not load

    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    needed = "a name, or several,"
    fix = "metrics='step_time'"
    named = [*several("metrics", names, needed, fix)]
    if not all(isinstance(name, str) for name in named):
        raise OptionError.of_kind("metrics", names, needed, fix)
    checked = tuple(dict.fromkeys(named))
    if not checked:
        raise OptionError(f"{option} []", "is empty", fix=f"{option} step_time")
    for name in checked:
        if name not in METRICS:
            raise OptionError.no_such_name(f"{option} {name!r}", "is not a metric", name, METRICS)
    return checked


def _number(value: object) -> float:
    """Return a number of Python or numpy, or of a text; NaN for a flag, and for anything else."""
    is_number = isinstance(value, Real | str) and not isinstance(value, bool)
    try:
        return float(value) if is_number else math.nan  # type: ignore[arg-type]  # a number, or a text
    except (ValueError, OverflowError):
        return math.nan


class GateSettings(Struct, frozen=True):
    """What is set, as ratios, and the file that says so; None is "not set"."""

    fail_on: str | None = None
    min_effect: float | None = None
    confidence: float | None = None
    metrics: tuple[str, ...] | None = None
    path: Path | None = None
    from_file: frozenset[str] = frozenset()  # names of those that the file says

    @property
    def file(self) -> str | None:
        """The file as seen from here; None if nothing is of it."""
        return None if self.path is None else os.path.relpath(self.path)

    def source(self, name: str) -> str:
        """Return who sets an attribute: the file, ``option`` or ``default``."""
        return (
            (self.file or "")
            if name in self.from_file
            else "default"
            if getattr(self, name) is None
            else "option"
        )


NOTHING_SET = GateSettings()


def read_settings(directory: Path) -> GateSettings:
    """Return the settings of the nearest file, from a directory upwards; nothing is set without one.

    Of one directory ``nsyspipe.toml`` (table ``[diff]``) wins over ``pyproject.toml``
    (``[tool.nsyspipe.diff]``); a ``pyproject.toml`` without ``[tool.nsyspipe]`` is passed by,
    whatever else it is. Settings may stand outside of ``diff``, too; those inside win. A file that
    cannot be read, or sets what nothing reads or cannot be used, is an `OptionError`.
    """
    for path in (
        folder / name for folder in (directory, *directory.parents) for name in (_OWN, _PROJECT)
    ):
        table = _table(path) if os.path.isfile(path) else None  # noqa: PTH113 - not where it may not be looked
        if table is not None:
            for key in sorted(set(table) - set(_SETTINGS)):
                raise OptionError.no_such_name(
                    str(path), f"has the unknown setting {key!r}", key, _SETTINGS
                )
            asked = ((*_SETTINGS[key], value, f"{path}: {key} =") for key, value in table.items())
            return GateSettings(
                **{name: check(value, given) for name, check, value, given in asked}, path=path
            )
    return NOTHING_SET


def settled(options: GateSettings, file: GateSettings, names: Iterable[str]) -> GateSettings:
    """Return what options say of the attributes `names`, and where they are silent a file; its path if it says any of that.

    Nothing is taken from a file that others than its user may write, who could loosen the gate: an
    `OptionError`.
    """
    own = {name: getattr(options, name) for name in names}
    taken = {
        name: value
        for name in own
        if own[name] is None and (value := getattr(file, name)) is not None
    }
    if taken and file.path is not None:
        _check_owner(file.path, taken)
    return GateSettings(
        **own | taken, path=file.path if taken else None, from_file=frozenset(taken)
    )


def _check_owner(path: Path, taken: Iterable[str]) -> None:
    """Refuse a file of other users but root, or where they may put another one; groups are left alone: most are private."""
    ours = {0, os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        ours.add(int(os.environ["SUDO_UID"]))
    problem = _not_own(path.absolute(), ours) or _not_own(Path(os.path.realpath(path)), ours)
    if problem is not None:
        options = " ".join(f"--{key}" for key, (name, _) in _SETTINGS.items() if name in taken)
        problem = f"{problem}, so nsyspipe ignores this file for security"
        raise OptionError(
            str(path), problem, fix=f"chown or chmod the file and its directory, or pass {options}"
        )


def _not_own(path: Path, ours: set[int]) -> str | None:
    """Return what lets others than `ours` change a file, itself or by one of its directories; None if nothing does."""
    status = path.lstat()
    if status.st_uid not in ours:
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
        return "is writable by everybody"
    for folder in path.parents:
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"is in a directory that everybody can write to ({folder})"
        if not {folder.stat().st_uid, folder.lstat().st_uid} <= ours:
            return f"is in a directory of another user ({folder})"
    return None


def _table(path: Path) -> dict[str, Any] | None:
    is_project = path.name == _PROJECT
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if is_project and _NAME not in content and len(content) <= _LARGEST_FILE:
            return None  # another's: nothing to us, even if it is broken
        if len(content) > _LARGEST_FILE:
            raise OptionError(str(path), "is too large for a settings file")
        found: Any = tomllib.loads(content.decode())
    except OSError as error:
        raise OptionError(str(path), f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(
            str(path),
            f"is not valid TOML ({' '.join(str(error).split())})",
            fix="correct or remove the file",
        ) from error
    if is_project:
        tool = found.get("tool", {})
        found = tool.get(_NAME.decode()) if isinstance(tool, dict) else None
        if found is None:
            return None
    elif isinstance(found.get("tool"), dict):
        what = f"has the table [tool.nsyspipe.{_TABLE}], which belongs in {_PROJECT}"
        raise OptionError(str(path), what, fix=f"use [{_TABLE}] in {_OWN}")
    if not isinstance(found, dict) or not isinstance(found.get(_TABLE, {}), dict):
        fix = f"[tool.nsyspipe.{_TABLE}]" if is_project else f"[{_TABLE}]"
        raise OptionError(str(path), "has something other than a table of settings", fix=fix)
    inside = found.pop(_TABLE, {})
    return _hyphened(found, path) | _hyphened(inside, path)


def _hyphened(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    names = [key.replace("_", "-") for key in table]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OptionError(str(path), f"sets {twice[0]!r} twice, with - and with _")
    return dict(zip(names, table.values(), strict=True))


def _number_text(value: object) -> str:
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return "a number too large"  # Python writes no integers of thousands of digits
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number or isinstance(value, str) else type(value).__name__


def _metrics(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = ",".join(value)
    if not isinstance(value, str):
        raise OptionError(
            f"{name} {value!r}", "is not a list of metrics", fix='metric = ["step_time"]'
        )
    return check_metrics(value, name)


# Key of a file, which is the option too -> attribute of `GateSettings`, and what checks its value.
_SETTINGS: dict[str, tuple[str, Callable[[object, str], Any]]] = {
    "fail-on": ("fail_on", check_gate),
    "min-effect": (
        "min_effect",
        lambda value, name: parse_min_effect(_number_text(value), name, 'min-effect = "2%"'),
    ),
    "confidence": (
        "confidence",
        lambda value, name: check_confidence(_number_text(value), name, "confidence = 0.95"),
    ),
    "metric": ("metrics", _metrics),
}
