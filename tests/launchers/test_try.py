"""A trial of what analyze advises: which captures it takes, what is changed in them, and what it says in the end."""

import importlib.util
import json
import re
import shlex
import shutil
import sys

import pytest

from nsyspipe.findings import judge
from tests.build.programs import program
from tests.build.trace import TraceBuilder
from tests.launchers.fakes import LAUNCHERS

SAMPLES = LAUNCHERS.parent / "sample_reports"
# A capture is that of its side.
BY_SIDE = """
name=$(basename "$out"); side=${name%%-*}
"$@" && echo "${name%_*}" "${NCCL_P2P_DISABLE:--}" "${NCCL_MAX_CTAS:--}" >> order
cp "$reports/ddp-4gpu-${side}_$RANK.sqlite" "$out.nsys-rep"
"""
TRAIN = (
    "import os, sys\nif os.environ['RANK'] == '0':\n    print(*sys.argv[1:], file=open('words', "
    "'a'))\n"
)
# Stands in for ddp.sh where a test is about what the trial asks of it: what the fake nsys does for
# each rank, without the programs around it.
DDP = r"""
while [ "$1" != -- ]; do
  case $1 in -o) out=$2 ;; -n) n=$2 ;; esac
  shift
done
shift
name=${out##*/} rank=0
side=${name%%-*}
echo "$name ${NCCL_P2P_DISABLE:--} ${NCCL_MAX_CTAS:--}" >> order
echo "$@" >> words
mkdir -p "${out%/*}"
while [ $rank -lt "$n" ]; do
  cp "REPORTS/${name}_$rank.sqlite" "${out}_$rank.sqlite" 2>/dev/null ||
    cp "REPORTS/ddp-4gpu-${side}_$rank.sqlite" "${out}_$rank.sqlite"
  rank=$((rank + 1))
done"""


@pytest.fixture
def lab(answering_lab):
    (answering_lab.root / "launchers" / "train_vit.py").write_text(TRAIN)
    return answering_lab


