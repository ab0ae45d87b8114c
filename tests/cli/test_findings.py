"""What to change first, and what is said of the link: on the terminal and in the document, and the options they take."""

import json
import re

import pytest

from tests.cli.sick_run import LINK, LOG, PIDS, TOPOLOGY
from tests.cli.tools import environment
from tests.conftest import SAMPLES

LOGS = LOG.parent

# By their bounds, as nothing is expected of a launch-bound run; comm-bound after its causes.
ALL = [
    "launch-bound",
    "compress-gradients",
    "single-bucket",
    "slow-link",
    "comm-bound",
    "input-bound",
    "grad-copy",
]
# The screen gives comm-bound as the limit of the others, and leaves out grad-copy, which saves
# little.
RECOMMENDED = [name for name in ALL if name not in {"comm-bound", "grad-copy"}]


def named(text):
    return re.findall(rf"\[({'|'.join(ALL)})\]", text)


@pytest.fixture
def section(invoke, monkeypatch):
    """Return a function that runs `analyze` and returns the lines about what to change, up to the list of checks."""

    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = invoke(*arguments)
        assert (done.exit_code, done.stderr) == (0, ""), done
        assert max(map(len, done.stdout.splitlines())) <= columns
        _, heading, rest = done.stdout.partition("\nChange first\n")
        changes, closing, _ = rest.partition("\n17 checks")
        assert bool(heading) == bool(closing)
        return changes.splitlines()

    return run


@pytest.mark.slow
def test_five_findings_are_shown_unless_another_number_is_asked_for(sick, section, pinned_report):
    asked = {
        "": [],
        **{f"--findings {n}": ["--findings", n] for n in ("0", "2", " 3 ", "99", "ALL")},
    }
    found = {name: section(sick, *LINK, *options) for name, options in asked.items()}
    pinned_report("findings/sick", **{name: "\n".join(lines) for name, lines in found.items()})
    texts = ["\n".join(lines) for lines in found.values()]
    changes, details = zip(
        *(text.partition("\nAll findings\n")[::2] for text in texts), strict=True
    )
    assert [named(text) for text in changes] == [RECOMMENDED[:n] for n in (5, 0, 2, 3, 5, 5)]
    assert [named(text) for text in details] == [*(5 * [[]]), ALL]


def letters_of_findings(lines):
    """Return the letters without the table of phases, which has fewer columns on a narrow terminal."""
    paragraphs = "\n".join(lines).split("\n\n")
    return sorted("".join("".join(part.split()) for part in paragraphs if "\nphase " not in part))


@pytest.mark.parametrize(("columns", "n"), [(80, "5"), (79, "all"), (60, "all")])
def test_no_word_of_it_is_lost_on_any_terminal(sick, section, columns, n):
    wide = section(sick, *LINK, "--findings", n, columns=200)
    lines = section(sick, *LINK, "--findings", n, columns=columns)
    assert max(map(len, lines)) <= min(columns, 100)
    assert named("".join(lines)) == RECOMMENDED + ALL * (n == "all")
    assert letters_of_findings(lines) == letters_of_findings(wide)
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


