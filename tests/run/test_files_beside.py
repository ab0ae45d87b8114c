"""NCCL logs and topologies beside the reports: which are found, which of them are of the run, and what is said of the others."""

import os
import re
import shutil

import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.reader import beside
from nsyspipe.reader.beside import find_beside
from nsyspipe.run.doctor import examine
from nsyspipe.store.write import save
from tests.build.plain_steps import plain_rank

STEPS = [(1000, 100, 40, 60)] * 3
HEADER = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
TOPOLOGY = HEADER + "GPU0\t X \tNV18\t0-63\t0\t\tN/A\nGPU1\tNV18\t X \t0-63\t0\t\tN/A\n"
OTHER_TOPOLOGY = TOPOLOGY.replace("NV18", "SYS")
PIDS = (1000, 1001)  # of `plain_rank`


# What NCCL says of a variable.
SETTING_LOG = "NCCL_P2P_DISABLE set by environment to 1"


def log_text(*ranks, pids=PIDS, host="node0", comm_id="0xabc", n_ranks=2):
    """Return what the processes of some ranks log of one communicator over host memory."""
    lines = []
    for rank in ranks or range(n_ranks):
        start = f"{host}:{pids[rank]}:{pids[rank]} [{rank}] NCCL INFO "
        comm = (
            f"comm 0x{rank + 1:x} rank {rank} nranks {n_ranks} cudaDev {rank} nvmlDev {rank} busId "
            f"{rank + 1}0"
        )
        peer = (rank + 1) % n_ranks
        lines += [
            f"{start}ncclCommInitRankConfig {comm} commId {comm_id} - Init START",
            f"{start}{SETTING_LOG}",
            f"{start}Channel 00/01 : 0 1",
            f"{start}Channel 00 : {rank}[{rank}] -> {peer}[{peer}] via SHM/direct/direct",
            f"{start}ncclCommInitRankConfig {comm} commId {comm_id} - Init COMPLETE",
        ]
    return "\n".join(lines) + "\n"


def reports(folder, name="run", **options):
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        plain_rank(rank, STEPS, world_size=2, **options).gpu(name="NVIDIA H200").write(
            folder / f"{name}_{rank}.sqlite"
        )
    return folder


def loaded(place, **options):
    return nsyspipe.load(place, jobs=1, **options)


def codes(run):
    """Return the problems about files beside the reports, by code."""
    names = ("files-beside-used", "log-beside-ignored", "file-beside-unusable", "topologies-beside")
    return {row["code"]: row["message"] for row in run.problem_rows if row["code"] in names}


@pytest.mark.parametrize(
    "name", ["run.nccl.log", "run.nccl.1.log", "run.node0.nccl.node0.1000.log", "run_0.nccl.log"]
)
def test_a_log_with_the_name_of_the_reports_is_used_and_named(tmp_path, name):
    (reports(tmp_path / "a") / name).write_text(log_text())
    run = loaded(tmp_path / "a")
    assert run.nccl.settings == {"NCCL_P2P_DISABLE": "1"}
    assert {row["kind"] for row in run.links().to_pylist()} == {"shm"}
    assert [*codes(run)] == ["files-beside-used"]
    assert name in codes(run)["files-beside-used"]
    assert tmp_path / "a" / name in run.inputs


def test_a_log_per_process_as_the_launchers_write_them(tmp_path):
    folder = reports(tmp_path / "a")
    for rank, pid in enumerate(PIDS):
        (folder / f"run.nccl.node0.{pid}.log").write_text(log_text(rank))
    run = loaded(folder)
    assert run.links().num_rows == 2
    assert [*codes(run)] == ["files-beside-used"]


@pytest.mark.parametrize(
    "name",
    ["other.nccl.log", "runs.nccl.log", "run.log", "run.nccl.txt", "nccl.log", "run.ncclx.log"],
)
def test_a_log_of_another_name_is_not_looked_at(tmp_path, name):
    (reports(tmp_path / "a") / name).write_text(log_text())
    run = loaded(tmp_path / "a")
    assert run.nccl is None
    assert codes(run) == {}


