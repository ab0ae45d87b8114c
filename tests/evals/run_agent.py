"""Asks a command-line agent all evals, one at a time, and prints how many it answers.

``python -m tests.evals.run_agent --agent "my-agent --print"`` runs by hand, not in CI. The agent
gets the skill and a question on stdin, or in place of ``{prompt}`` in its command. It runs in a
folder with the captures, and its answer is the last line of its stdout that is a JSON object.

An agent without a command line gets the questions of ``--questions``, a line of JSON each. Its
replies, each with the ``id`` of the question, are scored by ``--replies FILE``.
"""

import argparse
import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from nsyspipe.cli.app import app
from nsyspipe.model.names import printable
from tests.evals.declared import EVALS, Answer, Eval

REAL = Path(__file__).parent.parent / "real"
PROMPT = "{prompt}"
FORM = (
    "The captures are in the working directory. Run nsyspipe to answer, and read its JSON. End with "
    'one line of JSON: {"answer": VALUE} with a number or a text, or {"abstain": "REASON"} if it '
    "cannot be said."
)
RIGHT = "right"
ABSTAINED = "right to abstain"
BAITED = "took the bait"
WRONG = "wrong"
TOO_CAREFUL = "abstained, but there is an answer"
SILENT = "no answer"
SCORES = (RIGHT, ABSTAINED, BAITED, WRONG, TOO_CAREFUL, SILENT)
MAX_SHOWN = 40  # characters of an answer


@dataclass(frozen=True)
class Reply:
    """What an agent printed: an answer, or that there is none. Neither if it printed no JSON."""

    answer: Answer = None
    abstains: bool = False


@dataclass(frozen=True)
class Scored:
    """An eval with the reply of an agent, and what it is worth."""

    asked: Eval
    reply: Reply
    score: str


def reply_in(stdout: str) -> Reply:
    """Return the reply in what an agent printed: the last line that is a JSON object with one."""
    for line in reversed(stdout.splitlines()):
        reply = reply_of(object_in(line))
        if reply != Reply():
            return reply
    return Reply()


def object_in(line: str) -> dict[str, object]:
    """Return the JSON object in a line; an empty one if it is none."""
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def reply_of(values: dict[str, object]) -> Reply:
    """Return the reply that a JSON object is."""
    if "abstain" in values:
        return Reply(abstains=True)
    answer = values.get("answer")
    return Reply(answer) if isinstance(answer, str | int | float) else Reply()


def replies_in(file: Path) -> dict[str, Reply]:
    """Return the replies of a file of JSON lines by the ID of their question."""
    lines = map(object_in, file.read_text(encoding="utf-8").splitlines())
    return {f"{values['id']}": reply_of(values) for values in lines if "id" in values}


def is_same(asked: Eval, answer: Answer, expected: Answer) -> bool:
    """Tell whether an answer is the expected one: as text, or as a number with the decimals that were asked for."""
    if isinstance(expected, str) or expected is None:
        return f"{answer}".strip().casefold() == f"{expected}".casefold()
    try:
        number = float(f"{answer}")
    except ValueError:
        return False
    return round(number, asked.digits) == round(expected, asked.digits)


def score(asked: Eval, reply: Reply) -> str:
    """Return what a reply is worth, one of `SCORES`."""
    if reply.abstains:
        return ABSTAINED if asked.answer is None else TOO_CAREFUL
    if reply.answer is None:
        return SILENT
    if asked.answer is not None and is_same(asked, reply.answer, asked.answer):
        return RIGHT
    if asked.bait and is_same(asked, reply.answer, asked.bait_answer):
        return BAITED
    return WRONG


def unpack_captures(folder: Path) -> None:
    """Write all captures of tests/real into a folder, as the evals name them."""
    for packed in sorted(REAL.rglob("*.sqlite.xz")):
        target = folder / packed.relative_to(REAL).with_suffix("")
        target.parent.mkdir(exist_ok=True)
        with lzma.open(packed) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)


def ask(agent: str, asked: Eval, skill: str, folder: Path, timeout_s: float) -> Reply:
    """Run an agent for one question, and return its reply."""
    prompt = f"{skill}\n{asked.prompt}\n\n{FORM}\n"
    command = [word.replace(PROMPT, prompt) for word in shlex.split(agent)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(
            command,
            input="" if PROMPT in agent else prompt,
            capture_output=True,
            text=True,
            cwd=folder,
            env=os.environ | {"PATH": path},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Reply()
    return reply_in(done.stdout)


def table(scored: Sequence[Scored]) -> Iterator[str]:
    """Yield a line for each question, and then how many have each score."""
    yield f"{'id':<5} {'expected':<26} {'answer':<{MAX_SHOWN}} score"
    for each in scored:
        expected = "abstain" if each.asked.answer is None else f"{each.asked.answer}"
        answer = "abstain" if each.reply.abstains else f"{each.reply.answer}"
        shown = printable(answer)[:MAX_SHOWN]
        yield f"{each.asked.id:<5} {expected:<26} {shown:<{MAX_SHOWN}} {each.score}"
    yield ""
    counts = Counter(each.score for each in scored)
    for name in SCORES:
        yield f"{counts[name]:>4} {name}"
    n_right = counts[RIGHT] + counts[ABSTAINED]
    yield f"{n_right:>4} of {len(scored)} answered"
    silent = [each for each in scored if each.asked.answer is None]
    n_abstained = sum(each.reply.abstains for each in silent)
    yield f"{n_abstained:>4} of {len(silent)} that cannot be said"


def chosen_evals(ids: str | None) -> list[Eval]:
    if ids is None:
        return list(EVALS)
    wanted = ids.split(",")
    return [each for each in EVALS if each.id in wanted]


def ask_all(
    agent: str, asked: Sequence[Eval], captures: Path | None, timeout_s: float
) -> list[Scored]:
    """Ask an agent all questions, and score its replies."""
    skill = CliRunner().invoke(app, ["skill"]).stdout
    scored = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = captures or Path(temporary)
        if captures is None:
            unpack_captures(folder)
        for each in asked:
            reply = ask(agent, each, skill, folder, timeout_s)
            scored.append(Scored(each, reply, score(each, reply)))
    return scored


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = parser.add_mutually_exclusive_group(required=True)
    modes.add_argument("--agent", help=f"command of an agent; {PROMPT} stands for the prompt")
    modes.add_argument("--questions", action="store_true", help="print the questions")
    modes.add_argument("--replies", type=Path, help="score a file of replies, a line of JSON each")
    parser.add_argument("--only", help="IDs of some evals, with commas between them")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one question")
    parser.add_argument("--captures", type=Path, help="a folder with the captures, unpacked")
    options = parser.parse_args(arguments)
    asked = chosen_evals(options.only)
    if options.questions:
        lines = [json.dumps({"id": each.id, "question": each.prompt}) for each in asked]
        print("\n".join(lines))
        return 0
    if options.replies is not None:
        replies = replies_in(options.replies)
        given = [(each, replies.get(each.id, Reply())) for each in asked]
        scored = [Scored(each, reply, score(each, reply)) for each, reply in given]
    else:
        scored = ask_all(options.agent, asked, options.captures, options.timeout)
    print("\n".join(table(scored)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
