"""What is looked for before a capture."""

from __future__ import annotations

import pytest

from nsyspipe.capture import ready
from nsyspipe.errors import OptionError
from nsyspipe.nsys.programs import find
from tests.build.fake_nsys import fake_nsys
from tests.build.programs import HELP, program

NEW = HELP.replace("'osrt',", "'osrt', 'nccl',")


def nsys(folder, profile=HELP):
    return find(str(fake_nsys(folder, profile=profile)))


def test_an_nsys_that_knows_all_values_gets_them(tmp_path):
    wanted = ("cuda", "nvtx", "nccl", "osrt")
    assert ready.usable_trace(nsys(tmp_path, NEW), wanted) == (wanted, None)


@pytest.mark.parametrize(
    ("wanted", "usable"),
    [(("cuda", "nvtx", "nccl"), ("cuda", "nvtx")), (("cuda", "nccl"), ("cuda", "nvtx"))],
)
def test_nvtx_stands_in_for_nccl_once(tmp_path, wanted, usable):
    found, note = ready.usable_trace(nsys(tmp_path), wanted)
    assert found == usable
    assert note is not None
    assert "2024.2.3.38 does not know --trace=nccl" in note


def test_other_values_have_no_substitute(tmp_path):
    with pytest.raises(OptionError, match=r"does not know dx12") as caught:
        ready.usable_trace(nsys(tmp_path), ("nccl", "dx12"))
    assert caught.value.found == "cuda, nvtx, cublas-verbose, osrt, python-gil, none"


def test_an_nsys_whose_help_lists_nothing_is_trusted_with_everything(tmp_path):
    wanted = ("cuda", "nccl")
    assert ready.usable_trace(nsys(tmp_path, "no help"), wanted) == (wanted, None)


def test_cuda_graphs_are_traced_by_node_where_nsys_knows_it(tmp_path):
    found = nsys(tmp_path)
    assert ready.usable_graph_trace(found, "node", ("cuda", "nvtx")) == ("node", None)
    assert ready.usable_graph_trace(found, "graph", ("cuda-sw",)) == ("graph", None)
    # Without CUDA there are no graphs, and nsys would complain of the option.
    assert ready.usable_graph_trace(found, "node", ("nvtx", "osrt")) == ("", None)
    old = nsys(tmp_path, HELP.replace("--cuda-graph-trace", "--cuda-memory-usage"))
    found, note = ready.usable_graph_trace(old, "node", ("cuda",))
    assert found == ""
    assert note == (
        "note: nsys 2024.2.3.38 does not know --cuda-graph-trace=node: CUDA graphs are traced in its own way"
    )


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Return how many GPUs are counted where nvidia-smi runs a script."""
    monkeypatch.setattr(ready, "_DRIVER", tmp_path / "version")

    def count(script, visible=None):
        program(tmp_path / "bin", "nvidia-smi", script)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return ready.n_gpus()

    return count


TWO = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'; echo '  MIG 1g.18gb Device 0:'; echo 'GPU 1: X'"


@pytest.mark.parametrize(
    ("visible", "n"),
    [(None, 2), ("0", 1), ("", 0), ("0,1,2,3", 2), ("-1", 0), ("1,-1,0", 1), ("GPU-1", 1)],
)
def test_gpus_are_those_that_programs_see(smi, visible, n):
    assert smi(TWO, visible) == n


def test_no_driver_and_no_answer_is_no_gpu(smi):
    assert smi("exit 9") == 0


def test_a_driver_without_an_answer_is_not_known(smi, tmp_path):
    (tmp_path / "version").touch()
    assert smi("exit 9") is None


def test_a_dry_run_says_all_that_is_missing_and_goes_on(tmp_path, capsys):
    status = ready.main(
        ["--program=/no/train.py", "--cpu", "--dry-run", "--nsys=/no/nsys", "--trace=nvtx"]
    )
    told = capsys.readouterr()
    assert status == 0
    assert told.out == "/no/nsys\nnvtx\n\n"
    assert "note: /no/train.py: no such training program" in told.err
    assert "note: /no/nsys: is no nsys that can be run" in told.err


def test_the_first_thing_that_is_missing_ends_a_real_run(tmp_path, capsys):
    status = ready.main(["--program=/no/train.py", "--cpu", "--nsys=/no/nsys"])
    told = capsys.readouterr()
    assert (status, told.out) == (2, "")
    assert told.err.count("error:") == 1
