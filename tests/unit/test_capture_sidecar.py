"""What of a command and of nsys's words a sidecar of a launcher's job holds. The rest: test_sidecar_writing.py."""

from __future__ import annotations

import json

from nsyspipe.capture.sidecar import sidecar_document
from nsyspipe.capture.surroundings import Surroundings

NOTHING = Surroundings(None, (), None, None, None, None, None, "3.11.9", None, None)


def document(folder, **facts):
    given = {"command": ["train.py"], "environment": {}, "surroundings": NOTHING}
    return sidecar_document(str(folder / "ddp"), **(given | facts))


def test_of_variables_before_the_command_an_allow_list_is_kept(tmp_path):
    command = ["env", "PYTHONPATH=/home/me/x", "NCCL_DEBUG_FILE=/home/me/a.log", "NCCL_DEBUG=INFO"]
    command += ["A=b", "torchrun", "train.py", "lr=1"]
    assert document(tmp_path, command=command)["command"] == [
        *("env", "NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=a.log", "torchrun", "train.py", "lr=1"),
    ]


def test_a_command_whose_variables_are_all_private_has_none(tmp_path):
    found = document(tmp_path, command=["env", "PYTHONPATH=/home/me", "train.py"])["command"]
    assert found == ["train.py"]
    assert document(tmp_path, command=["env", "A=b"])["command"] == []
    assert document(tmp_path, command=["train.py", "A=b"])["command"] == ["train.py", "A=b"]


def test_no_secret_of_nsyss_last_words_is_in_it(tmp_path):
    problem = "nsys failed: unrecognised option in train.py --api-key Zx81-plant3d"
    status = tmp_path / "status"
    status.mkdir()
    (status / "rank_1.json").write_text(json.dumps({"rank": 1, "problem": problem}))
    rows = document(tmp_path, ranks=[{"rank": 0, "problem": problem}], status_dir=status)["ranks"]
    assert [row["problem"] for row in rows] == [problem.replace("Zx81-plant3d", "***")] * 2