@pytest.mark.slow
def test_several_processes_replay_as_one_does(forks, real):
    words = ("analyze", real / "ddp-4gpu-shm_*.sqlite", "-j", 2, "--json", "-")
    done = forks.run(*words, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = [row for row in json.loads(done.stdout)["findings"] if row["id"] == "single-bucket"]
    savings = (row["saving_ns_per_step"], row["expected_ns_per_step"])
    assert savings == (pytest.approx(55.38e6, abs=5e3), pytest.approx(48.89e6, abs=5e3))


def test_the_document_has_all_findings_with_figures_and_evidence(sick, invoke):
    found = json.loads(invoke(sick, *LINK, "--findings", "0", "--json", "-").stdout)
    summary, version = found["summary"], found["nccl"]["version"]
    assert summary["by_rank"]["wait_share"] == {"lowest": [0, 0], "highest": [0, 0]}
    assert (summary["message_bytes_per_step"], version) == (None, "2.28.9+cuda13.0")
    assert [row["rank"] for row in found["stragglers"]] == [0, 1]
    rows = found["findings"]
    # Launch-bound: 485 ns idle, and 300 of communication exposed, which late launches expose too.
    savings = [785, 300, 300, pytest.approx(300 - 800 / 450), 300, 100, 15]
    assert [(row["id"], row["saving_ns_per_step"]) for row in rows] == list(
        zip(ALL, savings, strict=True)
    )
    assert [row["severity"] for row in rows] == [*(6 * ["high"]), "low"]
    assert all(type(row["evidence"]) is dict for row in rows)
    assert rows[3]["evidence"]["link_kind"] == "shm"


DDP = "ddp-4gpu-shm_*.sqlite"


def link_line(done):
    return " ".join(link_lines(done)) or None


def link_lines(done):
    assert (done.exit_code, done.stderr) == (0, ""), done
    _, found, rest = done.stdout.partition("\nInterconnect: ")
    said = rest.partition("\n\n")[0].partition("\nParallelism: ")[0]
    return f"Interconnect: {said}".splitlines() if found else []


def rates_of(line):
    return re.findall(r"[\d.]+(?= GB/s)", line)


# 8 copies of 100 bytes per 300 ns, and with two ranks busbw is algbw. Of host memory and NVLink the
# nominal bandwidth.
@pytest.mark.parametrize(
    ("options", "rates"),
    [
        (LINK[:2], ["2.667", "63.02"]),
        (LINK[2:], ["2.667", "450.0"]),
        (LINK, ["2.667", "63.02"]),
        ([*LINK, "--nccl-log", LOG], ["2.667", "63.02"]),
    ],
    ids=["log", "topology", "both", "log twice"],
)
def test_the_link_is_said_as_far_as_it_is_known(sick, invoke, options, rates, worded):
    line = link_line(invoke(sick, *options, "-v"))
    assert rates_of(line) == rates
    worded(line)


def test_of_a_link_nothing_is_said_where_nothing_is_known(sick, invoke):
    assert link_line(invoke(sick, "-v")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "log", "topology", "rates"),
    [
        ("ddp-4gpu-shm", LOG.name, "4", ["25.41", "63.02"]),
        # Without a figure of the run only the promise.
        ("ddp-4gpu-shm-bucket100", LOG.name, "4", ["63.02"]),
        # Although no finding needs it.
        ("ddp-2gpu", "ddp-2gpu.nccl.log", "2", ["333.8", "450.0"]),
    ],
)
def test_the_link_of_a_real_run_is_said(real, invoke, run, log, topology, rates, worded):
    files = ("--nccl-log", LOGS / log, "--topology", LOGS / f"topo-{topology}gpu.txt")
    line = link_line(invoke(real / f"{run}_*.sqlite", *files, "-v"))
    assert rates_of(line) == rates
    worded(line)


@pytest.mark.slow
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
    line = link_line(invoke(*arguments, "--topology", TOPOLOGY, "-v"))
    assert line is not None
    assert line == link_line(invoke(sick, *LINK, "-v"))


def ring_log(n_ranks, transports):
    said = ""
    for rank in range(n_ranks):
        place = (
            f"ncclCommInitRank comm 0x1 rank {rank} nranks {n_ranks} cudaDev {rank} nvmlDev {rank} "
            f"busId {rank}0 commId 0x7"
        )
        after, transport = (rank + 1) % n_ranks, transports[rank % len(transports)]
        pid = PIDS[0] if rank == 0 else 3000 + rank
        channel = f"Channel 00/0 : {rank}[{rank}] -> {after}[{after}] [send] via {transport}"
        for text in (f"{place} - Init START", channel, f"{place} - Init COMPLETE"):
            said += f"host:{pid}:{pid} [{rank}] NCCL INFO {text}\n"
    return said


