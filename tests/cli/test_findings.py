"""The summary as a person reads it: the verdict first, what to change, the link; as wide as allowed, driving no terminal."""

from __future__ import annotations

import json
import os
import re
import unicodedata

import pytest

import nsyspipe
from tests.build.programs import program
from tests.build.tools import edit
from tests.build.trace import RUNTIME, TraceBuilder, steady_rank
from tests.cli.sick_run import LINK, LOG, PIDS, TOPOLOGY
from tests.cli.tools import nsyspipe_here, nsyspipe_run, terminal_run

LOGS = LOG.parent

# By their bounds, as nothing is expected of a launch-bound run; comm-bound after its causes.
ALL = ["launch-bound", "compress-gradients", "single-bucket", "slow-link", "comm-bound", "input-bound", "grad-copy"]


@pytest.fixture
def section(invoke, monkeypatch):
    """Return a function that runs the program and returns the lines of the section about findings."""

    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = invoke(*arguments)
        assert (done.exit_code, done.stderr) == (0, ""), done
        assert max(map(len, done.stdout.splitlines())) <= columns
        _, found, tail = done.stdout.partition("What to change first")
        return (found + tail).partition("\n\n")[0].splitlines()

    return run


def test_as_many_findings_are_shown_as_asked_for_five_unless_told(sick, section, pinned_report):
    asked = {"": [], **{f"--findings {n}": ["--findings", n] for n in ("0", "2", " 3 ", "99", "ALL")}}
    found = {name: section(sick, *LINK, *options) for name, options in asked.items()}
    pinned_report("findings/sick", **{name: "\n".join(lines) for name, lines in found.items()})
    titles = [re.findall("|".join(ALL), " ".join(lines[1:])) for lines in found.values()]
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
    assert re.search(r"^34\.7 %  55\.38  30\.6 %  48\.89  single-bucket: ", done.stdout, re.MULTILINE)


def test_the_document_has_all_findings_with_figures_and_evidence(sick, invoke):
    found = json.loads(invoke(sick, *LINK, "--findings", "0", "--json", "-").stdout)
    summary, version = found["summary"], found["nccl"]["version"]
    assert summary["by_rank"]["wait_share"] == {"lowest": [0, 0], "highest": [0, 0]}
    assert (summary["message_bytes_per_step"], version) == (None, "2.28.9+cuda13.0")
    assert [row["rank"] for row in found["stragglers"]] == [0, 1]
    rows = found["findings"]
    savings = [385, 300, 300, pytest.approx(300 - 800 / 450), 300, 100, 15]
    assert [(row["id"], row["saving_ns_per_step"]) for row in rows] == list(zip(ALL, savings, strict=True))
    assert [row["severity"] for row in rows] == [*(6 * ["high"]), "low"]
    assert all(type(row["evidence"]) is dict for row in rows)
    assert rows[3]["evidence"]["link_kind"] == "shm"


SHM = "link: SHM through host memory"
UNSAID = "link: no NCCL log says what NCCL uses; the GPUs are connected by NV18"
ALTHOUGH = f"{SHM}, although the GPUs are connected by NV18; all 4 edges"
# 8 copies of 100 bytes per 300 ns, and with two ranks busbw is algbw.
REACHED = "bus bandwidth about 2.667 GB/s"
DDP = "ddp-4gpu-shm_*.sqlite"


def link_line(done):
    assert (done.exit_code, done.stderr) == (0, ""), done
    head = done.stdout.partition("\n\n")[0].partition("\nparallelism: ")[0]
    _, found, said = head.partition("\nlink: ")
    return found.strip() + " " + " ".join(said.split()) if found else None


