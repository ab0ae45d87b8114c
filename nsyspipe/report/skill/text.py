"""The text of SKILL.md: `skill.md` with the commands of the program and the questions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nsyspipe.report.skill.questions import QUESTIONS
from nsyspipe.version import __version__

_TEMPLATE = Path(__file__).with_name("skill.md")


@dataclass(frozen=True)
class ProgramHelp:
    """What the skill repeats of ``--help``."""

    # The line about each command.
    commands: Mapping[str, str]
    # The options of whatif that name a change, with their values.
    changes: tuple[str, ...]


def skill_text(program: ProgramHelp) -> str:
    """Return the text of SKILL.md.

    The template has a placeholder in double braces for each part, for example ``{{version}}``.
    """
    text = _TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "version": __version__,
        "changes": ", ".join(f"`{change}`" for change in program.changes),
        "commands": "\n".join(_commands_table(program.commands)),
        "questions": "\n".join(_questions_table()),
    }
    for name, part in parts.items():
        placeholder = "{{" + name + "}}"
        text = text.replace(placeholder, part)
    return text


def _commands_table(commands: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the table of commands."""
    yield "| command | what it does |"
    yield "|---|---|"
    for name, meaning in commands.items():
        yield f"| `nsyspipe {name}` | {meaning} |"


def _questions_table() -> Iterator[str]:
    """Yield the lines of the table of questions."""
    yield "| command | question | field | unit | do not answer |"
    yield "|---|---|---|---|---|"
    for question in QUESTIONS:
        cells = (
            question.command,
            question.text,
            f"`{question.path}`",
            question.unit,
            question.abstain,
        )
        yield f"| {' | '.join(cells)} |"
