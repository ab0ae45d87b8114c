"""What to change first, and what is said of the link: on the terminal and in the document, and the options they take."""

import json
import re

import pytest

from tests.cli.sick_run import LINK, LOG, PIDS, TOPOLOGY
from tests.cli.tools import nsyspipe_run
from tests.conftest import SAMPLES

LOGS = LOG.parent

# By their bounds, as nothing is expected of a launch-bound run; comm-bound after its causes.
ALL = ["launch-bound", "compress-gradients", "single-bucket", "slow-link", "comm-bound", "input-bound", "grad-copy"]


@pytest.fixture
def section(invoke, monkeypatch):
    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = invoke(*arguments)
        assert (done.exit_code, done.stderr) == (0, ""), done
        assert max(map(len, done.stdout.splitlines())) <= columns
        _, found, tail = done.stdout.partition("What to change first")
        return (found + tail).partition("\n\n")[0].splitlines()

    return run


def test_as_many_findings_are_shown_as_asked_for_five_unless_told_and_all_with_the_whole_advice(
    sick, section, pinned_report
):
    asked = {"": [], **{f"--findings {n}": ["--findings", n] for n in ("0", "2", " 3 ", "99", "ALL")}}
    found = {name: section(sick, *LINK, *options) for name, options in asked.items()}
    pinned_report("findings/sick", **{name: "\n".join(lines) for name, lines in found.items()})
    titles = [re.findall(f"  ({'|'.join(ALL)}):", " ".join(lines[1:])) for lines in found.values()]
    assert [list(dict.fromkeys(names)) for names in titles] == [ALL[:n] for n in (5, 0, 2, 3, 7, 7)]


@pytest.mark.parametrize(("columns", "n"), [(80, "5"), (79, "all"), (60, "all")])
def test_no_word_of_it_is_lost_on_any_terminal(sick, section, columns, n):
    wide = section(sick, *LINK, "--findings", n, columns=200)
    lines = section(sick, *LINK, "--findings", n, columns=columns)
    assert max(map(len, lines)) <= min(columns, 100)
    assert sorted("".join(lines).replace(" ", "")) == sorted("".join(wide).replace(" ", ""))
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


