"""Settings of a comparison, from options or a file: gate, smallest effect, confidence."""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model.options import several

if TYPE_CHECKING:
    from nsyspipe.model.figures import Better

REGRESSION = "regression"
ANY_CHANGE = "any-change"
FAIL_ON = (REGRESSION, ANY_CHANGE)

_FAIL_ON_REGRESSION = f"--fail-on {REGRESSION}"
_FAIL_ON_ANY_CHANGE = f"--fail-on {ANY_CHANGE}"
DEFAULT_MIN_EFFECT_PCT = 2.0
DEFAULT_CONFIDENCE = 0.95
DEFAULT_MIN_EFFECT = DEFAULT_MIN_EFFECT_PCT / 100
# A confidence is above this.
MIN_CONFIDENCE = 0.5
# A smaller effect is noise in any capture, so that the number was meant as a ratio.
MIN_EFFECT_PCT = 0.1
_PERCENTAGE = re.compile(r"\+?((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?) ?%?", re.ASCII)
_OWN_FILE = "nsyspipe.toml"
_PROJECT_FILE = "pyproject.toml"
_SETTINGS_FILES = (_OWN_FILE, _PROJECT_FILE)
_TABLE = "diff"
_TOOL = "nsyspipe"
MAX_FILE_BYTES = 2**20
# The largest integer of TOML.
_MAX_INTEGER = 2**63


# --- values of options ----------------------------------------------------------------------------
def check_gate(fail_on: object, name: str = "--fail-on") -> str:
    """Return the name of a gate; an `OptionError` that calls it `name` if there is no such gate."""
    if fail_on in FAIL_ON:
        return str(fail_on)
    raise OptionError.no_such_name(f"{name} {fail_on!r}", "is not a gate", str(fail_on), FAIL_ON)


def check_can_fail(
    fail_on: str,
    judged: Mapping[str, Better],
    option: str = _FAIL_ON_REGRESSION,
    fix: str = _FAIL_ON_ANY_CHANGE,
) -> None:
    """Refuse a gate for regressions of metrics without a better direction, which can never fail.

    The error names the `option` that set the gate, and what could be set as a `fix`.
    """
    without_direction = [name for name, better in judged.items() if better == "neither"]
    if check_gate(fail_on) == REGRESSION and without_direction:
        names = ", ".join(without_direction)
        verb = "is" if len(without_direction) == 1 else "are"
        problem = f"can never fail: {names} {verb} without a better direction"
        raise OptionError(option, problem, fix=fix)


def check_confidence(
    confidence: object, name: str = "--confidence", fix: str = "--confidence 0.95"
) -> float:
    """Return a confidence above 0.5 and below 1, from a number or a text.

    Raises
    ------
    OptionError
        If it is something else; the error calls it `name`.
    """
    value = _number(confidence)
    if not MIN_CONFIDENCE < value < 1:
        problem = f"is not a number between {MIN_CONFIDENCE} and 1"
        raise OptionError(f"{name} {short_repr(confidence)}", problem, fix=fix)
    return value


def effect_ratio(min_effect_pct: object) -> float:
    """Return a percentage, from 0 on, as a ratio.

    A text is read by `parse_min_effect`. A number below 0.1 is refused: it may be a ratio.
    """
    if isinstance(min_effect_pct, str):
        return parse_min_effect(min_effect_pct)
    value = _number(min_effect_pct)
    option = f"min_effect_pct={short_repr(min_effect_pct)}"
    may_be_ratio = 0 < value < MIN_EFFECT_PCT
    return _check_effect(value / 100, option, fix="min_effect_pct=2", may_be_ratio=may_be_ratio)


def parse_min_effect(text: str, name: str = "--min-effect", fix: str = "--min-effect 2%") -> float:
    """Return a percentage as a ratio: ``2%`` and ``2`` are both 0.02.

    ``0.02`` may be a ratio or a percentage, so it is refused without ``%``.
    """
    match = _PERCENTAGE.fullmatch(text.strip())
    percent = float(match[1]) if match else math.nan
    ratio = percent / 100
    has_percent_sign = text.strip().endswith("%")
    may_be_ratio = not has_percent_sign and 0 < 100 * ratio < 1
    option = f"{name} {short_repr(text)}"
    return _check_effect(ratio, option, fix=fix, may_be_ratio=may_be_ratio)