@pytest.fixture
def refused(monkeypatch, tmp_path, capfd):
    """Return a function that starts the program of a trial in this process: the error that it ends with."""
    spec = importlib.util.spec_from_file_location("trial", LAUNCHERS / "trial.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "trial", module)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)

    def start(*words):
        monkeypatch.setattr(sys, "argv", ["trial.py", *words])
        assert module.main() == 2
        told = capfd.readouterr()
        assert told.out == ""
        _, error, rest = told.err.partition("error: ")
        return (error + rest).rstrip("\n")

    start.module = module
    return start


def trial_of_stand_ins(lab, *words, reports=SAMPLES):
    program(lab.root / "launchers", "ddp.sh", DDP.replace("REPORTS", str(reports)))
    return trial(lab, *words)


def trial(lab, *words):
    lab.reports = SAMPLES
    lab.put_nsys(BY_SIDE)
    lab.put_gpus(4)
    answer = lab.run("try.sh", *words, timeout=240, folder=lab.root / "launchers")
    order = lab.work / "order"
    return answer, list(dict.fromkeys(order.read_text().splitlines())) if order.exists() else []


@pytest.mark.slow
def test_try_tests_the_best_advice_and_prints_predicted_and_measured(lab):
    answer, order = trial(lab, "-n", "4", "-o", "t", "--captures", "1", "--", "--lr", "1")
    assert answer.status == 0, answer.err
    assert order == ["before-1 - -", "after-1 - -"]
    assert (lab.work / "words").read_text() == "--lr 1\n--lr 1 --bucket-cap-mb 25\n"
    told = dict(line.split(maxsplit=1) for line in answer.out.splitlines()[-4:])
    told.pop("page:")
    # By the samples' own figures: steps of 644.79 and 572.09 ms. The replay has one of 573.52 ms
    # (568.52 to 586.49), and 71.45 ms less: 71.45 + 573.52 - 586.49 = 58.48, and 71.45 + 573.52 -
    # 568.52 = 76.45.
    assert told["tried"].startswith("--bucket-cap-mb 25 (single-bucket: ")
    assert told["steps"] == "644.79 ms before, 572.09 ms after"
    promised = (
        "predicted 71.45 ms less a step (58.48 ms to 76.45 ms), measured 72.71 ms less a step "
        "(95%: "
    )
    assert told["so"].startswith(promised)
    assert told["so"].endswith("): as predicted")
    result = json.loads((lab.work / "t" / "trial.json").read_text())
    assert (result["finding"]["id"], result["change"]) == ("single-bucket", "--bucket-cap-mb 25")
    assert (lab.work / "t" / "diff.html").exists()


@pytest.mark.slow
def test_try_removes_a_setting_that_keeps_nccl_from_a_faster_link(lab):
    lab.variables = {"NCCL_P2P_DISABLE": "1"}
    answer, order = trial_of_stand_ins(
        lab, "-n", "4", "-o", "t", "--captures", "1", "--finding", "slow-link"
    )
    assert answer.status == 0, answer.err
    assert order == ["before-1 1 -", "after-1 - -"]
    assert "\ntried  unset NCCL_P2P_DISABLE (slow-link: " in answer.out


@pytest.mark.slow
def test_captures_alternate_and_host_steps_serve_a_job_without_gpu(lab, tmp_path):
    # Host steps of 90, 100, 110 ms before and 50, 60, 70 after, on two ranks of which the second
    # takes 1 ms more.
    for side, lengths in (("before", (90, 100, 110)), ("after", (50, 60, 70))):
        for number, ms in enumerate(lengths, 1):
            for rank in range(2):
                builder = (
                    TraceBuilder(pid=1000 + rank)
                    .env(RANK=rank, WORLD_SIZE=2)
                    .session(10**18 + number)
                )
                for step in range(3):
                    builder.range(step * 10**9, step * 10**9 + (ms + rank) * 10**6, f"step {step}")
                builder.write(tmp_path / f"{side}-{number}_{rank}.sqlite")
    secret = ("--set", "WANDB_API_KEY=s3cret", "--with", "--token s3cret")
    answer, order = trial_of_stand_ins(
        lab, "-n", "2", "--cpu", "-o", "t", "--set", "NCCL_MAX_CTAS=8", *secret, reports=tmp_path
    )
    assert answer.status == 0, answer.err
    sides = ("before-1", "after-1", "after-2", "before-2", "before-3", "after-3")
    assert order == [f"{name} - {'8' if 'after' in name else '-'}" for name in sides]
    assert "tried  NCCL_MAX_CTAS=8 WANDB_API_KEY=" in answer.out
    assert "s3cret" not in answer.out + answer.err + (lab.work / "t" / "trial.json").read_text()
    before, after = (
        "101.00 ms (91.00 ms, 101.00 ms, 111.00 ms)",
        "61.00 ms (51.00 ms, 61.00 ms, 71.00 ms)",
    )
    assert f"and each: {before} before, {after} after\n" in answer.out


@pytest.mark.slow
def test_what_no_launcher_can_change_is_said_with_how_to_try_it(lab, worded):
    shutil.copy(LAUNCHERS / "run_module.py", lab.work / "train.py")
    (lab.work / "train.py").write_text(TRAIN)
    answer, order = trial_of_stand_ins(
        lab, "-n", "4", "-o", "t", "--captures", "1", "--program", "train.py"
    )
    assert (answer.status, len(order)) == (2, 1)
    # Behind the others: comm-bound, which they lessen, and slow-link, since what connects the GPUs
    # was not recorded.
    assert re.search("single-bucket, .*comm-bound, .*slow-link", answer.err), answer.err
    assert "--takes 'ID=WORDS" in answer.err
    (kept,) = [line for line in answer.err.splitlines() if line.startswith("note: t ")]
    assert "(before-1)" in kept
    assert "--force" in kept
    worded(kept, "kept")
    worded(lab.refusal(answer), "refused")
    words = (
        "-n",
        "4",
        "-o",
        "u",
        "--captures",
        "1",
        "--program",
        "train.py",
        "--takes",
        "grad-copy=--view yes",
    )
    answer, _ = trial_of_stand_ins(lab, *words)
    assert answer.status == 0, answer.err
    assert (lab.work / "words").read_text().endswith("\n--view yes\n")


REFUSED = [
    # The command, and what its error begins with.
    ("--captures 0", "--captures 0"),
    ("--captures two", "--captures two"),
    ("--captures=", "--captures"),
    ("--set", "--set"),
    ("--set NCCL", "'NCCL'"),
    ("--finding grad-copy --with --view", "--finding"),
    ("--finding nonsense", "--finding nonsense"),
    ("--takes grad_copy=--x", "--takes grad_copy"),
    ("--finding straggler", "--finding straggler"),
    ('--with "--name it\'s"', '"--name it\'s"'),
    ("""--takes "grad-copy='x" """, '"\'x"'),
    ("--nproc 4", "--nproc"),
    ("-o a --output b", "--output"),
    ("--with --a --with --b", "--with"),
    ("--program x.py -m x", "--program"),
]


@pytest.mark.parametrize(("words", "blamed"), REFUSED, ids=[words for words, _ in REFUSED])
def test_words_that_cannot_be_followed_are_refused_before_anything_is_captured(
    refused, tmp_path, worded, words, blamed
):
    error = refused("-n", "2", *shlex.split(words))
    assert error.startswith(f"error: {blamed}")
    worded(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dry_run_shows_the_first_capture_and_says_what_the_others_are(lab, worded):
    answer, order = trial(lab, "-n", "2", "--dry-run")
    assert (answer.status, order, answer.out.count("before-1")) == (0, [], 2)
    worded(answer.err.splitlines()[-1], "advice")
    lab.variables["NCCL_P2P_DISABLE"] = "1"
    words = ("--with", "--hook bf16", "--set", "NCCL_MAX_CTAS=8", "--set", "NCCL_P2P_DISABLE=")
    answer, order = trial(lab, "-n", "2", "--dry-run", *words)
    assert (answer.status, order) == (0, [])
    before, after = map(shlex.split, answer.out.splitlines())
    assert ("NCCL_MAX_CTAS=8" in before, "-u" in before, before[-1]) == (
        False,
        False,
        str(lab.root / "launchers" / "train_vit.py"),
    )
    assert (after[1:3], after[-2:]) == (["-u", "NCCL_P2P_DISABLE"], ["--hook", "bf16"])
    assert "NCCL_MAX_CTAS=8" in after
    worded(answer.err.splitlines()[-1], "a change")


def test_a_change_of_the_trace_takes_the_place_of_the_users(refused):
    words = ["-n", "2", "--trace", "nvtx", "--trace=osrt", "--cpu"]
    assert refused.module._without(words, "--trace") == ["-n", "2", "--cpu"]


def test_a_trial_knows_the_findings_that_analyze_has(refused):
    rules = {rule.__name__.replace("_", "-") for rule in judge.RULES}
    assert refused.module._findings() == rules
