"""The launchers' own training program: its options, and what it says where it cannot run."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.launchers.fakes import LAUNCHERS

TRAIN = LAUNCHERS / "train_vit.py"


@pytest.fixture
def parse(monkeypatch):
    spec = importlib.util.spec_from_file_location("vit_options", TRAIN.with_name("vit_options.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("RANK", "0")
    return module.parse


def train(tmp_path, *options):
    clean = {key: value for key, value in os.environ.items() if key != "RANK"} | {
        "PYTHONPATH": str(tmp_path)
    }
    command = [sys.executable, str(TRAIN), *options]
    return subprocess.run(
        command, env=clean, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_says_how_to_start_it_and_a_machine_without_torch_is_told_so(tmp_path, worded):
    (tmp_path / "torch.py").write_text(
        "raise ImportError('torch must not be needed here')", "utf-8"
    )
    done = train(tmp_path, "--help")
    assert done.returncode == 0
    assert "torchrun --standalone --nproc_per_node=4 train_vit.py" in done.stdout
    assert "--crash-rank" in done.stdout.partition("\ndemonstrations")[2]
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u; u.find_spec = lambda name: None", "utf-8"
    )
    done = train(tmp_path, "--model", "tiny")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    worded(done.stderr.rstrip("\n"))


def refusal(parse, capsys, options):
    """Return the message for options that cannot be used, which is one line."""
    with pytest.raises(SystemExit) as end:
        parse(options.split())
    assert end.value.code == 2
    _, error, message = capsys.readouterr().err.splitlines()[-1].partition("error: ")
    return error + message


CANNOT_BE_USED = {
    # Options, and what their message has to name.
    "--fsdp --no-ddp": ["--fsdp", "--no-ddp"],
    "--fsdp --hook fp16": ["--hook", "--fsdp"],
    "--no-ddp --static-graph": ["--static-graph", "--no-ddp"],
    "--fsdp --dtype float16": ["--dtype bfloat16"],
    "--static-graph --accumulate 2": ["--static-graph", "--accumulate"],
    "--hook powersgd --warmup 2": ["--warmup 3", "2"],
    "--crash-rank 1": ["--crash-at STEP"],
    "--json no/such/place.json": ["--json no/such/place.json"],
    "--bucket-cap-mb -1": ["--bucket-cap-mb", "-1"],
    "--bucket-cap-mb nan": ["--bucket-cap-mb", "nan"],
    "--steps 0": ["--steps", "0"],
    "--warmup -1": ["--warmup", "-1"],
    "--slow-ms inf": ["--slow-ms", "inf"],
    "--accumulate two": ["--accumulate", "'two'"],
}


@pytest.mark.parametrize(("options", "named"), CANNOT_BE_USED.items(), ids=CANNOT_BE_USED)
def test_options_that_cannot_be_used_end_in_one_message(parse, capsys, worded, options, named):
    message = refusal(parse, capsys, options)
    assert [word for word in named if word not in message] == []
    worded(message)


@pytest.mark.parametrize("options", ["--fsdp", "--gradient-as-bucket-view", "--bucket-cap-mb=50"])
def test_options_of_a_process_group_need_one(parse, monkeypatch, capsys, worded, options):
    monkeypatch.delenv("RANK")
    message = refusal(parse, capsys, options)
    assert "torchrun --standalone" in message
    worded(message)