@pytest.mark.slow
def test_several_processes_replay_as_one_does(real):
    done = nsyspipe_run("analyze", real / "ddp-4gpu-shm_*.sqlite", "-j", 2, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^34\.7 % +55\.38 +30\.6 % +48\.89 +single-bucket: ", done.stdout, re.MULTILINE)


def test_the_document_has_all_findings_with_figures_and_evidence(sick, invoke):
    found = json.loads(invoke(sick, *LINK, "--findings", "0", "--json", "-").stdout)
    summary, version = found["summary"], found["nccl"]["version"]
    assert summary["by_rank"]["wait_share"] == {"lowest": [0, 0], "highest": [0, 0]}
    assert (summary["message_bytes_per_step"], version) == (None, "2.28.9+cuda13.0")
    assert [row["rank"] for row in found["stragglers"]] == [0, 1]
    rows = found["findings"]
    # Launch-bound: 485 ns idle, and 300 of communication exposed, which late launches expose too.
    savings = [785, 300, 300, pytest.approx(300 - 800 / 450), 300, 100, 15]
    assert [(row["id"], row["saving_ns_per_step"]) for row in rows] == list(zip(ALL, savings, strict=True))
    assert [row["severity"] for row in rows] == [*(6 * ["high"]), "low"]
    assert all(type(row["evidence"]) is dict for row in rows)
    assert rows[3]["evidence"]["link_kind"] == "shm"


SHM = "link: SHM through host memory"
UNSAID = "link: no NCCL log says what NCCL uses; the GPUs are connected by NV18"
ALTHOUGH = f"{SHM}, although the GPUs are connected by NV18; all 4 edges"
# 8 copies of 100 bytes per 300 ns, and with two ranks busbw is algbw.
REACHED, BY = "bus bandwidth about 2.667 GB/s", ", by the gradients' copies"
DDP = "ddp-4gpu-shm_*.sqlite"


def link_line(done):
    assert (done.exit_code, done.stderr) == (0, ""), done
    _, found, said = done.stdout.partition("\n\n")[0].partition("\nparallelism: ")[0].partition("\nlink: ")
    return found.strip() + " " + " ".join(said.split()) if found else None


def test_the_link_is_said_as_far_as_it_is_known(sick, invoke):
    for options, said in [
        ([], None),
        (LINK[:2], f"{SHM}; all 4 edges; {REACHED} of 63.02 GB/s nominal{BY}"),
        (LINK[2:], f"{UNSAID}; rank 0 to 1; {REACHED} of 450.0 GB/s nominal{BY}"),
        (LINK, f"{ALTHOUGH}; {REACHED} of 63.02 GB/s nominal{BY}"),
        ([*LINK, "--nccl-log", LOG], f"{ALTHOUGH}; {REACHED} of 63.02 GB/s nominal{BY}"),
    ]:
        assert link_line(invoke(sick, *options)) == said, options


@pytest.mark.parametrize(("run", "log", "topology", "said"), [
    ("ddp-4gpu-shm", LOG.name, "4", f"{ALTHOUGH}; bus bandwidth about 25.41 GB/s of 63.02 GB/s nominal{BY}"),
    # Without a figure of the run only the promise.
    ("ddp-4gpu-shm-bucket100", LOG.name, "4", f"{ALTHOUGH}, by a log of other processes; nominal 63.02 GB/s"),
    # Although no finding needs it.
    ("ddp-2gpu", "ddp-2gpu.nccl.log", "2", "link: NVLink (P2P/CUMEM over NV18); both edges; bus bandwidth about 333.8 GB/s of 450.0 GB/s nominal, by the gradients' copies"),
])  # fmt: skip
def test_the_link_of_a_real_run_is_said(real, invoke, run, log, topology, said):
    files = ("--nccl-log", LOGS / log, "--topology", LOGS / f"topo-{topology}gpu.txt")
    assert link_line(invoke(real / f"{run}_*.sqlite", *files)) == said


@pytest.mark.parametrize("way", ["repeated", "quoted glob", "shell's words", "before", "between"])
def test_logs_may_be_repeated_or_a_quoted_glob_or_words_of_the_shell(sick, invoke, tmp_path, way):
    by_process = {}  # as NCCL_DEBUG_FILE writes them
    for line in LOG.read_text().splitlines(keepends=True):
        if line.startswith("node0:"):
            by_process.setdefault(line.split(":")[1], []).append(line)
    assert len(by_process) == 4
    for process, lines in by_process.items():
        (tmp_path / f"nccl_{process}.log").write_text("".join(lines))
    files, exports = sorted(tmp_path.iterdir()), sorted(sick.glob("*.sqlite"))
    arguments = {
        "repeated": [sick, *(word for file in files for word in ("--nccl-log", file))],
        "quoted glob": [sick, "--nccl-log", tmp_path / "*.log"],
        "shell's words": [*exports, "--nccl-log", *files],
        "before": ["--nccl-log", *files, sick],
        "between": [exports[0], "--nccl-log", *files, exports[1]],
    }[way]
    assert link_line(invoke(*arguments, "--topology", TOPOLOGY)) == f"{ALTHOUGH}; {REACHED} of 63.02 GB/s nominal{BY}"


def ring_log(n_ranks, transports):
    said = ""
    for rank in range(n_ranks):
        place = f"ncclCommInitRank comm 0x1 rank {rank} nranks {n_ranks} cudaDev {rank} nvmlDev {rank} busId {rank}0 commId 0x7"
        after, transport = (rank + 1) % n_ranks, transports[rank % len(transports)]
        pid = PIDS[0] if rank == 0 else 3000 + rank
        channel = f"Channel 00/0 : {rank}[{rank}] -> {after}[{after}] [send] via {transport}"
        for text in (f"{place} - Init START", channel, f"{place} - Init COMPLETE"):
            said += f"host:{pid}:{pid} [{rank}] NCCL INFO {text}\n"
    return said


@pytest.mark.parametrize("transport", ["NET/AWS Libfabric/15/GDRDMA", "NEW/" + 300 * "x"])
def test_the_line_takes_two_lines_of_a_terminal(sick, invoke, tmp_path, monkeypatch, transport):
    monkeypatch.setenv("COLUMNS", "100")
    log = tmp_path / "nccl.log"
    log.write_text(ring_log(16, [transport, "SHM", "SHM", "SHM"]))
    done = invoke(sick, "--nccl-log", log, "--topology", TOPOLOGY)
    assert (done.exit_code, done.stderr) == (0, "")
    head = done.stdout.partition("\nparallelism: ")[0].partition("\nlink: ")[2].splitlines()
    assert (len(head) <= 2, max(map(len, head)) <= 100) == (True, True)
    assert " of 16 edges, rank " in " ".join(head)


def answer(invoke, *arguments):
    found = json.loads(invoke(*arguments, "--json", "-").stdout)
    return found, {row["code"]: row for row in found["problems"]}


@pytest.mark.slow
def test_a_log_of_another_run_is_told_and_not_used(real, invoke):
    options = (real / DDP, "--nccl-log", LOGS / "ddp-2gpu.nccl.log")
    found, problems = answer(invoke, *options)
    problem = problems["log-of-another-run"]
    assert (problem["severity"], "its size (4)" in problem["message"]) == ("warning", True)
    assert "NCCL_DEBUG=INFO" in problem["fix"]
    assert (found["nccl"], found["links"]) == (None, [])
    assert "\nlink:" not in invoke(*options).stdout


def test_a_log_of_another_run_does_not_make_the_world_larger(real, invoke):
    found, problems = answer(invoke, real / "baseline.sqlite", "--nccl-log", LOGS / "ddp-4gpu.nccl.log")
    assert found["run"]["world_size"] is None
    assert ("log-of-another-run" in problems, "ranks-missing" in problems) == (True, False)


def test_a_log_that_names_no_communicator_is_said_to_say_nothing_of_links(sick, invoke, tmp_path):
    log = tmp_path / "old.log"
    log.write_text(f"host:{PIDS[0]}:{PIDS[0]} [0] NC" + "CL INFO NCCL version 2.10.3+cuda11.3\n")  # this file is no log
    found, problems = answer(invoke, sick, "--nccl-log", log)
    assert found["nccl"]["version"] == "2.10.3+cuda11.3"
    assert "INFO" in problems["log-without-communicators"]["fix"]
    assert "log-of-another-run" not in problems


def test_a_log_of_other_processes_is_told(real, invoke):
    found, problems = answer(invoke, real / DDP, "--nccl-log", SAMPLES / "ddp-4gpu-before.nccl.log")
    assert problems["log-of-other-processes"]["severity"] == "warning"
    assert len(found["links"]) == 4


def test_a_log_of_some_processes_is_told(real, invoke, tmp_path):
    lines = (LOGS / "ddp-4gpu-shm.nccl.log").read_text().splitlines(keepends=True)
    pid = next(line.split(":")[1] for line in lines if " NCCL INFO " in line)
    (tmp_path / "one.log").write_text("".join(line for line in lines if line.split(":")[1:2] == [pid]))
    _, problems = answer(invoke, real / DDP, "--nccl-log", tmp_path / "one.log")
    problem = problems["log-of-some-processes"]
    assert (problem["severity"], "of 1 of 4 processes" in problem["message"]) == ("info", True)
    assert "--nccl-log 'nccl_*.log'" in problem["fix"]


def test_a_topology_of_another_machine_is_told(real, invoke):
    found, problems = answer(invoke, real / DDP, *LINK[:2], "--topology", LOGS / "topo-2gpu.txt")
    problem = problems["topology-of-another-machine"]
    assert (problem["severity"], "no GPU 2, 3" in problem["message"]) == ("warning", True)
    paths = {(row["from_rank"], row["to_rank"]): row["path"] for row in found["links"]}
    # The ring is 0 -> 1 -> 2 -> 3 -> 0; GPU 2 and 3 have no row.
    assert paths == {(0, 1): "NV18", (1, 2): None, (2, 3): None, (3, 0): None}


def test_files_of_this_run_are_not_accused_and_their_settings_are_in_the_document(real, invoke):
    found, problems = answer(invoke, real / DDP, *LINK)
    assert not {
        "log-of-another-run",
        "log-of-other-processes",
        "log-of-some-processes",
        "log-without-communicators",
        "topology-of-another-machine",
    } & {*problems}
    settings = {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}
    assert found["nccl"] == {"version": "2.28.9+cuda13.0", "settings": settings, "nvls": False}
    (slow,) = [row for row in found["findings"] if row["id"] == "slow-link"]
    assert slow["action"] == "unset NCCL_P2P_DISABLE: it forces host memory"
    assert slow["evidence"]["nccl_settings"] == {"NCCL_P2P_DISABLE": "1"}
    assert answer(invoke, real / DDP, *LINK[2:])[0]["nccl"] is None
