"""The files of the skill: their texts, their JSON document, and their installation."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsyspipe.errors import OptionError, OutputError
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report.files import check_directory, check_target, writing
from nsyspipe.report.skill.fields import jq_filter
from nsyspipe.report.skill.questions import QUESTIONS, Question
from nsyspipe.report.skill.text import ProgramHelp, skill_text
from nsyspipe.version import __version__

SKILL_FILE = "SKILL.md"
# The index of the docs. A test writes it from the pages.
INDEX_FILE = "llms.txt"
_INDEX = Path(__file__).with_name(INDEX_FILE)


def skill_files(program: ProgramHelp) -> dict[str, str]:
    """Return the texts of the files by name."""
    return {SKILL_FILE: skill_text(program), INDEX_FILE: _INDEX.read_text(encoding="utf-8")}


def skill_document(files: Mapping[str, str]) -> dict[str, Any]:
    """Return the files and the questions as a JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "files": [{"name": name, "text": text} for name, text in files.items()],
        "questions": [_row(question) for question in QUESTIONS],
        "problems": [],
    }


def _row(question: Question) -> dict[str, str]:
    return asdict(question) | {"jq": jq_filter(question.path)}


def check_installation(files: Mapping[str, str], directory: Path, *, force: bool) -> None:
    """Refuse (OutputError) files that may not be replaced, before anything is written."""
    try:
        _check_files(files, directory, force=force)
    except OSError as error:
        problem = f"cannot be used ({error.strerror})"
        raise OutputError(str(directory), problem, fix="another directory") from error


def check_separate(files: Mapping[str, str], directory: Path, json_file: str) -> None:
    """Refuse (OptionError) a JSON document in the place of a file of the skill or its directory."""
    place = Path(os.path.realpath(directory))
    taken = [place, *place.parents, *(Path(os.path.realpath(place / name)) for name in files)]
    if Path(os.path.realpath(json_file)) in taken:
        problem = f"both write to {json_file}"
        raise OptionError("--json and --install", problem, fix="use a different file for --json")


def _check_files(files: Mapping[str, str], directory: Path, *, force: bool) -> None:
    """Do what `check_installation` does. Raises OSError for a place that cannot be looked at."""
    if directory.exists() and not directory.is_dir():
        raise OutputError(str(directory), "is not a directory", fix="--install DIR")
    for name in files:
        target = directory / name
        if target.is_symlink():
            raise OutputError(str(target), "is a link", fix=f"remove {target}")
        if target.exists() and not force:
            raise OutputError(str(target), "exists", fix="--force, or another directory")
        check_target(target, [], may_replace=lambda: force)


def install(files: Mapping[str, str], directory: Path, *, force: bool) -> list[Path]:
    """Write all files into a directory, or none, and return their paths.

    The directory is created if it is missing. Existing files are replaced only with `force`.
    """
    check_installation(files, directory, force=force)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise OutputError(str(directory), problem, fix="another directory") from error
    paths = [directory / name for name in files]
    with ExitStack() as stack:
        opened = []
        for path in paths:
            check_directory(str(path), SKILL_FILE)
            file = stack.enter_context(writing(path, [], may_replace=lambda: force, is_named=False))
            opened.append(file)
        for file, text in zip(opened, files.values(), strict=True):
            file.write(text.encode())
    return paths
