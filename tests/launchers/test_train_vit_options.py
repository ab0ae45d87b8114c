"""What train_vit.py refuses, before torch is even imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "launchers/train_vit.py"
MISSING = "raise ImportError('torch must not be needed here')"


def train(tmp_path, *options, **environment):
    (tmp_path / "torch.py").write_text(MISSING, "utf-8")
    clean = {key: value for key, value in os.environ.items() if key != "RANK"}
    return subprocess.run(
        [sys.executable, str(TRAIN), *options],
        env={**clean, "PYTHONPATH": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def vit_options():
    spec = importlib.util.spec_from_file_location("vit_options", TRAIN.with_name("vit_options.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_help_says_how_to_start_it(tmp_path):
    done = train(tmp_path, "--help")
    assert done.returncode == 0
    assert "torchrun --standalone --nproc_per_node=4 train_vit.py" in done.stdout
    assert "demonstrations of what goes wrong" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--fsdp --no-ddp", "--fsdp and --no-ddp: choose one"),
        ("--fsdp --hook fp16", "--hook is an option of DDP: it does nothing with --fsdp"),
        ("--no-ddp --static-graph", "--static-graph is an option of DDP: it does nothing with --no-ddp"),
        ("--fsdp --dtype float16", "FSDP2 has no scaler for the loss; use --dtype bfloat16"),
        ("--static-graph --accumulate 2", "PyTorch's static graph fails"),
        ("--hook powersgd --warmup 2", "needs --warmup 3 or more, got 2"),
        ("--crash-rank 1", "needs --crash-at STEP"),
        ("--json no/such/place.json", "--json no/such/place.json: no such directory"),
        ("--bucket-cap-mb -1", "-1 is not a size in MB"),
        ("--bucket-cap-mb nan", "nan is not a size in MB"),
        ("--steps 0", "0 is less than 1"),
        ("--warmup -1", "-1 is negative"),
        ("--slow-ms inf", "inf is no duration"),
        ("--accumulate two", "invalid number value: 'two'"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_end_in_one_message(monkeypatch, capsys, options, message):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit) as end:
        vit_options().parse(options.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("option", ["--fsdp", "--gradient-as-bucket-view", "--bucket-cap-mb=50"])
def test_what_exchanges_gradients_needs_torchrun(monkeypatch, capsys, option):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        vit_options().parse([option])
    assert "needs a process group: start with 'torchrun --standalone" in capsys.readouterr().err


def test_a_machine_without_torch_is_told_so(tmp_path):
    hidden = "import sys, importlib.util as u; u.find_spec = lambda name: None"
    (tmp_path / "sitecustomize.py").write_text(hidden, "utf-8")
    done = train(tmp_path, "--model", "tiny")
    assert done.returncode == 1
    assert done.stderr == "error: train_vit.py needs PyTorch: pip install torch\n"
