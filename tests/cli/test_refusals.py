"""What no command takes: exit code 2, one error that says what was found and what helps, and nothing is written."""

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

from nsyspipe import findings
from nsyspipe.cli.app import app
from nsyspipe.cli.outputs import print_error
from nsyspipe.errors import InputError
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.nsys import find_reports
from nsyspipe.replay import knobs
from tests.cli.sick_run import LOG
from tests.cli.tools import assert_refused, nsyspipe_here

# A command line in the directory of `made`, and what the error says.
ASKED = [
    # Words that no command takes.
    ("analyze", "nsyspipe analyze: missing argument 'REPORTS...'\n  fix: nsyspipe analyze REPORTS... [OPTIONS]"),
    ("analyse slow", "no such command 'analyse'\n  fix: nsyspipe analyze\n"),
    ("run_0.sqlite", "fix: nsyspipe analyze REPORTS, or"), ("analyze slow --no-such", "fix: nsyspipe analyze --help"),
    ("analyze slow --htm x", "--htm: nsyspipe analyze has no such option\n  fix: --html\n"),
    ("analyze slow --fail-on regression", "fix: it is an option of diff\n"),
    ("diff slow fast --min-effect", "--min-effect: requires an argument\n  fix: --min-effect PCT|PCT%\n"),
    ("schema steps ranks", "fix: nsyspipe schema [TABLE] [OPTIONS]\n"),
    ("analyze slow -j two", "--jobs two: is no whole number from 1\n  fix: --jobs N\n"), ("analyze slow -j 0", "fix: --jobs N"),
    ("whatif slow --bucket-mb 100MB", "--bucket-mb 100MB: is no number\n  fix: --bucket-mb MIB, without a unit\n"),
    ("convert slow --timeout 0", "--timeout 0: is no number from 1"),
    ("compare slow nothing_*.sqlite", "nothing_*.sqlite"), ("compare slow b=nothing.sqlite", "nothing.sqlite"),
    ("analyze slow --no-logs --nccl-log x", "--no-logs with --nccl-log: "),
    ("doctor slow --no-logs --topology x", "--no-logs with --topology: "),
    ("diff slow fast --no-logs --nccl-log a=x", "--no-logs with --nccl-log: "),
    ("whatif slow --no-logs --topology x", "--no-logs with --topology: "), ("analyze store:slow --no-logs", "--no-logs: "),
    ("diff slow store", "holds 5 runs"), ("compare slow fast --sort speed", "found: step_time, throughput"),
    ("compare slow fast --sort=", "there is no such metric"), ("compare slow fast --confidence 2", "--confidence"),
    ("compare slow fast --min-effect -1", "--min-effect"), ("compare slow fast --html -", "cannot be printed"),
    ("compare slow fast --csv a --json a", "both write a"),
    ("compare slow fast --csv no/where.csv", "no/where.csv"), ("compare a=slow a=slow", "twice"),
    ("compare slow text.sqlite", "text.sqlite"), ("diff slow", "and 1 is named: the candidate is missing"),
    ("diff slow fast wide", "compares two runs, and 3 are named"),
    ("diff a=slow a=fast", "CANDIDATE; one label is one side"), ("diff slow fast --fail-on slower", "is no gate"),
    ("diff slow fast --min-effect x", "no percentage"), ("diff slow fast --confidence 95", "between 0.5 and 1"),
    ("diff slow fast --metric speed", "no such metric"), ("diff slow fast --metric idle --metric=", "no such metric"),
    ("diff nowhere fast --fail-on regression --metric step_time --metric comm,collectives",
     "comm, collectives are neither better lower nor higher"),
    ("diff slow nowhere", "nowhere"), ("diff --against slow reports/slow", "is no store, in which labels name runs"),
    ("diff --against run slow", "slow has no other label, and no candidate is named"),
    ("diff --against slow slow:run", "slow:run is no store, in which labels name runs\n  fix: nsyspipe diff --against slow slow run\n"),
    ("diff --against run slow:run", "slow:run is no store, in which labels name runs\n  fix: nsyspipe diff --against run slow\n"),
    ("diff --against run store run", "run: is the label of the baseline"),
    ("diff --against none store", "store has no run of that label"),
    ("diff --against run store fast wide", "compares two runs, and 3 are named"),
    ("diff slow fast --json x --markdown x", "both write x"),
    ("diff slow fast --json no/such/place.json", "cannot be written: its directory is not there\n  fix: mkdir -p no/such"),
    ("diff slow fast --html -", "--html -: cannot be printed"),
    ("diff slow fast --step x --nccl-log x", "--step, --nccl-log: says how reports are read"), ("diff a=slow a=slow fast", "has the capture"),
    # Of a question, before anything is read.
    ("whatif nowhere --bandwidth fast", "is no bandwidth"), ("whatif nowhere --bandwidth 200Gb/s", "25GB/s"),
    ("whatif nowhere --link isdn", "it: --bandwidth 300GB/s"),
    ("whatif nowhere --link shm --bandwidth 1GB/s", "say the same thing twice"),
    ("whatif nowhere --gradient-dtype int8", "bf16, fp16"),
    ("whatif nowhere --bucket-mb -1", "is not a positive number"),
    ("whatif nowhere --bucket-mb 26214400", "is more than a GPU holds"),
    ("whatif nowhere --gradient-bytes nan", "is not a positive number"),
    # Who reads the reports.
    ("analyze reports/slow --scheduler here", "--scheduler here: is no address of a scheduler, and no such file is there"),
    ("analyze reports/slow --scheduler text.sqlite", "is no file that Dask's scheduler wrote"),
    ("analyze reports/slow --scheduler tcp://h:1 -j 2", "-j 2 with --scheduler: counts processes of this machine"),
    # Outputs.
    ("analyze slow --json - --markdown -", "--json and --markdown: both write -"),
    ("analyze slow --json x --html ./x", "--json and --html: both write ./x"),
    ("analyze slow --html -", "--html -: cannot be printed"), ("analyze slow --open", "fix: --html FILE --open"),
    ("dashboard slow -o - --open", "fix: -o slow.html --open"),
    ("whatif x=slow y=slow", "names several runs, where one is meant"),
    ("diff run_0.nsys-rep run_1.nsys-rep", "no such file"), ("redact slow.sqlite", "needs a place for the copies"),
    ("analyze slow --perfetto -", "--perfetto -: cannot be printed"),
    ("analyze slow --out -", "--out -: cannot be printed"), ("analyze slow --out reports/fast", "fix: --out reports/fast/runs"),
    ("analyze reports/slow --events", "--events: belongs to a dataset"),
    ("analyze slow --perfetto-steps 1:2", "--perfetto-steps: belongs to a trace"),
    ("analyze slow --perfetto x.json", "--perfetto x.json: is named as what --json writes"),
    ("analyze slow --metric step_time", "it is an option of diff"), (["analyze", "reports/slow", "--scheduler", ""], "names no scheduler"),
    ("analyze slow --perfetto-ranks 1", "--perfetto-ranks: belongs to a trace"),
    ("analyze slow --perfetto x --perfetto-ranks a", "'a' is neither a rank nor a range of ranks"),
    ("analyze slow --perfetto x --perfetto-steps :", "is no FROM:TO"),
    ("analyze slow --perfetto x --perfetto-steps a:b", "is no FROM:TO"),
    ("analyze slow --perfetto x --perfetto-steps 3:1", "ends before it starts"),
    ("analyze slow --perfetto x --perfetto-steps 14-15", "fix: --perfetto-steps 14:15"),
    ("analyze reports", "reports: those are in reports/again/"), ("dashboard slow -o x.png", "fix: x.html"),
    ("whatif slow --link nvlink4 --link shm", "--link: takes one value, and is given several"),
    ("diff slow slow --json - --json a.json", "--json: takes one value, and is given several"),
    ("analyze reports/slow --out x --run-id 7", "reads like a number"),
    ("analyze reports/slow --out x --run-id a/b", "names a directory"),
    ("analyze reports/slow --out x --run-id ../up", "names a directory"),
    *(([command, "reports/slow", option, name], f"{option} {name[:100]!r}: is empty, longer than 100, or has what cannot be printed")
      for command in ("analyze", "doctor") for option in ("--run-id", "--label") for name in ("a\nb", "", "x" * 101, "\x1b[31m")),
    (["compare", "a\nb=reports/slow"], "label 'a\\nb': is empty, longer than 100, or has what cannot be printed"),
    # How many findings, before anything is read.
    *((["analyze", "nowhere", f"--findings={n}"], "--findings") for n in ("-1", "all of them", "\u0663")),
    ("analyze nowhere --findings=", "--findings"), ("analyze nowhere -q", "nowhere"),
    # NCCL's log and the topology; a text among the reports is no log unless one was asked for.
    (f"analyze sick {LOG}", LOG.name), ("analyze text.sqlite --nccl-log plain.txt", "plain.txt"),
    *(
        (f"{command} sick {options}", words)
        for command in ("analyze", "doctor")
        for options, words in [
            *((f"--nccl-log {name}", name) for name in ("none.log", "none_*.log", "sick", "plain.txt")),
            *((f"--topology {name}", name) for name in ("none.txt", "sick", "plain.txt")),
            ("--nccl-log sick/sick_0.sqlite", "sick_0.sqlite"), (f"--nccl-log {LOG} plain.txt", "plain.txt"),
            (f"--nccl-log {LOG} --topology {LOG}", LOG.name), ("--nccl-log=", ""), ("--topology=", ""),
        ]
    ),
    ("doctor sick --rank-map sick_0.sqlite=0", "sick_1"),
    ("doctor sick --rank-map sick_0.sqlite=0,sick_1.sqlite=0", "rank"),
    (["doctor", "sick", "--rank-map", "no such file"], "--rank-map"), ("doctor sick --skip-first x", "--skip-first"),
    ("doctor sick --findings x", "--findings"), ("doctor store --comm-kernel x", "--comm-kernel: says how reports are read, and store has"),
    # Inputs.
    *((f"{command} store:nope{more}", "store:nope: has no such run\n  found: ") for command, more in (("doctor", ""), ("redact", " out"), ("convert", ""))),
    ("doctor no.sqlite", "no.sqlite"), (["doctor", ""], ""), ("doctor text.sqlite", "text.sqlite"),
    ("doctor bare.sqlite", "bare.sqlite"), ("doctor nothing", "nothing"), (["convert", ""], ""),
    ("convert nothing", "nothing"), ("convert *.nothing", "*.nothing"), ("convert text.sqlite", "text.sqlite"),
    ("dashboard slow", "fix: -o slow.html"), ("dashboard nowhere -o page.html", "--out nowhere"),
    ("dashboard nothing -o page.html", "--out nothing"),
    ("dashboard reports/slow -o x.html", "holds no saved run\n  fix: nsyspipe analyze 'reports/slow/run_*.sqlite' --out runs\n"),
    ("schema stepz", "fix: nsyspipe schema steps\n"), ("compare slow fast --sort steptime", "fix: --sort step_time\n"),
    ("analyze nowhere/", "nowhere: no such file or directory"), ("analyze stor:slow", "store/ and 3 more reports in"),
    *((f"{command} {place}", f"{place}: no such file or directory\n  found: ") for command in ("analyze", "doctor") for place in ("stor:run", "store/run")),
    *((f"{command} {place}", "\n  fix: store:run\n") for command in ("analyze", "doctor", "whatif", "diff slow") for place in ("stor:run", "store/run")),
    ("analyze reports/slow --steps 12 --step none", "--steps 12: says how many steps to find by repetition, which --step none does not\n"),
    ("doctor reports/slow --steps 12 --step ^it", "--steps 12: says how many"),
    ("analyze x=reports/slow --label y", "--label y: is another name than that of x=reports/slow\n  fix: leave one out: "),
    ("analyze reports/slow --json /no/such/x.json", "  fix: mkdir -p /no/such, or another directory\n"),
    ("analyze reports/slow --json no/such/x.json", "  fix: mkdir -p no/such, or another directory\n"),
    *((f"{command} answer{suffix}", f"answer{suffix}: {what}, where a report was needed\n  fix: pass the reports of a capture")
      for command in ("analyze", "diff slow", "doctor") for suffix, what in [(".html", "a page"), (".json", "a JSON document")]),
    ("analyze answer.pftrace", "answer.pftrace: a trace for Perfetto, where"), ("convert answer.html", "a page, where a report to export was needed"), ("convert plain.txt", "not named as a report of nsys"),
    ("dashboard store -o store/runs/x.html", "lies among the files of a dataset"), (["analyze", "slow", "--json", ""], "names no file to write"),
    ("analyze reports/slow --ranks 9", "fix: --ranks 0"),
    ("analyze answer.ipynb", ": a notebook, where"),
    ("dashboard answer.html -o x", "answer.html: a page, where a store was needed\n  fix: name the store, a directory"),
    ("analyze store/runs", "a directory inside a store of saved runs"), ("dashboard store/runs -o x", "fix: store\n"),
    ("diff store", "compares two runs"), ("redact text.sqlite out.sqlite", "text.sqlite"),
    ("redact bare.sqlite out.sqlite", "bare.sqlite"), ("redact stub.sqlite out.sqlite", "stub.sqlite"),
    ("redact nowhere.sqlite out.sqlite", "no such file"), ("redact nothing out", "nothing"),
    *((["schema", name], "found: ") for name in ("nope", "STEPS", "")),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), ASKED, ids=lambda part: " ".join(part) if isinstance(part, list) else part)
