"""What of a command and of nsys's words a sidecar of a launcher's job holds. The rest: test_sidecar_writing.py."""

from __future__ import annotations

import json

import pytest

from nsyspipe.capture.sidecar import Surroundings, sidecar_document
from nsyspipe.capture.status import read_programs
from nsyspipe.model.sidecar import CapturedRank
from nsyspipe.nsys.secrets import HashKey

KEY = HashKey(b"k" * 32)
NOTHING = Surroundings(None, (), None, None, None, None, None, "3.11.9", None, None)


def document(folder, **facts):
    given = {"command": ["train.py"], "environment": {}, "surroundings": NOTHING}
    return sidecar_document(str(folder / "ddp"), **(given | facts))


def test_of_variables_before_the_command_an_allow_list_is_kept(tmp_path):
    command = ["env", "PYTHONPATH=/home/me/x", "NCCL_DEBUG_FILE=/home/me/a.log", "NCCL_DEBUG=INFO"]
    command += ["A=b", "torchrun", "train.py", "lr=1"]
    assert document(tmp_path, command=command)["command"] == [
        *("env", "NCCL_DEBUG=INFO", "torchrun", "train.py", "lr=1")
    ]


def test_a_command_whose_variables_are_all_private_has_none(tmp_path):
    found = document(tmp_path, command=["env", "PYTHONPATH=/home/me", "train.py"])["command"]
    assert found == ["train.py"]
    assert document(tmp_path, command=["env", "A=b"])["command"] == []
    command = document(tmp_path, command=["train.py", "A=b", "B=1"], key=KEY)["command"]
    assert command == ["train.py", f"A={KEY.of('A', 'b')}", "B=1"]


SECRET = "Zx81-plant3d"
SHORT = "2 of 3 steps were captured: its loop ended after 3 steps, the warm-up is 1"


@pytest.mark.parametrize(
    ("problem", "written"),
    [
        (f"nsys failed: unrecognised option in train.py --api-key {SECRET}", "its capture failed"),
        (f"nsys failed before it started the program: no option {SECRET}", "nsys failed before it started the program"),
        (
            f"nsys had not ended 60 s after the program: ended it; nsys could not write its report: {SECRET}",
            "nsys had not ended 60 s after the program: ended it; nsys could not write its report",
        ),
        ("nothing was captured", "nothing was captured"),
        (SHORT, SHORT),
    ],
)
def test_of_a_problem_only_our_own_sentences_are_in_it(tmp_path, problem, written):
    (row,) = document(tmp_path, ranks=[CapturedRank(0, problem=problem)])["ranks"]
    assert row["problem"] == written


def test_what_the_program_names_its_phases_and_steps_stays_in_the_report(tmp_path):
    status = tmp_path / "status"
    status.mkdir()
    said = {"phase_names": ["data", SECRET, "forward"], "step_pattern": f"^{SECRET} [0-9]+$"}
    (status / "ranges_0.json").write_text(json.dumps(said))
    found = document(tmp_path, programs=read_programs(status))
    assert (found["phase_names"], found["step_pattern"]) == (["data", "forward"], None)


def test_how_a_program_ended_and_whether_its_report_was_whole_are_in_it(tmp_path):
    rows = [CapturedRank(0, status=143, report="ddp_0", is_complete=True), CapturedRank(1)]
    found = document(tmp_path, ranks=rows, ended_by="linger")
    assert found["ended_by"] == "linger"
    assert [row["is_complete"] for row in found["ranks"]] == [True, None]