def test_of_several_runs_in_a_directory_each_has_its_own_log(tmp_path):
    folder = reports(reports(tmp_path / "a"), "run-shm", pid=3000)
    (folder / "run.nccl.log").write_text(log_text())
    (folder / "run-shm.nccl.log").write_text(log_text(pids=(3000, 3001)).replace("TO 1", "to 0"))
    for name in ("run", "run-shm"):
        run = loaded(f"{folder}/{name}_*.sqlite")
        assert codes(run)["files-beside-used"].count(".log") == 1, name
        assert f" {name}.nccl.log" in codes(run)["files-beside-used"], name


@pytest.mark.parametrize("place", ["{}", "{}/*.sqlite", "{}/run_[01].sqlite", "{}/run_0.sqlite"])
def test_a_log_is_found_however_the_reports_are_named(tmp_path, place):
    (reports(tmp_path / "a") / "run.nccl.log").write_text(log_text())
    assert loaded(place.format(tmp_path / "a")).nccl is not None


def test_a_stale_log_of_other_processes_is_ignored(tmp_path):
    (reports(tmp_path / "a") / "run.nccl.log").write_text(log_text(pids=(77, 78)))
    run = loaded(tmp_path / "a")
    assert run.nccl is None
    assert [*codes(run)] == ["log-beside-ignored"]
    assert "processes 77, 78" in codes(run)["log-beside-ignored"]


def test_a_log_of_another_host_is_ignored_though_its_ids_are_the_same(tmp_path):
    (reports(tmp_path / "a") / "run.nccl.log").write_text(log_text(host="node7"))
    run = loaded(tmp_path / "a")
    assert run.nccl is None
    assert "hosts node7" in codes(run)["log-beside-ignored"]


def test_a_host_is_the_same_with_and_without_its_domain(tmp_path):
    (reports(tmp_path / "a") / "run.nccl.log").write_text(log_text(host="NODE0.cluster.example"))
    assert loaded(tmp_path / "a").nccl is not None


def test_a_host_that_was_redacted_may_be_the_logs(tmp_path):
    folder = reports(tmp_path / "a")
    for rank in range(2):
        plain_rank(rank, STEPS, world_size=2, host="host-0").write(folder / f"run_{rank}.sqlite")
    (folder / "run.nccl.log").write_text(log_text(host="node7"))
    assert loaded(folder).nccl is not None


def test_logs_of_ranks_whose_reports_are_not_read_belong_to_the_communicator(tmp_path):
    folder = reports(tmp_path / "a")
    for rank, pid in enumerate(PIDS):
        (folder / f"run.nccl.node0.{pid}.log").write_text(log_text(rank))
    (folder / "run.nccl.node0.99.log").write_text(log_text(pids=(98, 99), comm_id="0xdef"))
    run = loaded(folder / "run_0.sqlite")
    assert run.links().num_rows == 2
    assert "run.nccl.node0.99.log" in codes(run)["log-beside-ignored"]


def test_a_given_log_goes_before_those_beside_the_reports(tmp_path):
    folder = reports(tmp_path / "a")
    (folder / "run.nccl.log").write_text(log_text())
    (tmp_path / "given.log").write_text(log_text().replace("P2P_DISABLE", "SHM_DISABLE"))
    run = loaded(folder, nccl_log=tmp_path / "given.log")
    assert [*run.nccl.settings] == ["NCCL_SHM_DISABLE"]
    assert codes(run) == {}


@pytest.mark.parametrize("name", ["run.topo.txt", "topo.txt", "topo-2gpu.txt"])
def test_a_topology_beside_the_reports_is_used(tmp_path, name):
    (reports(tmp_path / "a") / name).write_text(TOPOLOGY)
    run = loaded(tmp_path / "a")
    assert {row["path"] for row in run.links().to_pylist()} == {"NV18"}
    assert name in codes(run)["files-beside-used"]


def test_the_topology_with_the_name_of_the_reports_goes_before_others(tmp_path):
    folder = reports(tmp_path / "a")
    (folder / "topo.txt").write_text(OTHER_TOPOLOGY)
    (folder / "run.topo.txt").write_text(TOPOLOGY)
    assert {row["path"] for row in loaded(folder).links().to_pylist()} == {"NV18"}


