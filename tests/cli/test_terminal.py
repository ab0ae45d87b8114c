"""The summary as a person reads it: the verdict first, as wide as allowed, and nothing that drives the terminal."""

import os
import re
import unicodedata

import pytest

import nsyspipe
from nsyspipe.report.as_text import MAX_WIDTH
from tests.build.programs import program
from tests.build.tools import edit
from tests.build.trace import RUNTIME, TraceBuilder, steady_rank
from tests.cli.sick_run import LOG, PIDS
from tests.cli.tools import nsyspipe_here, nsyspipe_run, terminal_run

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10[0-7])(?:;\d+)*m")
RANK_ROW = re.compile(r" {2,}\d+ +[<\d.]+ +[<\d.]+ ")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08"


@pytest.fixture
def summary(call, monkeypatch):
    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = call("analyze", *arguments)
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout

    return run


def test_the_summary_shows_where_a_step_goes_and_what_to_change_first(
    summary, steady, worded, monkeypatch
):
    # The length of a path decides where the next command is broken.
    monkeypatch.chdir(steady)
    text = summary(".")
    worded(text)
    # Of 1000 ns: idle, compute, exposed communication and copies; the overlap of 60 ns of
    # communication; a saving of 780 ns.
    assert re.findall(r"([\d.]+)%", text)[:6] == ["76", "20", "3", "1", "50", "78"]


def test_each_rank_has_a_row(summary, steady):
    ranks = [line.split() for line in summary(steady, "-v").splitlines() if RANK_ROW.match(line)]
    # Step time, compute, exposed communication and copies, idle, all communication, waits for
    # others, and they for it: in ms.
    of_both = ["0.0010", "0.0002", "<0.0001", "<0.0001", "0.0008", "0.0001", "0", "0"]
    assert ranks == [["0", *of_both], ["1", *of_both]]


def test_steps_in_no_figure_are_named_with_the_reason(summary, tmp_path, worded):
    for rank, n in enumerate(
        (3, 5)
    ):  # no step follows the last one of a rank, and step 3 there on one alone
        steady_rank(rank, n).write(tmp_path / f"a_{rank}.sqlite")
    worded(summary(tmp_path).partition("\n\n")[0])


@pytest.mark.parametrize(
    ("columns", "what"),
    [(60, "steady"), (200, "long names"), (80, "long names"), (60, "no ranks"), (80, "problems")],
)
def test_the_summary_fits_the_terminal_and_has_a_greatest_width(summary, tmp_path, columns, what):
    without = (
        ("NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU")
        if what == "problems"
        else ()
    )
    name = "a" * 120 if what == "long names" else "a"
    for rank in range(2):
        builder = TraceBuilder().range(0, 1, "x") if what == "no ranks" else steady_rank(rank)
        builder.write(tmp_path / f"{name}_{rank}.sqlite", without=without)
    lines = summary(tmp_path, columns=columns).splitlines()
    assert max(map(len, lines)) <= min(columns, MAX_WIDTH)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(("columns", "n_left_out"), [(100, 0), (45, 3)])
def test_who_waits_is_shown_at_any_width_and_what_is_not_is_said(
    summary, steady, columns, n_left_out
):
    lines = summary(steady, "-v", columns=columns).splitlines()
    of_ranks = [at for at, line in enumerate(lines) if RANK_ROW.match(line)]
    assert {len(lines[at].split()) for at in of_ranks} == {9 - n_left_out}
    assert {lines[at].split()[-1] for at in of_ranks} == {"0"}  # waits for others, or they for it
    # The columns that are left out are named below the table.
    assert bool(lines[of_ranks[-1] + 1].strip()) == (n_left_out > 0)
    assert max(map(len, lines)) <= columns


