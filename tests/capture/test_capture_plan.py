"""A capture before it starts: directories, plan, whether the machine is ready."""

import re
import socket
import tempfile
from pathlib import Path

import pytest

from nsyspipe.capture import plan as ready
from nsyspipe.capture.job import opening
from nsyspipe.capture.plan import earlier_files, parse_job, room_for
from nsyspipe.capture.supervision import short_directory
from nsyspipe.errors import OptionError
from nsyspipe.model.options import parse_ranks
from nsyspipe.nsys.programs import find
from tests.build.fake_nsys import fake_nsys
from tests.build.programs import HELP, program, put


def job(*words, name="/data/run"):
    return parse_job([f"--name={name}", "--program=train.py", *words, "--", "run", "it"])


def test_ranks_are_numbers_and_ranges_and_anything_else_is_refused():
    ranks = {"0": {0}, "0,7,63": {0, 7, 63}, "0-3": {0, 1, 2, 3}, "5,1-2": {1, 2, 5}, "2-2": {2}}
    assert {text: parse_ranks(text) for text in ranks} == ranks
    for text in ("", "a", "1-", "-1", "3-1", "0,,1", "0-9999999999", "1.5"):
        with pytest.raises(OptionError, match=r"^ranks=.*: .") as caught:
            parse_ranks(text)
        assert caught.value.fix == "--ranks 0,7,63 or --ranks 0-3", text


@pytest.mark.parametrize("is_used", [False, True])
def test_empty_directories_made_for_a_capture_are_removed(tmp_path, is_used):
    (tmp_path / "a").mkdir()
    with room_for(job("--nsys=nsys", name=tmp_path / "a" / "b" / "c" / "run")):
        assert (tmp_path / "a" / "b" / "c").is_dir()
        if is_used:
            (tmp_path / "a" / "b" / "note").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == (
        ["a", "b", "note"] if is_used else ["a"]
    )


def test_an_earlier_file_whose_name_is_taken_stays_if_the_job_never_began(tmp_path):
    report = tmp_path / "run_0.nsys-rep"
    other = tmp_path / "run_1.nsys-rep"
    report.write_text("earlier")
    other.write_text("earlier too")
    with room_for(job("--nsys=nsys", "--force", name=tmp_path / "run")):
        report.write_text("new")
    assert report.read_text() == "new"
    assert other.read_text() == "earlier too"
    (aside,) = tmp_path.glob(".run.earlier-*")
    assert (aside / "run_0.nsys-rep").read_text() == "earlier"


def test_words_after_two_dashes_are_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = parse_job(["--name=a/run.v2", "--program=p", "--", "run", "--", "--name=y"])
    assert found.command == ("run", "--", "--name=y")
    assert found.name == tmp_path / "a" / "run.v2"
    assert found.beside("_0") == tmp_path / "a" / "run.v2_0"
    # Of the ranks of a node those that were chosen are expected.
    node = job("--nproc=4", "--nodes=3", "--node-rank=1", "--nsys=nsys", "--ranks=0,5-7,11")
    assert (node.world_size, node.local_ranks) == (12, range(4, 8))
    assert node.expected([]) == (5, 6, 7)  # whoever has started
    # A rendezvous that deals ranks out leaves them to those that start.
    node = job("--nproc=2", "--nodes=2", "--rendezvous=c10d", "--nsys=nsys", "--ranks=0,3")
    assert (node.local_ranks, node.expected([1, 3])) == (None, (3,))
    assert job("--nproc=2").expected([0, 1]) == ()  # without nsys


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
OF_ONE_NODE = {"run_0.nsys-rep", "run_1.qdstrm", "run.capture.json", "run.topo.txt"}
OF_NODE_2 = {"run.node2.topo.txt", "run.node2.capture.json"}


@pytest.mark.parametrize(
    ("words", "earlier"),
    [
        # All of its ranks, and none of another name.
        ("", OWN),
        # Node 3 of 4 with 4 ranks each has ranks 12 to 15; node 0 answers for what a capture on one
        # node has left, too.
        ("--nodes=4 --nproc=4 --node-rank=3", {"run_12.sqlite", "run_node3.sqlite"}),
        ("--nodes=4 --nproc=4 --node-rank=2", OF_NODE_2),
        ("--nodes=4 --nproc=4 --node-rank=0", OF_ONE_NODE),
        # Of 2 nodes with 4 ranks each there is neither a rank 12 nor a node 2 or 3: the first one
        # answers for them.
        (
            "--nodes=2 --nproc=4 --node-rank=0",
            OF_ONE_NODE | OF_NODE_2 | {"run_12.sqlite", "run_node3.sqlite"},
        ),
        ("--nodes=2 --nproc=4 --node-rank=1", set()),
        # Where ranks are dealt out, any rank's report is an earlier one.
        (
            "--nodes=4 --rendezvous=c10d --node-rank=1",
            {"run_0.nsys-rep", "run_1.qdstrm", "run_12.sqlite"},
        ),
    ],
)
def test_an_earlier_capture_is_what_this_node_answers_for(tmp_path, words, earlier):
    for name in OWN | OTHERS:
        (tmp_path / name).touch()
    assert {
        path.name for path in earlier_files(job(*words.split(), name=tmp_path / "run"))
    } == earlier