def test_what_cannot_be_used_is_refused_in_one_line(made, words, said):
    before = sorted(made.iterdir())
    done = nsyspipe_here(*(words.split() if isinstance(words, str) else words), cwd=made)
    assert_refused(done)
    assert said in done.stderr
    assert sorted(made.iterdir()) == before


def test_an_error_names_the_report_that_was_given_and_not_its_export(capsys, monkeypatch):
    monkeypatch.setitem(find_reports._SOURCES, Path("/cache/x/a.sqlite"), Path("a.nsys-rep"))
    print_error(InputError("/cache/x/a.sqlite", "is truncated"))
    assert capsys.readouterr().err == "error: a.nsys-rep: is truncated\n"


def test_what_several_commands_print_names_options_that_each_of_them_has_or_the_command_too():
    options = {name: {long for one in command.params for long in one.opts} for name, command in get_command(app).commands.items()}  # fmt: skip
    shared = set.intersection(*(options[name] for name in ("analyze", "doctor", "diff", "compare", "whatif")))
    texts = {code: f"{kind.message} {kind.fix}" for code, kind in CATALOGUE.items()}
    texts |= {name: inspect.getsource(one) for name, one in vars(knobs).items() if inspect.isgeneratorfunction(one)}
    texts |= {path.name: path.read_text() for path in Path(findings.__file__).parent.glob("*.py")}
    for where, text in texts.items():
        for command, words in re.findall(r"nsyspipe (\w+)((?: --[\w-]+(?: [A-Z0-9]\w*)?)+)", text):
            assert {*re.findall(r"--[a-z-]+", words)} <= options[command], where
        alone = re.sub(r"nsyspipe \w+(?: --[\w-]+(?: [A-Z0-9]\w*)?)+", "", text)
        named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", alone)}
        assert named & set.union(*options.values()) <= shared, where  # others are of nsys, or Megatron