def test_the_link_is_said_as_far_as_it_is_known(sick, invoke):
    for options, said in [
        ([], None),
        (LINK[:2], f"{SHM}; all 4 edges; {REACHED} of 63.02 GB/s nominal"),
        (LINK[2:], f"{UNSAID}; rank 0 to 1; {REACHED} of 450.0 GB/s nominal"),
        (LINK, f"{ALTHOUGH}; {REACHED} of 63.02 GB/s nominal"),
        ([*LINK, "--nccl-log", LOG], f"{ALTHOUGH}; {REACHED} of 63.02 GB/s nominal"),
    ]:
        assert link_line(invoke(sick, *options)) == said, options


@pytest.mark.parametrize(("run", "log", "topology", "said"), [
    ("ddp-4gpu-shm", LOG.name, "4", f"{ALTHOUGH}; bus bandwidth about 25.41 GB/s of 63.02 GB/s nominal"),
    # Without a figure of the run only the promise.
    ("ddp-4gpu-shm-bucket100", LOG.name, "4", f"{ALTHOUGH}; nominal 63.02 GB/s"),
    # Although no finding needs it.
    ("ddp-2gpu", "ddp-2gpu.nccl.log", "2", "link: NVLink (P2P/CUMEM over NV18); both edges; bus bandwidth about 333.8 GB/s of 450.0 GB/s nominal"),
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
    assert link_line(invoke(*arguments, "--topology", TOPOLOGY)) == f"{ALTHOUGH}; {REACHED} of 63.02 GB/s nominal"


def ring_log(n_ranks, transports):
    """Return a log of one communicator whose ring has these transports, in turn."""
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


def test_a_topology_of_another_machine_is_told(real, invoke):
    found, problems = answer(invoke, real / DDP, *LINK[:2], "--topology", LOGS / "topo-2gpu.txt")
    problem = problems["topology-of-another-machine"]
    assert (problem["severity"], "no GPU 2, 3" in problem["message"]) == ("warning", True)
    paths = {(row["from_rank"], row["to_rank"]): row["path"] for row in found["links"]}
    # The ring is 0 -> 1 -> 2 -> 3 -> 0; GPU 2 and 3 have no row.
    assert paths == {(0, 1): "NV18", (1, 2): None, (2, 3): None, (3, 0): None}


def test_files_of_this_run_are_not_accused_and_their_settings_are_in_the_document(real, invoke):
    found, problems = answer(invoke, real / DDP, *LINK)
    assert not {"log-of-another-run", "log-without-communicators", "topology-of-another-machine"} & set(problems)
    settings = {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}
    assert found["nccl"] == {"version": "2.28.9+cuda13.0", "settings": settings, "nvls": False}
    (slow,) = [row for row in found["findings"] if row["id"] == "slow-link"]
    assert slow["action"] == "unset NCCL_P2P_DISABLE: data goes over host memory"
    assert slow["evidence"]["nccl_settings"] == {"NCCL_P2P_DISABLE": "1"}
    assert answer(invoke, real / DDP, *LINK[2:])[0]["nccl"] is None


ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10[0-7])(?:;\d+)*m")
RANK_ROW = re.compile(r" *\d+ +[\d.]+ ms ")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08"


@pytest.fixture
def summary(call, monkeypatch):
    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = call("analyze", *arguments)
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout

    return run


def test_the_summary_shows_the_verdict_the_run_then_each_rank_then_the_problems(summary, steady):
    text = summary(steady)
    lines = text.splitlines()
    # All-reduce 60 of 1000 ns, 30 of them exposed and 30 under the backward kernel.
    said = "Communication is <0.001 ms (6 %) of step time, <0.001 ms (3 %) exposed; 50 % hidden by backward."
    assert lines[0] == said
    assert lines[1].startswith("steady | 2 ranks | NVIDIA H200 | 2 of 4 steps")
    assert text.index("step time") < text.index("rank  ") < text.index("info")
    ranks = [line.split() for line in lines if RANK_ROW.match(line)]
    assert [row[0] for row in ranks] == ["0", "1"]
    assert [float(row[1]) for row in ranks] == [0.001, 0.001]
    # Compute, exposed comm, exposed copies, idle; comm in all; hidden by compute, by backward; waits for others, they for it.
    assert [row[3::2] for row in ranks] == [["20.0", "3.0", "1.0", "76.0", "6.0", "50.0", "50.0", "0.0", "0"]] * 2


def test_steps_in_no_figure_are_named_with_the_reason(summary, tmp_path):
    for rank, n in enumerate((3, 5)):  # the last step of a rank is cut off, and step 3 there on one alone
        steady_rank(rank, n).write(tmp_path / f"a_{rank}.sqlite")
    text = " ".join(summary(tmp_path).split())
    assert "1 of 5 steps 'step #' (step 0 skipped, steps 2, 4 cut off, step 3 not on every rank)" in text


@pytest.mark.parametrize(
    ("columns", "what"), [(60, "steady"), (200, "long names"), (80, "long names"), (60, "no ranks"), (80, "problems")]
)
def test_the_summary_fits_the_terminal_and_never_exceeds_100_columns(summary, tmp_path, columns, what):
    without = ("NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU") if what == "problems" else ()
    name = "a" * 120 if what == "long names" else "a"
    for rank in range(2):
        builder = TraceBuilder().range(0, 1, "x") if what == "no ranks" else steady_rank(rank)
        builder.write(tmp_path / f"{name}_{rank}.sqlite", without=without)
    lines = summary(tmp_path, columns=columns).splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(("columns", "n_left_out"), [(100, 0), (91, 2), (45, 6)])
def test_who_waits_is_shown_at_any_width_and_what_is_not_is_said(summary, steady, columns, n_left_out):
    lines = summary(steady, columns=columns).splitlines()
    rows = [line.split() for line in lines if RANK_ROW.match(line)]
    assert {len(row) for row in rows} == {3 + 2 * (9 - n_left_out)}  # rank, step time; the shares
    assert {float(row[-2]) for row in rows} == {0}  # waits for others
    assert any(line.startswith("Left out, for want of width: ") for line in lines) == (n_left_out > 0)
    assert max(map(len, lines)) <= columns


def test_only_the_slowest_of_many_ranks_are_shown(summary, tmp_path):
    for rank in range(20):
        steady_rank(rank, world_size=20).write(tmp_path / f"a_{rank}.sqlite")
    text = summary(tmp_path, "-j", 1)
    assert sum(RANK_ROW.match(line) is not None for line in text.splitlines()) == 16
    assert "16 of 20 ranks: " in text


def test_a_pipe_gets_no_escape_codes_and_a_terminal_the_same_words(steady, tmp_path):
    printed = nsyspipe_here("analyze", steady, TERM="xterm-256color", COLUMNS="80").stdout
    assert ESCAPE not in printed
    assert ESCAPE not in nsyspipe_here("analyze", tmp_path / "no.sqlite", TERM="xterm-256color").stderr
    assert ESCAPE not in nsyspipe_here("schema", TERM="xterm-256color").stdout
    code, shown = terminal_run("analyze", steady, "--no-progress", columns=80)
    assert (code, "reading reports" in shown) == (0, False)
    words = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()]
    assert words == printed.splitlines()


