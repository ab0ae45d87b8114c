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
    clean = {key: value for key, value in os.environ.items() if key != "RANK"} | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(TRAIN), *options]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60, check=False)


def test_help_says_how_to_start_it_and_a_machine_without_torch_is_told_so(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch must not be needed here')", "utf-8")
    done = train(tmp_path, "--help")
    assert done.returncode == 0
    assert "torchrun --standalone --nproc_per_node=4 train_vit.py" in done.stdout
    assert "demonstrations of what goes wrong" in done.stdout
    (tmp_path / "sitecustomize.py").write_text("import importlib.util as u; u.find_spec = lambda name: None", "utf-8")
    done = train(tmp_path, "--model", "tiny")
    assert (done.returncode, done.stderr) == (1, "error: train_vit.py needs PyTorch: pip install torch\n")


NO_GROUP = "needs a process group: start with 'torchrun --standalone"


@pytest.mark.parametrize(("options", "message"), [
    ("--fsdp --no-ddp", "--fsdp and --no-ddp: choose one"),
    ("--fsdp --hook fp16", "--hook is an option of DDP: it does nothing with --fsdp"),
    ("--no-ddp --static-graph", "--static-graph is an option of DDP: it does nothing with --no-ddp"),
    ("--fsdp --dtype float16", "FSDP2 has no scaler for the loss, so use --dtype bfloat16"),
    ("--static-graph --accumulate 2", "PyTorch's static graph fails"),
    ("--hook powersgd --warmup 2", "needs --warmup 3 or more, got 2"),
    ("--crash-rank 1", "needs --crash-at STEP"),
    ("--json no/such/place.json", "--json no/such/place.json: no such directory"),
    ("--bucket-cap-mb -1", "-1 is not a size in MB"),
    ("--bucket-cap-mb nan", "nan is not a size in MB"),
    ("--steps 0", "0 is less than 1"), ("--warmup -1", "-1 is negative"), ("--slow-ms inf", "inf is no duration"),
    ("--accumulate two", "invalid number value: 'two'"),
    ("--fsdp", NO_GROUP), ("--gradient-as-bucket-view", NO_GROUP), ("--bucket-cap-mb=50", NO_GROUP),
])  # fmt: skip
def test_options_that_cannot_be_used_end_in_one_message(parse, monkeypatch, capsys, options, message):
    if message == NO_GROUP:
        monkeypatch.delenv("RANK")
    with pytest.raises(SystemExit) as end:
        parse(options.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
