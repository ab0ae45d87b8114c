"""The script that asks an agent: what it gives it, how it reads a reply, and what a reply is worth."""

import json
import shlex
import sys

import pytest

from tests.evals.declared import EVALS
from tests.evals.run_agent import (
    ABSTAINED,
    BAITED,
    FORM,
    RIGHT,
    SCORES,
    SILENT,
    TOO_CAREFUL,
    WRONG,
    Reply,
    main,
    reply_in,
    score,
    unpack_captures,
)

# An agent that knows its replies by heart, and looks for the question in its prompt.
AGENT = """
import json, sys
replies = {replies!r}
prompt = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()
print("I think about it.")
for question, reply in replies.items():
    if question in prompt and "name: nsyspipe" in prompt:
        print(reply)
print("That was all.")
"""


def by_id(name):
    (each,) = [each for each in EVALS if each.id == name]
    return each


@pytest.fixture
def agent(tmp_path):
    """Return the command of an agent that gives a reply to each of some evals."""

    def make(replies):
        program = tmp_path / "agent.py"
        questions = {by_id(name).question: json.dumps(reply) for name, reply in replies.items()}
        program.write_text(AGENT.format(replies=questions), encoding="utf-8")
        return shlex.join([sys.executable, str(program)])

    return make


# A right answer, a right abstention, a bait, a wrong answer, one that is too careful, and nothing.
REPLIES = {
    "r05": {"answer": 39.34},
    "r02": {"abstain": "not recorded"},
    "r10": {"answer": 2},
    "r18": {"answer": 4474293},
    "r19": {"abstain": "I do not know"},
    "p03": {"step": 159.7},
}
SCORE_OF = {
    "r05": RIGHT,
    "r02": ABSTAINED,
    "r10": BAITED,
    "r18": WRONG,
    "r19": TOO_CAREFUL,
    "p03": SILENT,
}


def check_scores(lines):
    scores = {line[:3]: line for line in lines if line[:3] in REPLIES}
    assert {name: scores[name].endswith(SCORE_OF[name]) for name in REPLIES} == dict.fromkeys(
        REPLIES, True
    )
    counts = {
        line.split(maxsplit=1)[1]: line.split()[0] for line in lines if line[:4].strip().isdigit()
    }
    assert {name: counts[name] for name in SCORES} == dict.fromkeys(SCORES, "1")
    assert (counts["of 6 answered"], counts["of 1 that cannot be said"]) == ("2", "1")


ONLY = ["--only", ",".join(REPLIES)]


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["", " {prompt}"], ids=["on stdin", "as an argument"])
def test_an_agent_is_scored(agent, tmp_path, capsys, argument):
    command = agent(REPLIES) + argument
    assert main(["--agent", command, "--captures", str(tmp_path), *ONLY]) == 0
    check_scores(capsys.readouterr().out.splitlines())


def test_a_file_of_replies_is_scored(tmp_path, capsys):
    file = tmp_path / "replies.jsonl"
    lines = [json.dumps({"id": name} | reply) for name, reply in REPLIES.items()]
    file.write_text("\n".join(["no JSON", *lines]), encoding="utf-8")
    assert main(["--replies", str(file), *ONLY]) == 0
    check_scores(capsys.readouterr().out.splitlines())


def test_the_questions_are_printed(capsys):
    main(["--questions"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == [each.id for each in EVALS]
    assert all(line.keys() == {"id", "question"} for line in lines)


def test_an_agent_that_takes_too_long_has_no_answer(tmp_path, capsys):
    command = shlex.join([sys.executable, "-c", "import time; time.sleep(60)"])
    main(["--agent", command, "--captures", str(tmp_path), "--only", "p03", "--timeout", "0.2"])
    assert capsys.readouterr().out.splitlines()[1].endswith(SILENT)


@pytest.mark.parametrize(
    ("stdout", "reply"),
    [
        ('{"answer": 1}', Reply(1)),
        ('{"answer": "rank 1"}\nbye', Reply("rank 1")),
        ('{"answer": 1}\n{"answer": 2}', Reply(2)),
        ('{"abstain": "why"}', Reply(abstains=True)),
        ('{"answer": null}', Reply()),
        ("[1]\n1\nanswer: 1", Reply()),
        ("", Reply()),
    ],
)
def test_the_last_reply_counts(stdout, reply):
    assert reply_in(stdout) == reply


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("r05", 39.26, RIGHT),  # to one decimal, as asked
        ("r05", 39.24, WRONG),
        ("r05", "39.3", RIGHT),
        ("r05", "39.3 ms", WRONG),
        ("r19", " cudastreamsynchronize ", RIGHT),
        ("r02", "PCIe", WRONG),
        ("r02", "nvlink", BAITED),
        ("p10", 0, RIGHT),
    ],
)
def test_an_answer_is_exact_in_the_form_that_was_asked_for(name, answer, expected):
    assert score(by_id(name), Reply(answer)) == expected


@pytest.mark.parametrize("each", EVALS, ids=lambda each: each.id)
def test_a_prompt_has_the_captures_and_no_hint(each):
    assert each.question in each.prompt
    assert ".sqlite" in each.prompt
    assert each.path not in each.prompt
    assert each.how not in each.prompt


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    unpack_captures(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("each", EVALS, ids=lambda each: each.id)
def test_the_captures_of_an_eval_are_unpacked(unpacked, each):
    places = [word for word in each.command if word.endswith(".sqlite")]
    assert [place for place in places if not list(unpacked.glob(place))] == []


def test_the_form_of_a_reply_is_one_that_is_read():
    examples = [example.partition(":")[0] for example in FORM.split("{")[1:]]
    assert examples == ['"answer"', '"abstain"']


def test_a_question_without_an_answer_looks_like_one_with_an_answer():
    """Nothing in the prompt gives away that it cannot be said: most ask for a number, too."""
    silent = [each for each in EVALS if each.answer is None]
    asking_for_a_number = [each for each in silent if each.form]
    assert len(asking_for_a_number) >= 0.9 * len(silent)
