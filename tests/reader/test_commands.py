"""The commands that nsys started, as reports name them: nothing of them is kept that is not known to be harmless."""

import pytest

from nsyspipe.reader.facts import commands_of, read_capture_rows
from nsyspipe.reader.report import open_report
from tests.attack.test_sidecar_secrets import TOKENS
from tests.build.trace import steady_rank


def commands(tmp_path, *of_processes, extra=()):
    builder = steady_rank(0)
    for number, words in enumerate(of_processes):
        builder.command(*words, process=number)
    for name, value in extra:
        builder.add("META_DATA_CAPTURE", name=name, value=value)
    with open_report(str(builder.write(tmp_path / "r.sqlite"))) as report:
        return commands_of(read_capture_rows(report))


def test_arguments_stand_in_their_order(tmp_path):
    words = ["python3", "train.py", *(f"--lr={n}" for n in range(12))]
    assert commands(tmp_path, words) == [" ".join(words)]


def test_each_process_has_a_command_and_equal_ones_are_one(tmp_path):
    first, other = ["torchrun", "a.py"], ["python3", "b.py"]
    assert commands(tmp_path, first, other, first) == ["python3 b.py", "torchrun a.py"]


SECRETS = (*TOKENS, "/home/me/data", "me@host", "AWS_SECRET_ACCESS_KEY=hunter2", "4712")
FORMS = (["%s"], ["--api-key", "%s"], ["--token=%s"], ["db.password=%s"], ["-p%s"], ["--x", "%s"])


@pytest.mark.parametrize("form", FORMS)
def test_no_secret_of_a_command_is_read(tmp_path, form):
    each = ([word.replace("%s", secret) for word in form] for secret in SECRETS)
    found = commands(tmp_path, *(["python3", "train.py", *words] for words in each))
    assert found
    assert [secret for secret in SECRETS if any(secret in command for command in found)] == []


@pytest.mark.parametrize(
    "extra",
    [
        [("PROCESS_0:ARGUMENT_0", "train.py")],  # of no program
        [("PROCESS_0:COMMAND", None), ("PROCESS_0:ARGUMENT_0", "train.py")],
        [
            ("PROCESS_0:COMMAND", "redacted"),
            ("PROCESS_0:ARGUMENT_0", "redacted"),
        ],  # nothing is left of it
        [
            ("PROCESS_x:COMMAND", "python3"),
            ("PROCESS_0:COMMANDS", "python3"),
            ("PROCESS_99999999:COMMAND", "python3"),
        ],
    ],
)
def test_what_is_no_command_is_not_read(tmp_path, extra):
    assert commands(tmp_path, extra=extra) == []