@pytest.mark.parametrize(("second", "is_used"), [(TOPOLOGY, True), (OTHER_TOPOLOGY, False)])
def test_of_several_topologies_none_is_used_unless_they_are_alike(tmp_path, second, is_used):
    folder = reports(tmp_path / "a")
    (folder / "topo-1.txt").write_text(TOPOLOGY)
    (folder / "topo-2.txt").write_text(second)
    run = loaded(folder)
    assert bool(run.links().num_rows) is is_used
    assert [*codes(run)] == ["files-beside-used" if is_used else "topologies-beside"]


def test_a_topology_without_the_gpus_of_the_reports_is_ignored(tmp_path):
    folder = reports(tmp_path / "a")
    (folder / "topo.txt").write_text(TOPOLOGY.replace("GPU1", "GPU5"))
    plain_rank(0, STEPS, world_size=2).gpu(1, name="NVIDIA H200").write(folder / "run_0.sqlite")
    run = loaded(folder)
    assert run.links().num_rows == 0
    assert "GPU 1 " in codes(run)["file-beside-unusable"]


def device(path):
    path.symlink_to("/dev/zero")


def outside(path):
    target = path.parent.parent / "outside.txt"
    target.write_text(log_text())
    path.symlink_to(target)


HOSTILE = {
    "a link to a device": device,
    "a link out of the folder": outside,
    "a link to itself": lambda path: path.symlink_to(path),
    "a broken link": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "no NCCL's": lambda path: path.write_text("hello\n"),
    "empty": lambda path: path.write_text(""),
    "binary": lambda path: path.write_bytes(os.urandom(4096)),
}


@pytest.mark.parametrize("name", ["run.nccl.log", "run.topo.txt"])
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_ordinary_file_of_the_folder_is_a_problem(tmp_path, name, make):
    make(reports(tmp_path / "a") / name)
    run = loaded(tmp_path / "a")
    assert run.summary().num_rows == 1
    assert run.nccl is None
    assert run.links().num_rows == 0
    assert [*codes(run)] == ["file-beside-unusable"]


def test_any_number_of_bad_files_is_a_problem_for_logs_and_one_for_topologies(tmp_path):
    folder = reports(tmp_path / "a")
    for number in range(30):
        (folder / f"run.nccl.{number:02}.log").write_text("hello\n")
        (folder / f"topo-{number:02}.txt").write_text("hello\n")
    (folder / "run.nccl.log").write_text(log_text())
    (folder / "run.nccl.99.log").symlink_to("run.nccl.log")
    run = loaded(folder)
    assert run.nccl is not None
    rows = [row for row in run.problem_rows if row["code"] == "file-beside-unusable"]
    numbers = {row["fix"].split()[0]: numbers_of(row["message"]) for row in rows}
    # In all, three of one reason, the others of it, and one of another reason.
    assert numbers == {"--nccl-log": [31, 0, 1, 2, 27, 99], "--topology": [30, 0, 1, 2, 27]}


def numbers_of(message):
    return [int(number) for number in re.findall(r"\d+", message)]


@pytest.mark.parametrize(("n_more", "is_used"), [(0, True), (1, False)])
def test_logs_are_read_up_to_a_size(tmp_path, monkeypatch, n_more, is_used):
    folder = reports(tmp_path / "a")
    (folder / "run.nccl.log").write_text(log_text())
    monkeypatch.setattr(beside, "MOST_LOG_BYTES", len(log_text()) - n_more)
    run = loaded(folder)
    assert (run.nccl is not None) is is_used
    assert [*codes(run)] == ["files-beside-used" if is_used else "file-beside-unusable"]


@pytest.mark.parametrize(("most", "n_problems"), [(2, 0), (1, 1)])
def test_so_many_logs_are_read(tmp_path, monkeypatch, most, n_problems):
    folder = reports(tmp_path / "a")
    for rank, pid in enumerate(PIDS):
        (folder / f"run.nccl.node0.{pid}.log").write_text(log_text(rank))
    monkeypatch.setattr(beside, "MOST_LOGS", most)
    told = codes(loaded(folder))
    assert ("file-beside-unusable" in told) == bool(n_problems)
    assert "files-beside-used" in told