def _check_effect(ratio: float, option: str, *, fix: str, may_be_ratio: bool) -> float:
    """Return a minimum effect; an `OptionError` if it is ambiguous, or not from 0 to 100 %.

    `ratio` is a hundredth of the number that was given, because this is taken for a percentage.
    """
    if may_be_ratio:
        # If the number itself was meant as a ratio, it is 100 times as many percent.
        from_ratio = f"{10000 * ratio:.4g}%"
        from_percentage = f"{100 * ratio:.4g}%"
        problem = f"may mean {from_ratio} (a ratio) or {from_percentage} (percent)"
        raise OptionError(option, problem, fix=f"write '{from_ratio}' or '{from_percentage}'")
    if 1 <= ratio < math.inf:
        problem = "is 100% of the baseline or more, which is larger than any change"
        raise OptionError(option, problem, fix=fix)
    if not 0 <= ratio < 1:
        raise OptionError(option, "is not a percentage of at least 0", fix=fix)
    return ratio


def check_metrics(names: Iterable[str], option: str = "--metric") -> tuple[str, ...]:
    """Return names of metrics, each once; a text has commas between them.

    Raises
    ------
    OptionError
        If a name is not a metric, or if there is none; the error names the `option`.
    """
    # It loads numpy, which a wrong option does not need.
    from nsyspipe.model.figures import METRICS  # noqa: PLC0415

    if isinstance(names, str):
        separate_names: Iterable[str] = [name.strip() for name in names.split(",")]
    else:
        separate_names = names
    # Errors say that these are needed.
    needed = "a name, or several,"
    fix = "metrics='step_time'"
    names_of_metrics = [*several("metrics", separate_names, needed=needed, fix=fix)]
    if not all(isinstance(name, str) for name in names_of_metrics):
        raise OptionError.of_kind("metrics", separate_names, needed=needed, fix=fix)
    if not names_of_metrics:
        raise OptionError(f"{option} []", "is empty", fix=f"{option} step_time")
    distinct_names = tuple(dict.fromkeys(names_of_metrics))
    for name in distinct_names:
        if name not in METRICS:
            raise OptionError.no_such_name(f"{option} {name!r}", "is not a metric", name, METRICS)
    return distinct_names


