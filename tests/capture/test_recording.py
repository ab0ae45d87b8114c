"""What an nsys records beside its traces: whether it can, and what is said if it cannot."""

import pytest

from nsyspipe.capture.plan import main
from nsyspipe.capture.recording import PYTHON_SAMPLING_HZ, counting_option, python_sampling
from nsyspipe.errors import CaptureError, OptionError
from nsyspipe.nsys.programs import find
from tests.build.fake_nsys import (
    COUNTERS,
    NEW_OPTIONS,
    NO_COUNTERS,
    NOT_ALLOWED,
    OLD_OPTIONS,
    fake_nsys,
)
from tests.build.programs import HELP

SAMPLES = f"{HELP}\n\t--python-sampling=\n\n\t--python-sampling-frequency=\n"
COUNTS = f"{HELP}\n\t--gpu-metrics-devices=\n"
COUNTED_BEFORE_2024_5 = f"{HELP}\n\t--gpu-metrics-device=\n"


def nsys(folder, profile, options=NEW_OPTIONS, counters=COUNTERS):
    return find(str(fake_nsys(folder, profile=profile, options=options, counters=counters)))


def test_python_is_sampled_if_the_samples_can_be_exported(tmp_path):
    sampling = python_sampling(nsys(tmp_path, SAMPLES))
    frequency = f"--python-sampling-frequency={PYTHON_SAMPLING_HZ}"
    assert sampling.options == ("--python-sampling=true", frequency)
    assert sampling.note is None


@pytest.mark.parametrize(
    ("profile", "options"),
    [(HELP, NEW_OPTIONS), (SAMPLES, OLD_OPTIONS)],
    ids=["no sampling", "no export"],
)
def test_python_is_not_sampled_if_nobody_can_read_it(tmp_path, worded, profile, options):
    sampling = python_sampling(nsys(tmp_path, profile, options))
    assert sampling.options == ()
    assert "2024.2.3.38" in sampling.note
    worded(sampling.note)


def test_the_option_that_counts_has_two_names(tmp_path):
    assert counting_option(nsys(tmp_path, COUNTS)) == "--gpu-metrics-devices=all"
    old = nsys(tmp_path, COUNTED_BEFORE_2024_5)
    assert counting_option(old) == "--gpu-metrics-device=all"


def test_an_nsys_that_says_nothing_may_count(tmp_path):
    assert counting_option(nsys(tmp_path, COUNTS, counters="")) == "--gpu-metrics-devices=all"


def test_an_nsys_that_cannot_count_is_refused(tmp_path, worded):
    with pytest.raises(OptionError, match="gpu-metrics") as caught:
        counting_option(nsys(tmp_path, HELP))
    worded(caught.value.lines())


@pytest.mark.parametrize(
    ("counters", "fix"),
    [(NOT_ALLOWED, "NVreg_RestrictProfilingToAdminUsers=0"), (NO_COUNTERS, "")],
    ids=["not allowed", "no GPU"],
)
def test_an_nsys_that_may_not_count_is_refused_before_the_job(tmp_path, worded, counters, fix):
    with pytest.raises(CaptureError, match="count on the GPUs") as caught:
        counting_option(nsys(tmp_path, COUNTS, counters=counters))
    assert fix in caught.value.fix
    worded(caught.value.lines())


def test_a_dry_run_only_notes_that_nsys_may_not_count(tmp_path, capsys):
    tool = nsys(tmp_path, COUNTS, counters=NOT_ALLOWED)
    program = tmp_path / "train.py"
    program.touch()
    words = [f"--program={program}", "--cpu", f"--nsys={tool.path}", "--trace=nvtx"]
    words.append("--gpu-metrics")
    assert main([*words, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "--gpu-metrics-devices=all"
    assert printed.err.count("note: --gpu-metrics") == 1
    assert main(words) == 2
    assert capsys.readouterr().err.count("error: --gpu-metrics") == 1
