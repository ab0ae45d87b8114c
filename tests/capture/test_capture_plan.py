"""A capture before it starts: directories, plan, whether the machine is ready."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from nsyspipe.capture import plan as ready
from nsyspipe.capture.plan import earlier_files, parse_job, parse_ranks
from nsyspipe.capture.supervision import short_directory
from nsyspipe.errors import OptionError
from nsyspipe.nsys.programs import find
from tests.build.fake_nsys import fake_nsys
from tests.build.programs import HELP, program


def job(*words, name="/data/run"):
    return parse_job([f"--name={name}", "--program=train.py", *words, "--", "run", "it"])


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", {0}), ("0,7,63", {0, 7, 63}), ("0-3", {0, 1, 2, 3}), ("5,1-2", {1, 2, 5}), ("2-2", {2})]
)
def test_ranks_are_numbers_and_ranges(text, ranks):
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0,,1", "0-9999999999", "1.5"])
def test_anything_else_is_refused(text):
    with pytest.raises(OptionError, match=r"^--ranks .*: .") as caught:
        parse_ranks(text)
    assert caught.value.fix == "--ranks 0,7,63 or --ranks 0-3"


def test_what_follows_the_first_two_dashes_is_the_command():
    words = ["--name=x", "--program=p", "--", "run", "--", "--name=y"]
    assert parse_job(words).command == ("run", "--", "--name=y")


def test_a_name_is_made_absolute_and_keeps_its_dots(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = job(name="a/run.v2")
    assert found.name == tmp_path / "a" / "run.v2"
    assert found.beside("_0") == tmp_path / "a" / "run.v2_0"


def test_a_node_has_the_ranks_that_follow_from_its_number():
    node = job("--nproc=4", "--nodes=3", "--node-rank=1", "--nsys=nsys", "--ranks=0,5-7,11")
    assert node.world_size == 12
    assert node.local_ranks == range(4, 8)
    # Of ranks 4 to 7 those that were chosen, whoever has started.
    assert node.expected([]) == (5, 6, 7)


def test_a_rendezvous_that_deals_ranks_out_leaves_them_to_those_that_start():
    node = job("--nproc=2", "--nodes=2", "--rendezvous=c10d", "--nsys=nsys", "--ranks=0,3")
    assert node.local_ranks is None
    assert node.expected([1, 3]) == (3,)


def test_without_nsys_no_report_is_expected():
    assert job("--nproc=2").expected([0, 1]) == ()


def test_files_of_a_node_have_its_number():
    node = job("--nodes=2", "--node-rank=1")
    assert node.node_report == Path("/data/run_node1")


OWN = {
    *("run_0.nsys-rep", "run_12.sqlite", "run_1.qdstrm", "run_node3.sqlite", "run.capture.json"),
    *("run.topo.txt", "run.node2.topo.txt", "run.node2.capture.json", "run.nccl.h.12.log"),
}
OTHERS = {
    *("run", "run_", "run_.sqlite", "run_a.sqlite", "run_0_1.sqlite", "run-view_0.nsys-rep"),
    *("run_0.capture.json", "run_0.sqlite.bak", "run_0.sqlite-wal", "run.node.capture.json"),
    *("run.nccl.h.12.txt", "run.log", "rerun_0.sqlite", "run_nodes.sqlite", "run.train.json"),
    *("runs_0.sqlite", "run_0.txt", "run.node1.txt"),
}


def names_in(folder, *words):
    return {path.name for path in earlier_files(job(*words, name=folder / "run"))}


@pytest.fixture
def folder(tmp_path):
    for name in OWN | OTHERS:
        (tmp_path / name).touch()
    return tmp_path


def test_an_earlier_capture_is_all_of_its_ranks_and_none_of_another_name(folder):
    assert names_in(folder) == OWN


def test_a_node_leaves_the_files_of_the_others_alone(folder):
    # Node 3 of 4 with 4 ranks each has ranks 12 to 15.
    words = ("--nodes=4", "--nproc=4", "--node-rank")
    assert names_in(folder, *words, "3") == {"run_12.sqlite", "run_node3.sqlite"}
    assert names_in(folder, *words, "2") == {"run.node2.topo.txt", "run.node2.capture.json"}
    # Node 0 answers for what a capture on one node has left, too.
    own = {"run_0.nsys-rep", "run_1.qdstrm", "run.capture.json", "run.topo.txt"}
    assert names_in(folder, *words, "0") == own


def test_the_first_node_answers_for_ranks_and_nodes_that_the_job_has_not(folder):
    # 2 nodes with 4 ranks each: there is neither a rank 12 nor a node 2 or 3.
    words = ("--nodes=2", "--nproc=4", "--node-rank")
    assert names_in(folder, *words, "0") == {
        *("run_0.nsys-rep", "run_1.qdstrm", "run.capture.json", "run.topo.txt"),
        *("run_12.sqlite", "run_node3.sqlite", "run.node2.topo.txt", "run.node2.capture.json"),
    }
    assert names_in(folder, *words, "1") == set()


def test_where_ranks_are_dealt_out_any_ranks_report_is_an_earlier_one(folder):
    words = ("--nodes=4", "--rendezvous=c10d", "--node-rank=1")
    assert names_in(folder, *words) == {"run_0.nsys-rep", "run_1.qdstrm", "run_12.sqlite"}


# What Python's multiprocessing puts below a rank's directory.
SOCKET = "tmp_1000/pymp-12345678/listener-12345678"


@pytest.fixture
def among(tmp_path, monkeypatch):
    """Return what makes a directory of this length the one for temporary files."""

    def make(n_bytes):
        folder = tmp_path / ("d" * max(n_bytes - len(str(tmp_path)) - 1, 1))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    return make


@pytest.mark.parametrize("n_bytes", [60, 200])
def test_sockets_have_room_and_files_lie_where_the_user_wants_them(among, n_bytes):
    folder = among(n_bytes)
    with short_directory() as path:
        place = path / SOCKET
        place.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
        assert folder in path.resolve().parents
        inside = [one for one in folder.rglob("*") if one.is_socket()]
        assert len(inside) == 1
    assert list(folder.iterdir()) == []
    assert not path.parent.exists()


def test_a_short_path_is_taken_as_it_is(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with short_directory() as path:
            assert path.parent == Path(folder)
            assert not path.is_symlink()
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize("name", ["report1.nsys-rep", "x.qdstrm"])
def test_a_directory_that_still_holds_a_capture_stays(among, name):
    folder = among(60)
    with short_directory() as path:
        (path / "tmp_0").mkdir()
        (path / "tmp_0" / name).write_text("hours of work")
    (left,) = folder.iterdir()
    assert (left / "tmp_0" / name).read_text() == "hours of work"


def test_an_empty_report_is_no_reason_to_stay(among):
    folder = among(60)
    with short_directory() as path:
        (path / "x.nsys-rep").touch()
    assert list(folder.iterdir()) == []


NEW = HELP.replace("'osrt',", "'osrt', 'nccl',")


def nsys(folder, profile=HELP):
    return find(str(fake_nsys(folder, profile=profile)))


def test_an_nsys_that_knows_all_values_gets_them(tmp_path):
    wanted = ("cuda", "nvtx", "nccl", "osrt")
    assert ready.usable_trace(nsys(tmp_path, NEW), wanted) == (wanted, None)


@pytest.mark.parametrize(
    ("wanted", "usable"), [(("cuda", "nvtx", "nccl"), ("cuda", "nvtx")), (("cuda", "nccl"), ("cuda", "nvtx"))]
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
    ("visible", "n"), [(None, 2), ("0", 1), ("", 0), ("0,1,2,3", 2), ("-1", 0), ("1,-1,0", 1), ("GPU-1", 1)]
)
def test_gpus_are_those_that_programs_see(smi, visible, n):
    assert smi(TWO, visible) == n


def test_no_driver_and_no_answer_is_no_gpu(smi):
    assert smi("exit 9") == 0


def test_a_driver_without_an_answer_is_not_known(smi, tmp_path):
    (tmp_path / "version").touch()
    assert smi("exit 9") is None


def test_a_dry_run_says_all_that_is_missing_and_goes_on(tmp_path, capsys):
    status = ready.main(["--program=/no/train.py", "--cpu", "--dry-run", "--nsys=/no/nsys", "--trace=nvtx"])
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
