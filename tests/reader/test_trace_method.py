"""By which method CUDA was traced. The words of nsys's diagnostics are not documented: all are built."""

import pytest

import nsyspipe
from nsyspipe.reader.report import open_report
from nsyspipe.reader.trace_method import cuda_traces_of, told_methods
from nsyspipe.report.subject import hardware_text
from nsyspipe.store.write import save
from tests.build.trace import TraceBuilder, steady_rank

NEW = "3.28.1 2026.4.1"
BY_HARDWARE = "CUDA trace data are collected by hardware events (HES)."


def said(built, *texts):
    for at, text in enumerate(texts):
        built.add("DIAGNOSTIC_EVENT", timestamp=at, text=text)
    return built


def methods(folder, built, version="2026.4.1"):
    with open_report(built.write(folder / "r.sqlite")) as report:
        return cuda_traces_of(report, version)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BY_HARDWARE, ("hardware",)),
        ("Using software-instrumented CUDA trace.", ("software",)),
        ("CUDA hardware trace failed. Fell back to software trace.", ("software",)),
        ("CUDA hardware trace isn't supported on this GPU.", ()),
        ("CUDA hardware trace may be faster than CUDA software trace.", ()),
        ("Number of CUDA events collected: 9637.", ()),
        ("CUDA injection initialized successfully.", ()),
        ("these trace", ()),
    ],
)
def test_a_diagnostic_counts_only_if_it_is_about_one_method(text, found):
    assert told_methods([text]) == found


def test_an_export_by_an_nsys_or_of_a_gpu_without_hardware_trace_was_by_software(tmp_path):
    assert methods(tmp_path, said(TraceBuilder(NEW), BY_HARDWARE)) == ("hardware",)
    assert methods(tmp_path, said(TraceBuilder(NEW), BY_HARDWARE), "2025.1.3") == ("software",)
    assert methods(tmp_path, TraceBuilder(NEW), "2025.2.1") == ()
    for major, found in ((9, ("software",)), (10, ()), (0, ()), (None, ())):
        built = TraceBuilder(NEW).gpu()
        built.rows["TARGET_INFO_GPU"][0]["computeMajor"] = major
        assert methods(tmp_path, built) == found, major


def runs(folder, *texts):
    folder.mkdir()
    for rank in range(2):
        said(steady_rank(rank, version=NEW), *texts).write(folder / f"r_{rank}.sqlite")
    return nsyspipe.load(folder, jobs=1)


@pytest.mark.slow
def test_the_line_about_a_run_names_a_hardware_trace_only(tmp_path):
    assert hardware_text(runs(tmp_path / "a", BY_HARDWARE)).endswith(", CUDA traced by hardware")
    assert "traced" not in hardware_text(runs(tmp_path / "b", "Using software CUDA trace."))
    assert "traced" not in hardware_text(runs(tmp_path / "c"))


@pytest.mark.slow
def test_a_saved_run_keeps_the_method(tmp_path):
    run = runs(tmp_path / "a", BY_HARDWARE)
    assert run.header.cuda_traces == ["hardware"]
    save(run, tmp_path / "store")
    assert nsyspipe.load(tmp_path / "store").header.cuda_traces == ["hardware"]