def _number(value: object) -> float:
    """Return a number of Python, numpy or a text; NaN for a flag and anything else."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


# --- settings -------------------------------------------------------------------------------------
class GateSettings(Struct, frozen=True):
    """What is set, as ratios, and the file that sets it; None is "not set"."""

    fail_on: str | None = None
    min_effect: float | None = None
    confidence: float | None = None
    metrics: tuple[str, ...] | None = None
    path: Path | None = None
    # Names of the attributes that the file sets.
    from_file: frozenset[str] = frozenset()

    @property
    def file(self) -> str | None:
        """The file as seen from the working directory; None if it sets nothing."""
        if self.path is None:
            return None
        return os.path.relpath(self.path)

    def source(self, name: str) -> str:
        """Return what sets an attribute: the file, ``option`` or ``default``."""
        if name in self.from_file:
            return self.file or ""
        return "default" if getattr(self, name) is None else "option"

    @property
    def thresholds(self) -> dict[str, Any]:
        """The minimum effect and the confidence, as parameters of `nsyspipe.diff`."""
        if self.min_effect is None:
            min_effect_pct = DEFAULT_MIN_EFFECT_PCT
        else:
            # 100 * 0.07 is not exactly 7.
            min_effect_pct = round(100 * self.min_effect, 12)
        confidence = self.confidence or DEFAULT_CONFIDENCE
        return {"min_effect_pct": f"{min_effect_pct}%", "confidence": confidence}


NOTHING_SET = GateSettings()


def settled(options: GateSettings, file: GateSettings, names: Iterable[str]) -> GateSettings:
    """Return the attributes `names` of options, and of a file if the options do not set them.

    The result has the path of the file if it sets something.

    Raises
    ------
    OptionError
        If the file sets something, and another user may write it. Such a user could loosen the
        gate.
    """
    by_options = {name: getattr(options, name) for name in names}
    by_file = {}
    for name, option_value in by_options.items():
        file_value = getattr(file, name)
        if option_value is None and file_value is not None:
            by_file[name] = file_value
    if by_file and file.path is not None:
        _check_owner(file.path, by_file)
    values = by_options | by_file
    path = file.path if by_file else None
    return GateSettings(**values, path=path, from_file=frozenset(by_file))


def _check_owner(path: Path, names: Iterable[str]) -> None:
    """Refuse a file if another user owns it or may replace it. This user and root are trusted.

    Groups may write it, because most groups are private.
    """
    trusted_users = {0, os.geteuid()}
    sudo_user = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and sudo_user.isdecimal():
        trusted_users.add(int(sudo_user))
    # Both the path itself and the file that it leads to have to be safe.
    danger = _find_danger(path.absolute(), trusted_users)
    if danger is None:
        danger = _find_danger(Path(os.path.realpath(path)), trusted_users)
    if danger is not None:
        settings = _SETTINGS.items()
        keys = [key for key, setting in settings if setting.attribute in names]
        options = " ".join(f"--{key}" for key in keys)
        problem = f"{danger}, so nsyspipe ignores this file for security"
        fix = f"chown or chmod the file and its directory, or pass {options}"
        raise OptionError(str(path), problem, fix=fix)


def _find_danger(path: Path, trusted_users: set[int]) -> str | None:
    """Return why other users may change a file, or one of its directories; None if they may not."""
    status = path.lstat()
    if status.st_uid not in trusted_users:
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
        return "is writable by everybody"
    for folder in path.parents:
        mode = folder.stat().st_mode
        is_writable_by_all = bool(mode & stat.S_IWOTH)
        # With the sticky bit, users can only replace their own files.
        is_sticky = bool(mode & stat.S_ISVTX)
        if is_writable_by_all and not is_sticky:
            return f"is in a directory that everybody can write to ({folder})"
        # If the folder is a symbolic link, the link has an owner too.
        owners = {folder.stat().st_uid, folder.lstat().st_uid}
        if not owners <= trusted_users:
            return f"is in a directory of another user ({folder})"
    return None


# --- a file of settings ---------------------------------------------------------------------------
def read_settings(directory: Path) -> GateSettings:
    """Return the settings of the nearest file, from a directory upwards; nothing without a file.

    In one directory, ``nsyspipe.toml`` (table ``[diff]``) wins over ``pyproject.toml``
    (``[tool.nsyspipe.diff]``). A ``pyproject.toml`` without ``[tool.nsyspipe]`` is ignored, even if
    it is broken. Settings may also stand outside of ``diff``; those inside win.

    Raises
    ------
    OptionError
        If a file cannot be read, has an unknown setting, or has a value that cannot be used.
    """
    for path in _possible_files(directory):
        table = _read_table(path)
        if table is not None:
            return _settings_of_table(table, path)
    return NOTHING_SET


def _possible_files(directory: Path) -> Iterator[Path]:
    """Yield the files that may have settings and exist, the nearest first."""
    for folder in (directory, *directory.parents):
        for name in _SETTINGS_FILES:
            path = folder / name
            # A Path raises an error in a directory that must not be read.
            if os.path.isfile(path):  # noqa: PTH113
                yield path


def _settings_of_table(table: Mapping[str, Any], path: Path) -> GateSettings:
    """Return the checked settings of a file; an `OptionError` for an unknown setting."""
    for key in sorted(set(table) - set(_SETTINGS)):
        problem = f"has the unknown setting {key!r}"
        raise OptionError.no_such_name(str(path), problem, key, _SETTINGS)
    values = {}
    for key, value in table.items():
        setting = _SETTINGS[key]
        place = f"{path}: {key} ="
        values[setting.attribute] = setting.check(value, place)
    return GateSettings(**values, path=path)


def _read_table(path: Path) -> dict[str, Any] | None:
    """Return the settings that a file has, by key; None if a project file has none."""
    is_project = path.name == _PROJECT_FILE
    content = _read_content(path)
    is_too_large = len(content) > MAX_FILE_BYTES
    # Files of other projects do not matter, even if they are broken.
    if is_project and not is_too_large and _TOOL.encode() not in content:
        return None
    if is_too_large:
        raise OptionError(str(path), "is too large for a settings file")
    document = _parse_toml(content, path)
    table = _project_table(document) if is_project else _own_table(document, path)
    # Only a project file may have nothing for nsyspipe.
    if table is None:
        return None
    inner_table = table.pop(_TABLE, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(inner_table, dict):
        fix = f"[tool.{_TOOL}.{_TABLE}]" if is_project else f"[{_TABLE}]"
        raise OptionError(str(path), "has something other than a table of settings", fix=fix)
    # Settings of the inner table win.
    return _with_hyphens(table, path) | _with_hyphens(inner_table, path)


def _read_content(path: Path) -> bytes:
    """Return the content of a file. Of a file that is too large, return one byte too many.

    The caller sees by this byte that the file is too large.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(str(path), f"cannot be read ({error.strerror})") from error