# what Python's multiprocessing puts below a rank's directory
SOCKET = "tmp_1000/pymp-12345678/listener-12345678"


@pytest.fixture
def among(tmp_path, monkeypatch):

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
        assert sum(one.is_socket() for one in folder.rglob("*")) == 1
    assert list(folder.iterdir()) == []
    assert not path.parent.exists()


def test_a_short_path_is_taken_as_it_is(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with short_directory() as path:
            assert (path.parent, path.is_symlink()) == (Path(folder), False)
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text"), [("report1.nsys-rep", "hours"), ("x.qdstrm", "hours"), ("x.nsys-rep", "")]
)
def test_a_directory_that_still_holds_a_capture_stays(among, name, text):
    folder = among(60)
    with short_directory() as path:
        put(path, f"tmp_0/{name}", text)
    # An empty report is no reason to stay.
    assert [(one / "tmp_0" / name).read_text() for one in folder.iterdir()] == (
        [text] if text else []
    )


def nsys(folder, profile=HELP):
    return find(str(fake_nsys(folder, profile=profile)))


NEW = HELP.replace("'osrt',", "'osrt', 'nccl',")
ALL = ("cuda", "nvtx", "nccl", "osrt")


@pytest.mark.parametrize(
    ("profile", "wanted", "usable"),
    [
        (NEW, ALL, ALL),
        ("no help", ALL, ("cuda", "nvtx", "osrt")),  # that lists nothing: by its version
        (HELP, ("cuda", "nvtx", "nccl"), ("cuda", "nvtx")),
        (HELP, ("cuda", "nccl"), ("cuda", "nvtx")),
    ],
)
def test_nvtx_stands_in_once_for_the_nccl_that_an_nsys_does_not_know(
    tmp_path, profile, wanted, usable
):
    found, _, notes = ready.usable_tracing(nsys(tmp_path, profile), wanted, "")
    assert found == [*usable]
    assert ["2024.2.3.38" in one and "--trace=nccl" in one for one in notes] == [True] * (
        usable != wanted
    )


def test_cuda_graphs_are_traced_by_node_if_nsys_can(tmp_path, worded):
    found = nsys(tmp_path)
    with pytest.raises(OptionError, match="dx12") as caught:
        ready.usable_tracing(found, ("nccl", "dx12"), "")
    assert caught.value.found.split(", ") == [
        "cuda",
        "nvtx",
        "cublas-verbose",
        "osrt",
        "python-gil",
        "none",
    ]
    worded(caught.value.lines(), "a value")
    for graphs in ("node", "graph", ""):
        assert ready.usable_tracing(found, ["cuda", "nvtx"], graphs) == (
            ["cuda", "nvtx"],
            graphs,
            [],
        ), graphs
    old = nsys(tmp_path, HELP.replace("--cuda-graph-trace", "--cuda-memory-usage"))
    tracing, graphs, notes = ready.usable_tracing(old, ["cuda"], "node")
    assert (tracing, graphs, len(notes)) == (["cuda"], "", 1)
    worded(notes, "CUDA graphs")


@pytest.fixture
def smi(tmp_path, monkeypatch):
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
VISIBLE = {None: 2, "0": 1, "": 0, "0,1,2,3": 2, "-1": 0, "1,-1,0": 1, "GPU-1": 1}


def test_gpus_are_the_visible_ones_and_unknown_without_an_answer(smi, tmp_path):
    assert {visible: smi(TWO, visible) for visible in VISIBLE} == VISIBLE
    assert smi("exit 9") == 0
    (tmp_path / "version").touch()
    assert smi("exit 9") is None


def test_all_that_is_missing_is_said_at_once_and_ends_a_run_but_not_a_dry_one(capsys, worded):
    words = ["--program=/no/train.py", "--cpu", "--nsys=/no/nsys", "--trace=nvtx"]
    assert ready.main([*words, "--dry-run"]) == 0
    told = capsys.readouterr()
    assert told.out == "/no/nsys\nnvtx\n\n\n\n"
    assert {"note: /no/train.py", "note: /no/nsys"} <= {*re.findall(r"note: /no/[\w.]+", told.err)}
    worded([line for line in told.err.splitlines() if "/no/" in line])
    # Where CUDA is traced, so are its graphs.
    assert (
        ready.main([*words[:-1], "--trace=cuda-sw", "--cuda-graph-trace=graph", "--dry-run"]) == 0
    )
    assert capsys.readouterr().out == "/no/nsys\ncuda-sw\ngraph\n\n\n"
    assert ready.main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert {"error: /no/train.py", "error: /no/nsys"} <= {
        *re.findall(r"error: /no/[\w.]+", told.err)
    }


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["--node-rank=0", "--ranks=0"], "1 of 2 ranks"),
        (["--node-rank=1", "--ranks=0"], "0 of 2 ranks"),
        (["--node-rank=1"], "2 ranks"),
        # The rendezvous has not assigned the ranks yet.
        (["--rendezvous=c10d", "--ranks=0"], "2 ranks"),
    ],
)
def test_the_first_line_has_the_captured_ranks_of_the_node(words, ranks):
    of_node = job("--nodes=2", "--nproc=2", "--nsys=nsys", *words)
    assert opening(of_node).startswith(f"capturing train.py: {ranks},")
