"""NVTX ranges as reports hold them: texts in two places, open ends, other libraries' domains, bytes that are no text."""

import pytest

import nsyspipe
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from tests.build.tools import STEADY, blank, codes, edit, figures, pad, problem_of, run_of
from tests.build.trace import KERNEL, MEMCPY, NVTX, STRINGS, TraceBuilder, steady_rank
from tests.golden.words import figures as figures_of


def inline(builder, when):
    """Move the text of some NVTX rows from StringIds into the row."""
    names = {number: text for text, number in builder.strings.items()}
    for row in builder.rows[NVTX]:
        text = names.get(row["textId"], "")
        if when(text):
            row["text"], row["textId"] = text, None
    return builder


# The driver types a column by its first batch: 1024 rows by default, 262 144 here.
@pytest.mark.slow
@pytest.mark.parametrize("is_text", [True, False])
def test_a_text_or_its_id_that_first_appears_after_rows_without_any_is_read(tmp_path, is_text):
    builder = steady_rank(0)
    if is_text:
        inline(builder, lambda text: text.startswith("step"))
    layer = {"textId": builder.string("layer")} if is_text else {"text": "layer"}
    path = builder.write(tmp_path / "a_0.sqlite")
    pad(path, NVTX, 300_000, start=5, end=6, eventType=59, globalTid=builder.global_tid(), **layer)
    run = nsyspipe.load(path)
    assert (run.step_family, run.steps()["step"].to_pylist(), figures(run)) == (
        "step #",
        [0, 1, 2, 3],
        STEADY,
    )


@pytest.mark.parametrize("kind", [59, 60])
def test_one_family_may_have_texts_in_both_places(tmp_path, kind):
    builder = inline(steady_rank(0), lambda text: text in ("step 1", "step 3", "backward"))
    for row in builder.rows[NVTX]:
        row["eventType"] = kind
    run = run_of(tmp_path, builder)
    assert run.steps()["step"].to_pylist() == [0, 1, 2, 3]
    assert figures(run) == figures(run, step=2) == STEADY


@pytest.mark.parametrize(
    ("add", "end"),
    [
        (lambda builder: None, 3351),  # the last copy runs [3340, 3350)
        (lambda builder: builder.range(3900, 4000, "checkpoint"), 4001),
        (lambda builder: builder.launch(5000), 5002),  # [5000, 5001)
        (lambda builder: builder.kernel(5900, 6000), 6001),
        (lambda builder: builder.range(7000, None, "unclosed"), 7001),
    ],
)
def test_an_open_range_ends_one_ns_after_the_last_event(tmp_path, add, end):
    builder = steady_rank(0)
    add(builder)
    for row in builder.rows[NVTX]:
        if row["textId"] == builder.strings["step 3"]:
            row["end"] = None
    # Without launches the last window ends with its range.
    assert (
        run_of(tmp_path, blank(builder, "correlationId", KERNEL, MEMCPY))
        .steps()["end_ns"]
        .to_pylist()[-1]
        == end
    )


def test_ranges_that_end_before_they_start_are_left_out_and_counted(tmp_path):
    run = run_of(tmp_path, steady_rank(0).range(1800, 1700, "step 7").range(1800, 1700, "backward"))
    assert (run.steps()["step"].to_pylist(), figures(run)) == ([0, 1, 2, 3], STEADY)
    assert figures_of(problem_of(run, "dropped-ranges")["message"]) == {"2"}


def test_bytes_that_are_no_utf8_are_replaced_wherever_they_stand(tmp_path):
    path = inline(steady_rank(0).host("n").gpu(), lambda text: text == "step 2").write(
        tmp_path / "a_0.sqlite"
    )
    edit(
        path,
        (
            f"UPDATE {STRINGS} SET value = CAST(x'737465ff70' || substr(value, 5) AS TEXT) WHERE "
            "value LIKE 'step%'"
        ),
        f"UPDATE {STRINGS} SET value = CAST(value || x'c328' AS TEXT) WHERE value LIKE 'gemm%'",
        (
            f"UPDATE {NVTX} SET text = CAST(x'737465ff70' || substr(text, 5) AS TEXT) WHERE text "
            "LIKE 'step%'"
        ),
        "UPDATE TARGET_INFO_GPU SET name = CAST(x'48ff' AS TEXT)",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = CAST(x'6eff' AS TEXT)",
    )
    run = nsyspipe.load(path)
    assert run.step_family == "ste\N{REPLACEMENT CHARACTER}p #"
    assert figures(run, step=2) == STEADY
    assert (run.header.gpu_names, run.header.hosts) == (
        ["H\N{REPLACEMENT CHARACTER}"],
        ["n\N{REPLACEMENT CHARACTER}"],
    )
    dumps(document(run)).encode("ascii")


@pytest.mark.parametrize(
    "text", ["ncclGroupEnd", "ncclAllReduce 1", "nccl:all_reduce 1", "MPI_Allreduce", "MPI_Bcast 4"]
)
def test_ranges_of_communication_libraries_are_never_steps(tmp_path, text, worded):
    for inline in (True, False):
        builder = steady_rank(0)
        for at in range(0, 4000, 1000):
            # Longer than the steps, and around all launches.
            builder.range(at, at + 950, text, inline=inline)
        run = run_of(tmp_path, builder)
        assert (run.step_family, figures(run)) == ("step #", STEADY), inline
    with pytest.raises(nsyspipe.NsyspipeError) as caught:
        nsyspipe.load(tmp_path, step=text).steps()
    assert text not in caught.value.found
    worded(caught.value.lines())


@pytest.mark.parametrize("name", ["NCCL", "MPI"])
def test_the_domain_of_a_library_hides_ranges_of_any_name(tmp_path, name):
    builder = steady_rank(0).domain(name, 3).domain("mine", 4)
    for step in range(4):
        builder.range(1000 * step, 1000 * step + 990, f"hidden {step}", domain=3)
        builder.range(1000 * step, 1000 * step + 950, f"shown {step}", domain=4)
        builder.range(1000 * step + 6, 1000 * step + 49, "backward", domain=3)
    run = run_of(tmp_path, builder)
    # The backward range in the hidden domain would have held the forward kernel's launch.
    assert (run.step_family, figures(run)) == ("shown #", STEADY)


def test_domain_ids_are_each_processes_own(tmp_path):
    builder = TraceBuilder()
    for pid, (nccl, mine) in {1: (1, 2), 2: (2, 1)}.items():
        builder.domain("NCCL", nccl, pid=pid).domain("mine", mine, pid=pid)
        for step in range(3):
            at = 1000 * step
            builder.range(at, at + 900, f"group {step}", domain=nccl, pid=pid)
            builder.range(at, at + 500, f"it {step}", domain=mine, pid=pid)
            builder.kernel(at + 100, at + 200, launch=at + 10, pid=pid, device=pid)
    run = run_of(tmp_path, builder)
    assert (run.step_family, run.ranks.num_rows, "no-steps" in codes(run)) == ("it #", 2, False)


def test_marks_categories_names_and_domains_are_no_ranges(tmp_path):
    builder = steady_rank(0)
    for kind in (33, 34, 39, 75):
        for at in range(0, 4000, 1000):
            builder.range(at - 10, at + 990, f"other {at}", kind=kind)
    run = run_of(tmp_path, builder)
    assert (run.step_family, figures(run)) == ("step #", STEADY)
