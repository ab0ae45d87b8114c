"""What no command takes: exit code 2, one error that says what was found and what helps, and nothing is written."""

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

from nsyspipe import findings
from nsyspipe.cli.app import app
from nsyspipe.errors import DamagedReportError
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.nsys.files import check_file
from nsyspipe.replay import refusals
from tests.cli.sick_run import LOG
from tests.cli.tools import assert_refused, nsyspipe_here

# Command lines in the directory of `made`, by what is wrong with them.
WORDS_THAT_NO_COMMAND_TAKES = """
analyze
analyse slow
run_0.sqlite
analyze slow --no-such
analyze slow --htm x
analyze slow --fail-on regression
analyze slow --metric step_time
diff slow fast --min-effect
schema steps ranks
schema nope
schema STEPS
schema stepz
"""
VALUES_THAT_NO_OPTION_TAKES = """
analyze slow -j two
analyze slow -j 0
whatif slow --bucket-mb 100MB
convert slow --timeout 0
compare slow fast --sort speed
compare slow fast --sort steptime
compare slow fast --sort=
compare slow fast --confidence 2
compare slow fast --min-effect -1
diff slow fast --fail-on slower
diff slow fast --min-effect x
diff slow fast --confidence 95
diff slow fast --metric speed
diff slow fast --metric idle --metric=
diff a=reports/slow b=reports/fast --tokens-per-step c=8192
diff a=reports/slow b=reports/fast --flops-per-step a=many
diff a=reports/slow b=reports/fast --samples-per-step a=4 --samples-per-step a=8
compare reports/slow reports/fast --peak a=bf16
diff nowhere fast --fail-on regression --metric step_time --metric comm,collectives
analyze nowhere --findings=-1
analyze nowhere --findings=\u0663
analyze nowhere --findings=
doctor sick --findings x
doctor sick --skip-first x
analyze reports/slow --out x --run-id 7
analyze reports/slow --out x --run-id a/b
analyze reports/slow --out x --run-id ../up
analyze reports/slow --ranks 9
doctor sick --rank-map sick_0.sqlite=0
doctor sick --rank-map sick_0.sqlite=0,sick_1.sqlite=0
whatif nowhere --bandwidth fast
whatif nowhere --bandwidth 200Gb/s
whatif nowhere --link isdn
whatif nowhere --gradient-dtype int8
whatif nowhere --bucket-mb -1
whatif nowhere --bucket-mb 26214400
whatif nowhere --gradient-bytes nan
analyze reports/slow --scheduler here
analyze reports/slow --scheduler text.sqlite
analyze slow --perfetto x --perfetto-ranks a
analyze slow --perfetto x --perfetto-steps :
analyze slow --perfetto x --perfetto-steps a:b
analyze slow --perfetto x --perfetto-steps 3:1
analyze slow --perfetto x --perfetto-steps 14-15
"""
OPTIONS_THAT_DO_NOT_GO_TOGETHER = """
analyze slow --no-logs --nccl-log x
doctor slow --no-logs --topology x
diff slow fast --no-logs --nccl-log a=x
whatif slow --no-logs --topology x
analyze store:slow --no-logs
diff slow fast --step x --nccl-log x
diff a=slow b=reports/fast --tokens-per-step a=8192
diff a=slow b=fast --tokens-per-step a=8192
doctor store --comm-kernel x
whatif nowhere --link shm --bandwidth 1GB/s
analyze reports/slow --scheduler tcp://h:1 -j 2
analyze reports/slow --events
analyze slow --perfetto-steps 1:2
analyze slow --perfetto-ranks 1
analyze reports/slow --steps 12 --step none
doctor reports/slow --steps 12 --step ^it
analyze x=reports/slow --label y
whatif slow --link nvlink4 --link shm
diff slow slow --json - --json a.json
"""
SIDES_AND_LABELS = """
diff slow
diff slow fast wide
diff slow store
diff store
diff a=slow a=fast
diff a=slow a=slow fast
diff --against slow reports/slow
diff --against run slow
diff --against slow slow:run
diff --against run slow:run
diff --against run store run
diff --against none store
diff --against run store fast wide
compare a=slow a=slow
whatif x=slow y=slow
"""
PLACES_TO_WRITE = """
compare slow fast --html -
compare slow fast --csv a --json a
compare slow fast --csv no/where.csv
diff slow fast --json x --markdown x
diff slow fast --json no/such/place.json
diff slow fast --html -
analyze slow --json - --markdown -
analyze slow --json x --html ./x
analyze slow --html -
analyze slow --open
analyze slow --perfetto -
analyze slow --out -
analyze slow --out reports/fast
analyze slow --perfetto x.json
analyze reports/slow --json /no/such/x.json
analyze reports/slow --json no/such/x.json
dashboard slow
dashboard slow -o x.png
dashboard slow -o - --open
dashboard store -o store/runs/x.html
redact slow.sqlite
"""
SIDE_FILES = (
    "--nccl-log none.log",
    "--nccl-log none_*.log",
    "--nccl-log sick",
    "--nccl-log plain.txt",
    "--topology none.txt",
    "--topology sick",
    "--topology plain.txt",
    "--nccl-log sick/sick_0.sqlite",
    "--nccl-log LOG plain.txt",
    "--nccl-log LOG --topology LOG",
    "--nccl-log=",
    "--topology=",
)
# A text among the reports is no log unless one was asked for.
LOGS_AND_TOPOLOGIES = ["analyze sick LOG", "analyze text.sqlite --nccl-log plain.txt"] + [
    f"{command} sick {options}" for command in ("analyze", "doctor") for options in SIDE_FILES
]
INPUTS = """
compare slow nothing_*.sqlite
compare slow b=nothing.sqlite
compare slow text.sqlite
diff slow nowhere
diff run_0.nsys-rep run_1.nsys-rep
analyze reports
analyze nowhere -q
analyze nowhere/
analyze stor:slow
analyze stor:run
analyze store/run
doctor stor:run
doctor store/run
whatif stor:run
whatif store/run
diff slow stor:run
diff slow store/run
analyze answer.html
analyze answer.json
analyze answer.pftrace
analyze answer.ipynb
analyze store/runs
diff slow answer.html
diff slow answer.json
doctor answer.html
doctor answer.json
doctor no.sqlite
doctor text.sqlite
doctor bare.sqlite
doctor nothing
doctor store:nope
convert store:nope
convert nothing
convert *.nothing
convert text.sqlite
convert answer.html
convert plain.txt
dashboard nowhere -o page.html
dashboard nothing -o page.html
dashboard reports/slow -o x.html
dashboard answer.html -o x
dashboard store/runs -o x
redact store:nope out
redact text.sqlite out.sqlite
redact bare.sqlite out.sqlite
redact stub.sqlite out.sqlite
redact nowhere.sqlite out.sqlite
redact nothing out
"""
EMPTY_OR_UNPRINTABLE = [
    ["schema", ""],
    ["doctor", ""],
    ["convert", ""],
    ["analyze", "slow", "--json", ""],
    ["analyze", "reports/slow", "--scheduler", ""],
    ["analyze", "nowhere", "--findings=all of them"],
    ["doctor", "sick", "--rank-map", "no such file"],
    ["compare", "a\nb=reports/slow"],
    *(
        [command, "reports/slow", option, name]
        for command in ("analyze", "doctor")
        for option in ("--run-id", "--label")
        for name in ("a\nb", "", "x" * 101, "\x1b[31m")
    ),
]
REFUSED = [
    *(
        line.split()
        for lines in (
            WORDS_THAT_NO_COMMAND_TAKES,
            VALUES_THAT_NO_OPTION_TAKES,
            OPTIONS_THAT_DO_NOT_GO_TOGETHER,
            SIDES_AND_LABELS,
            PLACES_TO_WRITE,
            INPUTS,
        )
        for line in lines.strip().splitlines()
    ),
    *(line.split() for line in LOGS_AND_TOPOLOGIES),
    *EMPTY_OR_UNPRINTABLE,
]