@pytest.mark.slow
def test_no_color_is_respected_on_a_terminal_and_a_dumb_one_gets_plain_text(steady):
    for words in (["analyze", steady], ["analyze", "no.sqlite"]):
        _, shown = terminal_run(*words, NO_COLOR="1")
        assert not COLOUR.search(shown), COLOUR.findall(shown)
    assert ESCAPE not in terminal_run("analyze", steady, TERM="dumb")[1]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "stages"), [
    ("analyze {made}/reports/slow", ["reading reports"]),  # they are exports already
    ("dashboard {made}/store -o {out}.html", ["reading runs"]),
    ("dashboard {made}/slow -o {out}.html --pages {out}", ["reading runs", "writing pages"]),
    ("redact {made}/reports/slow {out}", ["copying MiB"]),
])  # fmt: skip
def test_progress_is_drawn_on_a_terminal_unless_that_is_not_wanted(made, tmp_path, words, stages):
    known = {"reading reports", "reading runs", "writing pages", "copying MiB", "exporting reports"}
    for at, (options, drawn) in enumerate([([], stages), (["--no-progress"], []), (["-q"], [])]):
        code, shown = terminal_run(*words.format(made=made, out=tmp_path / f"out{at}").split(), *options)
        assert (code, {one for one in known if one in shown}) == (0, set(drawn))
        assert not shown or options != ["-q"]


