"""No test function compares a sentence of nsyspipe's output, and the finder of such sentences finds them."""

import pytest

from tests.conftest import SAMPLES
from tests.contract.sentences import Sentence, phrases_in, phrases_of_program, sentences_in

ROOT = SAMPLES.parent
TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("test_*.py"))

# Words that the program only knows: other programs say them, and tests give them as input.
WORDS_OF_OTHERS = (
    "Connection to Agent lost",  # nsys
    "set by environment to",  # NCCL, of a variable
    "failed to map segment",  # the loader of the system
    "Failed to launch worker thread",  # Arrow
)
# Words that are names: whoever changes one of them changes what users and other documents refer to.
NAMES = (
    "How to recognize it",  # the headings of a finding's page
    "Code before and after",
    "When not to do it",
    "How the saving is estimated",
)
# Tests that hold texts of the program and expect none of them of an output.
EXEMPT_TESTS = {
    # it changes the program's text
    "contract/test_additions.py": "test_an_addition_touches_few_files",
    # a list of exceptions, as this one
    "contract/test_messages.py": "test_every_text_that_is_allowed_is_there",
}


EXEMPT = {phrase for text in (*WORDS_OF_OTHERS, *NAMES) for phrase in phrases_in(text)}


@pytest.fixture(scope="module")
def phrases():
    return phrases_of_program([ROOT / "nsyspipe", ROOT / "launchers"])


@pytest.mark.slow
def test_no_test_function_holds_a_sentence_of_output(phrases):
    phrases_of_output = phrases - EXEMPT
    sentences_by_file = {}
    for path in FILES:
        name = str(path.relative_to(TESTS))
        sentences = sentences_in(path.read_text(encoding="utf-8"), phrases_of_output)
        held = [str(found) for found in sentences if found.test != EXEMPT_TESTS.get(name)]
        if held:
            sentences_by_file[name] = held
    assert sentences_by_file == {}


def test_the_program_has_every_exempt_phrase(phrases):
    assert EXEMPT - phrases == set()


TEXT = "a green bird sings loudly"
COMPARED = {
    "an assertion": f"def test_a():\n    assert text == {TEXT!r}",
    "a part of a text": f"def test_a():\n    assert {TEXT!r} in text",
    "a part of an f-string": f"def test_a():\n    assert text == f'{{name}}: {TEXT}, {{number}}'",
    "a method of a text": f"def test_a():\n    assert text.startswith({TEXT!r})",
    "an error": f"def test_a():\n    with raises(Error, match={TEXT!r}):\n        f()",
    "a comparison that is no assertion": f"def test_a():\n    found = {TEXT!r} in text\n    check(found)",
    "a parameter": f"@pytest.mark.parametrize('text', [{TEXT!r}])\ndef test_a(text):\n    assert f() == text",
    "a value by the name of its case": (
        f"CASES = {{'a': {TEXT!r}}}\n@pytest.mark.parametrize('text', CASES.values())\ndef "
        "test_a(text): ..."
    ),
    "a constant of the module": f"TEXT = {TEXT!r}\ndef test_a():\n    assert f() == TEXT",
    "a constant of a constant": f"TEXT = {TEXT!r}\nTEXTS: list = [TEXT]\ndef test_a():\n    assert f() in TEXTS",
    "a local constant": f"def test_a():\n    text = {TEXT!r}\n    assert f() == text",
}
NOT_COMPARED = {
    "an input": f"def test_a():\n    assert f(1) == 2\n    put({TEXT!r})",
    "the name of a case": (
        f"CASES = {{{TEXT!r}: 1}}\n@pytest.mark.parametrize('n', CASES.values(), ids=CASES)\ndef "
        "test_a(n):\n    assert n"
    ),
    "a docstring": f"def test_a():\n    '''{TEXT}'''\n    assert f() == 1",
    "a helper that is no test": f"def check():\n    assert f() == {TEXT!r}",
    "three words": "def test_a():\n    assert f() == 'a green bird'",
    "words in another order": "def test_a():\n    assert f() == 'loudly sings bird green a'",
    "words apart": "def test_a():\n    assert f() == 'a green: 5 bird (sings) loudly'",
}


@pytest.mark.parametrize("source", COMPARED.values(), ids=COMPARED)
def test_a_sentence_that_is_compared_is_found(source):
    (sentence,) = sentences_in(source, frozenset(phrases_in(TEXT)))
    assert sentence.test == "test_a"
    assert TEXT in sentence.text


@pytest.mark.parametrize("source", NOT_COMPARED.values(), ids=NOT_COMPARED)
def test_what_is_no_sentence_or_not_compared_passes(source):
    assert sentences_in(source, frozenset(phrases_in(TEXT))) == []


def test_texts_of_code_and_scripts_are_the_programs_and_docstrings_are_not(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""One two three four."""\nf("five six seven {}, eight")\n', "utf-8"
    )
    (tmp_path / "b.py").write_text('f(f"the {name} of a run it is")\n', "utf-8")
    (tmp_path / "c.sh").write_text("echo 'Nine ten eleven twelve'\n", "utf-8")
    (tmp_path / "d.txt").write_text("not a text of it", "utf-8")
    assert phrases_of_program([tmp_path]) == {
        "of a run it",
        "a run it is",
        "nine ten eleven twelve",
    }


def test_a_sentence_names_its_test():
    assert str(Sentence("test_a", TEXT)) == f"test_a: {TEXT!r}"