def case_name(words):
    return " ".join(
        word if word.isprintable() and word and " " not in word else repr(word) for word in words
    )


@pytest.mark.parametrize("words", REFUSED, ids=case_name)
def test_what_cannot_be_used_is_refused_in_one_line(made, words, worded):
    before = sorted(made.iterdir())
    done = nsyspipe_here(*(str(LOG) if word == "LOG" else word for word in words), cwd=made)
    assert_refused(done)
    assert sorted(made.iterdir()) == before
    worded(done.stderr)


def test_an_error_names_the_report_that_was_given_and_not_its_export(tmp_path):
    (export := tmp_path / "a.sqlite").touch()
    with pytest.raises(DamagedReportError) as refused:
        check_file(ReportFile.of("a.nsys-rep").exported_to(export))
    assert refused.value.subject == "a.nsys-rep"


def test_shared_messages_name_options_that_each_command_has():
    options = {
        name: {long for one in command.params for long in one.opts}
        for name, command in get_command(app).commands.items()
    }
    shared = set.intersection(
        *(options[name] for name in ("analyze", "doctor", "diff", "compare", "whatif"))
    )
    texts = {code: f"{kind.message} {kind.fix}" for code, kind in CATALOGUE.items()}
    texts |= {
        name: inspect.getsource(one)
        for name, one in vars(refusals).items()
        if inspect.isgeneratorfunction(one)
    }
    texts |= {path.name: path.read_text() for path in Path(findings.__file__).parent.glob("*.py")}
    for where, text in texts.items():
        for command, words in re.findall(r"nsyspipe (\w+)((?: --[\w-]+(?: [A-Z0-9]\w*)?)+)", text):
            assert {*re.findall(r"--[a-z-]+", words)} <= options[command], where
        alone = re.sub(r"nsyspipe \w+(?: --[\w-]+(?: [A-Z0-9]\w*)?)+", "", text)
        named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", alone)}
        assert named & set.union(*options.values()) <= shared, (
            where
        )  # others are of nsys, or Megatron