@pytest.mark.slow
def test_control_characters_from_reports_logs_and_programs_never_reach_the_terminal(tmp_path):
    builder = TraceBuilder(pid=PIDS[0]).env(RANK=0, WORLD_SIZE=1).session(10**18)
    builder.gpu(1, f"H200{EVIL}").host(f"node{EVIL}").meta(EXPORT_PRODUCT_VERSION=f"2024{EVIL}")
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"st{EVIL}ep {at}").range(at + 10, at + 50, f"{EVIL}forward")
        builder.kernel(at + 100, at + 300, launch=at + 80)
        builder.add(
            RUNTIME, start=at + 290, end=at + 1070, correlationId=builder.launch(None),
            globalTid=builder.global_tid(), nameId=builder.string(f"cudaMalloc{EVIL}"),
        )  # fmt: skip
    folder = tmp_path / "reports"
    folder.mkdir()
    builder.write(folder / f"a{EVIL}_0.sqlite")
    log = tmp_path / "nccl.log"
    log.write_text(LOG.read_text().replace("via SHM/direct/direct", f"via NEW{EVIL}/thing"))
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    program(tmp_path, "nvidia-smi", f"printf '0, H200{EVIL}, 1, 580.1\\n'")
    reading = ["--step", "^st.*ep", "--nccl-log", log, "--label", f"mine{EVIL}"]
    for words, said in [
        (["analyze", folder, *reading], "sync-bound"),
        (["analyze", folder, *reading, "--findings", "all"], "link: NEW"),
        (["analyze", folder, "--step", "nothing"], ""),
        (["doctor", folder], "H200"),
        (["doctor"], "H200"),
    ]:
        done = nsyspipe_here(*words, PATH=path)
        assert done.returncode == 0 or not said
        assert said in done.stdout
        shown = set(done.stdout + done.stderr) - {"\n"}
        assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cf")], words


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a table", "a file name", "the name of no file"])
def test_control_characters_of_what_is_no_report_never_reach_the_terminal(tmp_path, place):
    path = tmp_path / ("a.sqlite" if place == "a table" else f"a{EVIL}\nb.sqlite")
    if place == "a table":
        edit(path, f'CREATE TABLE "a{EVIL}b" ("c{EVIL}" INT)')
    elif place == "a file name":
        path.touch()
    code, shown = terminal_run("analyze", path, "--no-progress", TERM="dumb", NO_COLOR="1")
    assert (code, "\x1b]0;" in shown, "\x07" in shown) == (2, False, False)
    assert sum(not line.startswith("  ") for line in shown.splitlines()) == 1


@pytest.mark.slow
def test_a_file_name_that_is_no_utf8_is_shown_somehow(tmp_path):
    path = steady_rank(0).write(tmp_path / "caf\udce9_0.sqlite")
    assert nsyspipe.load(path).ranks.num_rows == 1
    for options in ([], ["--step", "nothing"]):
        done = nsyspipe_here("analyze", path, *options)
        assert done.returncode == (2 if "--step" in options else 0), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["analyze", "--label", "\N{SNOWMAN}"], ["doctor"]])
def test_a_terminal_that_knows_few_letters_still_gets_the_text(tmp_path, words):
    steady_rank(0).range(0, 900, "\N{SNOWMAN}" * 50).write(tmp_path / "a_0.sqlite")
    done = nsyspipe_run(*words, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