@pytest.mark.parametrize("transport", ["NET/AWS Libfabric/15/GDRDMA", "NEW/" + 300 * "x"])
def test_the_link_takes_three_lines_of_a_terminal(
    sick, invoke, tmp_path, monkeypatch, transport, worded
):
    monkeypatch.setenv("COLUMNS", "100")
    log = tmp_path / "nccl.log"
    log.write_text(ring_log(16, [transport, "SHM", "SHM", "SHM"]))
    lines = link_lines(invoke(sick, "--nccl-log", log, "--topology", TOPOLOGY, "-v"))
    assert 1 <= len(lines) <= 3
    assert max(map(len, lines)) <= 100
    worded(lines)


def answer(invoke, *arguments):
    found = json.loads(invoke(*arguments, "--json", "-").stdout)
    return found, {row["code"]: row for row in found["problems"]}


@pytest.mark.slow
def test_a_log_of_another_run_is_told_and_not_used(real, invoke, worded):
    options = (real / DDP, "--nccl-log", LOGS / "ddp-2gpu.nccl.log")
    found, problems = answer(invoke, *options)
    problem = problems["log-of-another-run"]
    assert problem["severity"] == "warning"
    assert "NCCL_DEBUG=INFO" in problem["fix"]
    worded(problem["message"])
    assert (found["nccl"], found["links"]) == (None, [])
    assert link_line(invoke(*options, "-v")) is None


def test_a_log_of_another_run_does_not_make_the_world_larger(real, invoke):
    found, problems = answer(
        invoke, real / "baseline.sqlite", "--nccl-log", LOGS / "ddp-4gpu.nccl.log"
    )
    assert found["run"]["world_size"] is None
    assert ("log-of-another-run" in problems, "ranks-missing" in problems) == (True, False)


def test_a_log_that_names_no_communicator_is_said_to_say_nothing_of_links(sick, invoke, tmp_path):
    log = tmp_path / "old.log"
    log.write_text(
        f"host:{PIDS[0]}:{PIDS[0]} [0] NC" + "CL INFO NCCL version 2.10.3+cuda11.3\n"
    )  # this file is no log
    found, problems = answer(invoke, sick, "--nccl-log", log)
    assert found["nccl"]["version"] == "2.10.3+cuda11.3"
    assert "INFO" in problems["log-without-communicators"]["fix"]
    assert "log-of-another-run" not in problems


def test_a_log_of_other_processes_is_told(real, invoke):
    found, problems = answer(invoke, real / DDP, "--nccl-log", SAMPLES / "ddp-4gpu-before.nccl.log")
    assert problems["log-of-other-processes"]["severity"] == "warning"
    assert len(found["links"]) == 4


def test_a_log_of_some_processes_is_told(real, invoke, tmp_path, worded):
    lines = (LOGS / "ddp-4gpu-shm.nccl.log").read_text().splitlines(keepends=True)
    pid = next(line.split(":")[1] for line in lines if " NCCL INFO " in line)
    (tmp_path / "one.log").write_text(
        "".join(line for line in lines if line.split(":")[1:2] == [pid])
    )
    _, problems = answer(invoke, real / DDP, "--nccl-log", tmp_path / "one.log")
    problem = problems["log-of-some-processes"]
    assert problem["severity"] == "info"
    worded(problem["message"])
    assert "--nccl-log 'nccl_*.log'" in problem["fix"]


@pytest.mark.slow
def test_a_topology_of_another_machine_is_told(real, invoke):
    found, problems = answer(invoke, real / DDP, *LINK[:2], "--topology", LOGS / "topo-2gpu.txt")
    problem = problems["topology-of-another-machine"]
    assert (problem["severity"], "no GPU 2, 3" in problem["message"]) == ("warning", True)
    paths = {(row["from_rank"], row["to_rank"]): row["path"] for row in found["links"]}
    # The ring is 0 -> 1 -> 2 -> 3 -> 0; GPU 2 and 3 have no row.
    assert paths == {(0, 1): "NV18", (1, 2): None, (2, 3): None, (3, 0): None}


@pytest.mark.slow
def test_files_of_this_run_are_used_and_their_settings_documented(real, invoke, worded):
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
    worded(slow["action"])
    assert slow["evidence"]["nccl_settings"] == {"NCCL_P2P_DISABLE": "1"}
    assert answer(invoke, real / DDP, *LINK[2:])[0]["nccl"] is None