@pytest.mark.slow
def test_only_the_slowest_of_many_ranks_are_shown(summary, tmp_path, worded, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in range(20):
        steady_rank(rank, world_size=20).write(tmp_path / f"a_{rank}.sqlite")
    text = summary(".", "-v", "-j", 1)
    assert sum(RANK_ROW.match(line) is not None for line in text.splitlines()) == 8
    worded(text)


def test_a_pipe_gets_no_escape_codes_and_a_terminal_the_same_words(steady, tmp_path):
    printed = nsyspipe_here("analyze", steady, TERM="xterm-256color", COLUMNS="80").stdout
    assert ESCAPE not in printed
    assert (
        ESCAPE not in nsyspipe_here("analyze", tmp_path / "no.sqlite", TERM="xterm-256color").stderr
    )
    assert ESCAPE not in nsyspipe_here("schema", TERM="xterm-256color").stdout
    code, shown = terminal_run("analyze", steady, "--no-progress", columns=80)
    assert (code, "reading reports" in shown) == (0, False)
    assert [
        line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    ] == printed.splitlines()


@pytest.mark.slow
def test_no_color_is_respected_on_a_terminal_and_a_dumb_one_gets_plain_text(steady):
    for words in (["analyze", steady], ["analyze", "no.sqlite"]):
        _, shown = terminal_run(*words, NO_COLOR="1")
        assert not COLOUR.search(shown), COLOUR.findall(shown)
    assert ESCAPE not in terminal_run("analyze", steady, TERM="dumb")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "stages"),
    [
        ("analyze {made}/reports/slow", ["reading reports"]),  # they are exports already
        ("dashboard {made}/store -o {out}.html", ["reading runs"]),
        ("dashboard {made}/slow -o {out}.html --pages {out}", ["reading runs", "writing pages"]),
        ("redact {made}/reports/slow {out}", ["copying MiB"]),
    ],
)
def test_progress_is_drawn_on_a_terminal_unless_that_is_not_wanted(made, tmp_path, words, stages):
    known = {"reading reports", "reading runs", "writing pages", "copying MiB", "exporting reports"}
    for at, (options, drawn) in enumerate([([], stages), (["--no-progress"], []), (["-q"], [])]):
        code, shown = terminal_run(
            *words.format(made=made, out=tmp_path / f"out{at}").split(), *options
        )
        assert (code, {one for one in known if one in shown}) == (0, set(drawn)), at
        assert not shown or options != ["-q"], at


@pytest.mark.slow
def test_control_characters_never_reach_the_terminal(tmp_path):
    builder = TraceBuilder(pid=PIDS[0]).env(RANK=0, WORLD_SIZE=1).session(10**18)
    builder.gpu(1, f"H200{EVIL}").host(f"node{EVIL}").meta(EXPORT_PRODUCT_VERSION=f"2024{EVIL}")
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"st{EVIL}ep {at}").range(at + 10, at + 50, f"{EVIL}forward")
        builder.kernel(at + 100, at + 300, launch=at + 80)
        builder.add(
            RUNTIME,
            start=at + 290,
            end=at + 1070,
            correlationId=builder.launch(None),
            globalTid=builder.global_tid(),
            nameId=builder.string(f"cudaMalloc{EVIL}"),
        )
    folder = tmp_path / "reports"
    folder.mkdir()
    builder.write(folder / f"a{EVIL}_0.sqlite")
    log = tmp_path / "nccl.log"
    log.write_text(LOG.read_text().replace("via SHM/direct/direct", f"via NEW{EVIL}/thing"))
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    program(tmp_path, "nvidia-smi", f"printf '0, H200{EVIL}, 580.1\\n'")
    reading = ["--step", "^st.*ep", "--nccl-log", log]
    for words, said in [
        (["analyze", folder, *reading], "sync-bound"),
        (["analyze", folder, *reading, "--findings", "all"], "sync-bound"),
        (["analyze", folder, "--step", "nothing"], ""),
        (["doctor", folder], "H200"),
        (["doctor"], "H200"),
    ]:
        done = nsyspipe_here(*words, PATH=path)
        assert done.returncode == 0 or not said, words
        assert said in done.stdout, words
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
        assert "Traceback" not in done.stderr, options


@pytest.mark.slow
@pytest.mark.parametrize("words", [["analyze", "--label", "\N{SNOWMAN}"], ["doctor"]])
def test_a_terminal_that_knows_few_letters_still_gets_the_text(tmp_path, words):
    steady_rank(0).range(0, 900, "\N{SNOWMAN}" * 50).write(tmp_path / "a_0.sqlite")
    done = nsyspipe_run(*words, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
