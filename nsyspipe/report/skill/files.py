"""The files of the skill: their texts, their JSON document, and their installation."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsyspipe.errors import OptionError, OutputError
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report.files import check_place_for_file, check_target, writing
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
    """Refuse (OptionError) a JSON document whose path the skill needs.

    The skill needs the paths of its files, of its directory, and of all directories above.
    """
    skill_directory = Path(os.path.realpath(directory))
    skill_paths = [Path(os.path.realpath(skill_directory / name)) for name in files]
    needed_paths = [skill_directory, *skill_directory.parents, *skill_paths]
    if Path(os.path.realpath(json_file)) in needed_paths:
        problem = f"both write to {json_file}"
        raise OptionError("--json and --install", problem, fix="use a different file for --json")


def _check_files(files: Mapping[str, str], directory: Path, *, force: bool) -> None:
    """Refuse (OutputError) files that may not be replaced.

    Raises OSError for a path that cannot be looked at.
    """
    if directory.exists() and not directory.is_dir():
        raise OutputError(str(directory), "is not a directory", fix="--install DIR")
    for name in files:
        target = directory / name
        if target.is_symlink():
            raise OutputError(str(target), "is a link", fix=f"remove {target}")
        if target.exists() and not force:
            raise OutputError(str(target), "exists", fix="--force, or another directory")
        # Some files are not replaced even with --force.
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
        # All files are opened before the first one is written, so that an error leaves none.
        opened_files = []
        for path in paths:
            # The directory may have changed since `check_installation`.
            check_place_for_file(str(path), SKILL_FILE)
            output = writing(path, inputs=[], may_replace=lambda: force, is_named=False)
            opened_files.append(stack.enter_context(output))
        for file, text in zip(opened_files, files.values(), strict=True):
            file.write(text.encode())
    return paths
