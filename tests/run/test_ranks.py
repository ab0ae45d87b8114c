"""Which process is which rank: every source in its order, and what is passed over."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from tests.build.tools import STEADY, codes, figures, problem_of
from tests.build.trace import TraceBuilder, steady_rank

NEW = "3.25.0 2026.2.1 mfu"
VARIABLES = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"]


def bare(number, /, *, version=NEW, **environment):
    """Return a rank whose report names it nowhere but in what is given."""
    builder = steady_rank(number, version=version)
    builder.rows.pop("META_DATA_CAPTURE")
    return builder.env(**environment)


def numbers(folder, **options):
    """Return rank by report, and the source."""
    ranks = nsyspipe.load(folder, **options).ranks
    (source,) = set(ranks["rank_source"].to_pylist())
    return dict(zip(ranks["report"].to_pylist(), ranks["rank"].to_pylist(), strict=True)), source


def write(tmp_path, **builders):
    for name, builder in builders.items():
        builder.write(tmp_path / f"{name}.sqlite")
    return tmp_path


# --- each source --------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", " , ", "\n", "\n# a comment\n", ",\n"])
def test_a_rank_map_goes_before_everything(tmp_path, separator):
    write(tmp_path, x_0=bare(0, RANK=0), x_1=bare(1, RANK=1))
    pairs = separator.join(["x_0.sqlite=7", "x_1.sqlite=3"])
    found = numbers(tmp_path, rank_map=pairs)
    assert found == ({"x_0.sqlite": 7, "x_1.sqlite": 3}, "rank_map")
    (tmp_path / "map.txt").write_text(f"# rank by report\n{pairs}\n")
    assert numbers(tmp_path, rank_map=str(tmp_path / "map.txt")) == found
    assert numbers(tmp_path, rank_map={"x_0.sqlite": 7, "x_1.sqlite": 3}) == found


def test_a_rank_map_may_name_a_report_by_stem_or_path(tmp_path):
    write(tmp_path, x_0=bare(0), x_1=bare(1))
    found = numbers(tmp_path, rank_map=f"x_0=5,{tmp_path / 'x_1.sqlite'}=6")
    assert found == ({"x_0.sqlite": 5, "x_1.sqlite": 6}, "rank_map")


@pytest.mark.parametrize("variable", ["RANK", *VARIABLES])
def test_a_captured_variable_names_the_rank(tmp_path, variable):
    # Neither the file's name nor the order of arguments agrees with it.
    write(tmp_path, x_0=bare(0, **{variable: 12}), x_1=bare(1, **{variable: 4}))
    assert numbers(tmp_path) == ({"x_0.sqlite": 12, "x_1.sqlite": 4}, f"env:{variable}")


@pytest.mark.parametrize("other", VARIABLES)
def test_of_contradicting_variables_rank_wins(tmp_path, other):
    write(tmp_path, x_0=bare(0, RANK=1, **{other: 0}), x_1=bare(1, RANK=0, **{other: 1}))
    assert numbers(tmp_path) == ({"x_0.sqlite": 1, "x_1.sqlite": 0}, "env:RANK")


def test_a_variable_that_says_the_same_of_all_ranks_is_passed_over(tmp_path):
    # One SLURM task that starts all ranks itself: seen with OMPI rank 6 and SLURM_PROCID 0.
    write(
        tmp_path,
        x_0=bare(0, OMPI_COMM_WORLD_RANK=6, SLURM_PROCID=0),
        x_1=bare(1, OMPI_COMM_WORLD_RANK=2, SLURM_PROCID=0),
    )
    assert numbers(tmp_path) == ({"x_0.sqlite": 6, "x_1.sqlite": 2}, "env:OMPI_COMM_WORLD_RANK")


@pytest.mark.parametrize("swap", [False, True])
def test_the_payload_of_nccl_names_the_rank_in_any_layout(tmp_path, swap):
    for rank, report in ((5, "x_0"), (2, "x_1")):
        write(tmp_path, **{report: bare(rank).comm_payload(10, n_ranks=8, rank=rank, swap=swap)})
    run = nsyspipe.load(tmp_path)
    assert numbers(tmp_path) == ({"x_0.sqlite": 5, "x_1.sqlite": 2}, "nccl_payload")
    assert run.header.world_size == 8
    assert "undecoded-payload" not in codes(run)


def test_the_largest_communicator_tells_the_rank(tmp_path):
    for rank, report in ((3, "x_0"), (1, "x_1")):
        builder = bare(rank).comm_payload(10, n_ranks=4, rank=rank).comm_payload(20, n_ranks=2, rank=0)
        write(tmp_path, **{report: builder})
    assert numbers(tmp_path) == ({"x_0.sqlite": 3, "x_1.sqlite": 1}, "nccl_payload")


def test_a_payload_that_does_not_fit_its_description_is_counted_and_ignored(tmp_path):
    builder = bare(0).comm_payload(10, n_ranks=2, rank=1)
    builder.rows["NVTX_EVENTS"][-1]["binaryData"] = b"\x01" * 40
    run = nsyspipe.load(builder.write(tmp_path / "rank4.sqlite"))
    assert run.ranks["rank"].to_pylist() == [4]
    assert problem_of(run, "undecoded-payload")["message"].startswith("1 NVTX payloads")


@pytest.mark.parametrize("inline", [True, False])
def test_mpis_thread_names_name_the_rank(tmp_path, inline):
    for rank, report in ((9, "x_0"), (4, "x_1")):
        builder = bare(rank).range(-351_000_000_000, None, f"MPI Rank {rank}", kind=39, inline=inline)
        write(tmp_path, **{report: builder})
    assert numbers(tmp_path) == ({"x_0.sqlite": 9, "x_1.sqlite": 4}, "nvtx_mpi")
    assert figures(nsyspipe.load(tmp_path), rank=9) == STEADY


def test_two_mpi_ranks_of_one_process_name_none(tmp_path):
    builder = bare(0).range(-5, None, "MPI Rank 1", kind=39).range(-5, None, "MPI Rank 2", kind=39)
    assert numbers(write(tmp_path, x_3=builder)) == ({"x_3.sqlite": 3}, "file_name")


@pytest.mark.parametrize(
    ("stems", "ranks"),
    [
        (["x_2", "x_10"], [2, 10]),
        (["rank3", "rank0"], [3, 0]),
        (["A-RANK7", "b.1"], [7, 1]),
        (["t-08", "t-09"], [8, 9]),
    ],
)
def test_the_number_at_the_end_of_the_stem_names_the_rank(tmp_path, stems, ranks):
    write(tmp_path, **{stem: bare(at) for at, stem in enumerate(stems)})
    found, source = numbers(tmp_path)
    assert found == {f"{stem}.sqlite": rank for stem, rank in zip(stems, ranks, strict=True)}
    assert source == "file_name"


@pytest.mark.parametrize("stem", ["4gpu_baseline", "ddp8", "x_2b", "x_", "rank", "3"])
def test_a_number_elsewhere_in_the_stem_names_no_rank(tmp_path, stem):
    run = nsyspipe.load(write(tmp_path, **{stem: bare(0)}))
    assert run.ranks.select(["rank", "rank_source"]).to_pylist() == [{"rank": 0, "rank_source": "order"}]


# --- order --------------------------------------------------------------------------------------


def test_without_any_name_ranks_are_numbered_in_the_order_of_the_arguments(tmp_path):
    write(tmp_path, first=bare(0), second=bare(1))
    run = nsyspipe.load([tmp_path / "second.sqlite", tmp_path / "first.sqlite"])
    assert run.ranks["report"].to_pylist() == ["second.sqlite", "first.sqlite"]
    row = problem_of(run, "rank-by-order")
    assert row["severity"] == "warning"
    assert "--rank-map" in row["fix"]


def test_within_a_report_the_order_is_that_of_devices_then_of_processes(tmp_path):
    builder = TraceBuilder()
    # Process 30 has most of its operations on device 1, process 10 as many on 2 as on 3.
    for pid, devices in {30: (1, 1, 2), 20: (1, 1, 1), 10: (3, 2), 40: (0,)}.items():
        for at, device in enumerate(devices):
            builder.kernel(100 * at, 100 * at + 50, launch=100 * at - 10, pid=pid, device=device)
    run = nsyspipe.load(builder.write(tmp_path / "a_7.sqlite"))
    assert run.ranks.select(["rank", "pid", "device_id", "device_ids"]).to_pylist() == [
        {"rank": 0, "pid": 40, "device_id": 0, "device_ids": "0"},
        {"rank": 1, "pid": 20, "device_id": 1, "device_ids": "1"},
        {"rank": 2, "pid": 30, "device_id": 1, "device_ids": "1,2"},
        {"rank": 3, "pid": 10, "device_id": 2, "device_ids": "2,3"},
    ]


def test_a_run_of_one_rank_may_be_nameless(tmp_path):
    run = nsyspipe.load(write(tmp_path, single=bare(0)))
    assert problem_of(run, "rank-by-order")["severity"] == "info"


# --- what is passed over ------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [*VARIABLES, "RANK"])
def test_a_source_that_names_only_some_ranks_is_passed_over(tmp_path, partial):
    write(tmp_path, x_4=bare(0, **{partial: 0}), x_2=bare(1))
    assert numbers(tmp_path) == ({"x_4.sqlite": 4, "x_2.sqlite": 2}, "file_name")


@pytest.mark.parametrize("value", ["", "zero", "-1", "1.0", 2**63, 10**30])
def test_a_variable_that_is_no_rank_is_passed_over(tmp_path, value):
    write(tmp_path, x_4=bare(0, RANK=value))
    assert numbers(tmp_path) == ({"x_4.sqlite": 4}, "file_name")


def test_a_number_in_the_stem_that_is_too_large_for_a_rank_is_passed_over(tmp_path):
    assert numbers(write(tmp_path, **{f"x_{10**20}": bare(0)})) == ({f"x_{10**20}.sqlite": 0}, "order")


def test_names_that_only_resemble_a_variable_are_not_taken_for_it(tmp_path):
    write(tmp_path, x_4=bare(0, XRANK=1, rank=2, PMIXRANK=3, RANK_ID=5, LOCALXRANK=6))
    assert numbers(tmp_path) == ({"x_4.sqlite": 4}, "file_name")
    assert nsyspipe.load(tmp_path).ranks["local_rank"].to_pylist() == [None]


# --- the map's own errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [("x_0.sqlite=0", "x_1.sqlite"), ("x_0=0,x_1=0", "rank 0 twice"), ("x_0=0,x_1=1,x_2=2", "x_2"), ("x_0=0,x_1=b", "x_1=b"),
     ("x_0=0,=1", "=1"), ("x_0=0,x_1=-1", "x_1=-1"), ("no/such/file", "no/such/file"), ("x_0=0,x_1=99999999999999999999", "99999999999999999999")],
)  # fmt: skip
def test_a_rank_map_that_cannot_be_used_is_refused(tmp_path, text, says):
    write(tmp_path, x_0=bare(0), x_1=bare(1))
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(tmp_path, rank_map=text).steps()
    assert str(caught.value).startswith("--rank-map")
    assert says in f"{caught.value} {caught.value.fix}"