def _parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        one_line = " ".join(str(error).split())
        problem = f"is not valid TOML ({one_line})"
        raise OptionError(str(path), problem, fix="correct or remove the file") from error


def _project_table(document: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return what a project file has for nsyspipe; None if it has nothing."""
    tools = document.get("tool", {})
    return tools.get(_TOOL) if isinstance(tools, dict) else None


def _own_table(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the document itself; an `OptionError` if it looks like a project file."""
    if isinstance(document.get("tool"), dict):
        problem = f"has the table [tool.{_TOOL}.{_TABLE}], which belongs in {_PROJECT_FILE}"
        raise OptionError(str(path), problem, fix=f"use [{_TABLE}] in {_OWN_FILE}")
    return document


def _with_hyphens(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return settings with - in their keys; an `OptionError` if a key is there with _ too."""
    keys = [key.replace("_", "-") for key in table]
    repeated = [key for key in keys if keys.count(key) > 1]
    if repeated:
        raise OptionError(str(path), f"sets {repeated[0]!r} twice, with - and with _")
    return dict(zip(keys, table.values(), strict=True))


def _number_text(value: object) -> str:
    """Return a number, or a text, of a file as a text; for anything else its type."""
    # Python does not write integers of thousands of digits.
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        return "a number too large"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return type(value).__name__
    return str(value)


def _check_min_effect_of_file(value: object, name: str) -> float:
    return parse_min_effect(_number_text(value), name, 'min-effect = "2%"')


def _check_confidence_of_file(value: object, name: str) -> float:
    return check_confidence(_number_text(value), name, "confidence = 0.95")


def _check_metrics_of_file(value: object, name: str) -> tuple[str, ...]:
    """Return the metrics of a setting: a text with commas, or a list of texts."""
    if isinstance(value, str):
        return check_metrics(value, name)
    if isinstance(value, list) and value and all(isinstance(metric, str) for metric in value):
        return check_metrics(",".join(value), name)
    problem = "is not a list of metrics"
    raise OptionError(f"{name} {value!r}", problem, fix='metric = ["step_time"]')


class _Setting(NamedTuple):
    """A setting of a file: the attribute of `GateSettings`, and what checks the value."""

    attribute: str
    check: Callable[[object, str], Any]


# By the key in the file, which is the name of the option too.
_SETTINGS = {
    "fail-on": _Setting("fail_on", check_gate),
    "min-effect": _Setting("min_effect", _check_min_effect_of_file),
    "confidence": _Setting("confidence", _check_confidence_of_file),
    "metric": _Setting("metrics", _check_metrics_of_file),
}
