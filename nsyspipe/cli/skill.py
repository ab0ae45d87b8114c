"""``nsyspipe skill``: what a coding agent needs to know, to print or to install."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from nsyspipe.cli.options import CHANGES, flag, option, with_options
from nsyspipe.cli.outputs import Outputs, say_written, write_stdout
from nsyspipe.errors import OutputError


@dataclass(frozen=True)
class SkillOutputs(Outputs):
    """Where the skill is written."""

    # A text, because the path of an empty text is the current directory.
    install: str | None = option(
        "Write SKILL.md and llms.txt into this directory, created if missing.", "DIR"
    )
    json: str | None = option("Write JSON. - prints only the JSON.", "FILE|-")
    markdown: str | None = None
    html: str | None = None
    open: bool = False
    force: bool = flag("Replace existing files.")


@with_options
def skill(context: typer.Context, *, outputs: SkillOutputs) -> None:
    """Print a skill for coding agents: which command answers which question, and when to abstain.

    The skill lists all questions that nsyspipe answers, each with its field in the JSON. --install
    also writes llms.txt, an index of the docs. If SKILL.md or llms.txt exists,
    nsyspipe writes neither, unless you pass --force.

    \b
    Examples:
      nsyspipe skill
      nsyspipe skill --install .claude/skills/nsyspipe
      nsyspipe skill --install .agents/skills/nsyspipe --force
      nsyspipe skill --json - | jq -r '.questions[] | .command + " " + .jq'
    """
    from nsyspipe.report.formats import Format, dumps
    from nsyspipe.report.skill import files as skill_files

    outputs.check()
    files = skill_files.skill_files(_help_of(context))
    directory = None if outputs.install is None else _directory(outputs.install)
    if directory is not None:
        if outputs.json is not None and outputs.printed is None:
            skill_files.check_separate(files, directory, outputs.json)
        skill_files.check_installation(files, directory, force=outputs.force)
    document = skill_files.skill_document(files)
    formats = {"json": Format(partial(dumps, document, max_characters=None), lambda _: None)}
    # No file has this identity, so no file is replaced without --force.
    identity = object()
    # This writes or prints the JSON. It prints no text, because the skill is the text, see below.
    outputs.answer(formats, [], [], identity, quiet=True)
    if directory is not None:
        installed = skill_files.install(files, directory, force=outputs.force)
        say_written(*map(str, installed), quiet=False)
    elif outputs.json is None:
        write_stdout(files[skill_files.SKILL_FILE])


def _directory(text: str) -> Path:
    if not text:
        raise OutputError("--install ''", "names no directory", fix="--install DIR")
    return Path(text)


# The types of Typer's groups and commands are not known here, and those of the skill are imported
# only when the command runs.
def _help_of(context: Any) -> Any:  # noqa: ANN401
    """Return what the skill repeats of ``--help``: a line per command, and changes of whatif."""
    from nsyspipe.report.skill.text import ProgramHelp

    commands: dict[str, Any] = context.parent.command.commands
    line_of_command = {name: command.short_help for name, command in commands.items()}
    changes = []
    for parameter in commands["whatif"].params:
        if getattr(parameter, "rich_help_panel", None) == CHANGES:
            # A flag has no word for a value.
            option_and_value = [*parameter.opts, parameter.metavar]
            changes.append(" ".join(filter(None, option_and_value)))
    return ProgramHelp(line_of_command, tuple(changes))
