"""The texts in the source keep the house style, whether an output of a test shows them or not."""

import re
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.model.problems import CATALOGUE
from tests.contract.messages import messages_in, objections_to_message

PACKAGE = Path(nsyspipe.__file__).parent
LAUNCHERS = PACKAGE.parent / "launchers"
WITH_A_PROGRAM = {"workers.py", "trial.py"}  # or a whole help, whose golden is checked
OF_DEVELOPERS = {"canonical.py"}  # tables that no output shows or describes
MODULES = sorted(
    path
    for folder in (PACKAGE, LAUNCHERS)
    for path in folder.rglob("*.py")
    if path.name not in WITH_A_PROGRAM | OF_DEVELOPERS
)


def name_of(path):
    return path.relative_to(
        PACKAGE if path.is_relative_to(PACKAGE) else LAUNCHERS.parent
    ).as_posix()


# Texts that are no English, or that cannot change: names of facts in tables and documents, names of
# nsys, lists of words, shell and style sheets. Each is a beginning of one text of the module.
ALLOWED = {
    "analysis/operations.py": ["memcpy unified DtoD"],
    "capture/rank.py": ["file=$1; exec"],
    "comparison/comparability.py": ["as in problems, or no-figures if"],  # a code
    "comparison/surroundings.py": [
        "message bytes per step",
        "DtoD copies per step",
        "DtoD bytes per step",
        "number and bytes of copies on the device",
        "steps in the figures",
    ],
    "findings/host.py": ["Use DataLoader(pin_memory=True)"],  # .to(device)
    "nsys/command_words.py": ["true false", "tk ak sk", "step steps seed"],
    "report/difference.py": [
        "DtoD copies per step",
        "DtoD bytes per step",
        "message bytes per step",
        "steps in the figures",
        "copies on the device",
        "number and bytes of copies on the device",
    ],
    "report/explanations/timeline.py": ["text{font:"],
    "report/html/page.py": ["default-src 'none'"],
    # Network devices, not GPUs.
    "redact/copy.py": ["network and its devices"],
    "model/schema.py": ["Sum of held_up of the collectives"],  # held_up is a column
}


def is_allowed(message):
    beginnings = ALLOWED.get(name_of(message.path), [])
    return any(message.text.startswith(beginning) for beginning in beginnings)


def with_values(template):
    """Return a text with a word for each value that is filled in."""
    return re.sub(r"\{\w+\}", "X", template)


@pytest.mark.slow
def test_the_texts_of_every_module_keep_the_house_style():
    messages = [message for path in MODULES for message in messages_in(path)]
    assert [
        f"{message}: {objection}"
        for message in messages
        if not is_allowed(message)
        for objection in objections_to_message(with_values(message.text))
    ] == []


def test_the_note_of_every_problem_keeps_the_house_style():
    texts = [
        (code, with_values(text))
        for code, kind in CATALOGUE.items()
        for text in (kind.message, kind.fix or "")
    ]
    assert [
        f"{code}: {objection}" for code, text in texts for objection in objections_to_message(text)
    ] == []


def test_every_text_that_is_allowed_is_there():
    texts = {path: [message.text for message in messages_in(PACKAGE / path)] for path in ALLOWED}
    gone = [
        (path, beginning)
        for path, beginnings in ALLOWED.items()
        for beginning in beginnings
        if not any(text.startswith(beginning) for text in texts[path])
    ]
    assert gone == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('problem = "a copy runs beside a kernel"', "a copy runs beside a kernel"),
        ('problem = f"a copy of {n} bytes; another"', "a copy of X bytes; another"),
        ('raise Error("a " "long " "text")', "a long text"),
    ],
)
def test_texts_are_found(source, text, tmp_path):
    (tmp_path / "module.py").write_text(source)
    assert [message.text for message in messages_in(tmp_path / "module.py")] == [text]


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of several words; it is no message."""',
        'key = "step_time_ns"',
        'sql = "SELECT a FROM b; c d e"',
    ],
)
def test_docstrings_names_and_queries_are_no_texts(source, tmp_path):
    (tmp_path / "module.py").write_text(source)
    assert list(messages_in(tmp_path / "module.py")) == []