@pytest.mark.parametrize(("most", "is_found"), [(3, True), (2, False)])
def test_so_many_entries_of_a_folder_are_looked_at(tmp_path, monkeypatch, most, is_found):
    folder = reports(tmp_path / "a")
    (folder / "run.nccl.log").write_text(log_text())
    monkeypatch.setattr(beside, "MOST_ENTRIES", most)
    found = [*find_beside([folder / "run_0.sqlite"]).logs]
    assert not is_found or found == [folder / "run.nccl.log"]
    assert len(find_beside([folder / "run_0.sqlite"]).paths) <= most


def test_nothing_beside_the_reports_is_used_without_logs(tmp_path):
    folder = reports(tmp_path / "a")
    (folder / "run.nccl.log").write_text(log_text())
    (folder / "topo.txt").write_text(TOPOLOGY)
    run = loaded(folder, logs=False)
    assert run.nccl is None
    assert run.links().num_rows == 0
    assert codes(run) == {}


@pytest.mark.parametrize("given", [{"nccl_log": "run.nccl.log"}, {"topology": "topo.txt"}])
def test_a_file_that_is_given_beside_no_logs_is_refused(tmp_path, given):
    with pytest.raises(OptionError, match="logs=False"):
        loaded(reports(tmp_path / "a"), logs=False, **given)


def test_no_logs_of_a_saved_run_is_refused(tmp_path):
    save(loaded(reports(tmp_path / "a")), tmp_path / "store")
    with pytest.raises(OptionError):
        nsyspipe.load(tmp_path / "store", logs=False)


@pytest.mark.slow
def test_a_saved_run_says_which_files_were_used(tmp_path):
    folder = reports(tmp_path / "a")
    (folder / "run.nccl.log").write_text(log_text())
    save(loaded(folder), tmp_path / "store")
    saved = nsyspipe.load(tmp_path / "store")
    assert [*codes(saved)] == ["files-beside-used"]
    assert saved.nccl.settings == {"NCCL_P2P_DISABLE": "1"}


def test_doctor_looks_beside_reports_too(tmp_path):
    folder = reports(tmp_path / "a")
    (folder / "run.nccl.log").write_text(log_text())
    found = examine(sorted(folder.glob("*.sqlite")))
    (link,) = [one for one in found.capabilities if one.name == "link"]
    assert link.status == "yes"
    assert "files-beside-used" in [one.code for one in found.problems]


def test_a_difference_compares_what_logs_beside_both_sides_say(tmp_path):
    before, after = reports(tmp_path / "a"), reports(tmp_path / "b")
    (before / "run.nccl.log").write_text(log_text())
    (after / "run.nccl.log").write_text(
        log_text().replace("SHM/direct/direct", "P2P/CUMEM").replace("P2P_DISABLE", "SHM_DISABLE")
    )
    found = {
        row["what"]: (row["baseline"], row["candidate"])
        for row in nsyspipe.diff(before, after).changes.to_pylist()
    }
    assert found["NCCL_P2P_DISABLE"] == ("1", None)
    assert found["transport"] == ("SHM/direct/direct", "P2P/CUMEM")


@pytest.mark.slow
def test_host_memory_is_named_first_with_the_log_beside_a_real_run(real, tmp_path):
    """NCCL_P2P_DISABLE costs 42 % of a step there, one bucket 31 %."""
    for path in real.glob("ddp-4gpu-shm_?.sqlite"):
        shutil.copy(path, tmp_path)
    run = loaded(tmp_path)
    assert run.finding_rows[0]["id"] != "slow-link"
    pids = run.ranks["pid"].to_pylist()
    (tmp_path / "ddp-4gpu-shm.nccl.log").write_text(
        log_text(pids=pids, n_ranks=4).replace(": 0 1", ": 0 1 2 3")
    )
    first = loaded(tmp_path).finding_rows[0]
    assert first["id"] == "slow-link"
    assert "NCCL_P2P_DISABLE" in first["action"]
