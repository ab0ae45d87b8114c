"""Which ranks a job captures on this node, and which files belong to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsyspipe.capture.plan import earlier_files, parse_job, parse_ranks
from nsyspipe.errors import OptionError


def job(*words, name="/data/run"):
    return parse_job([f"--name={name}", "--program=train.py", *words, "--", "run", "it"])


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", {0}), ("0,7,63", {0, 7, 63}), ("0-3", {0, 1, 2, 3}), ("5,1-2", {1, 2, 5}), ("2-2", {2})],
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
