"""Which process is which rank: every source in its order, and what is passed over."""

import functools

import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.model.options import parse_rank_map
from nsyspipe.model.schema import RUN_TABLES
from nsyspipe.run.ranks import stem_rank
from tests.build.tools import STEADY, bare as nameless, codes, figures, numbered, problem_of
from tests.build.trace import TraceBuilder, steady_rank
from tests.golden.words import figures as figures_of

bare = functools.partial(nameless, version="3.25.0 2026.2.1 mfu")
VARIABLES = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"]


def write(tmp_path, **builders):
    for name, builder in builders.items():
        builder.write(tmp_path / f"{name}.sqlite")


@pytest.mark.slow
def test_a_rank_map_wins_and_names_reports_by_name_stem_or_path(tmp_path, worded):
    write(tmp_path, x_0=bare(0, RANK=0), x_1=bare(1, RANK=1))
    pairs = ["x_0.sqlite=7", "x_1.sqlite=3"]
    (tmp_path / "map.txt").write_text("# rank by report\n{}\n# a comment\n{},\n".format(*pairs))
    by_stem_and_path = f"x_0=7,{tmp_path / 'x_1.sqlite'}=3"
    forms = [",".join(pairs), " , ".join(pairs), ",\n".join(pairs), "\n# a comment\n".join(pairs)]
    said = set()
    for form in (
        *forms,
        by_stem_and_path,
        str(tmp_path / "map.txt"),
        {"x_0.sqlite": 7, "x_1.sqlite": 3},
    ):
        run = nsyspipe.load(tmp_path, rank_map=form)
        assert numbered(run, "report") == ({"x_0.sqlite": 7, "x_1.sqlite": 3}, "rank_map"), form
        said.add(problem_of(run, "rank-map-differs")["message"])
    worded(sorted(said))
    # As many numbers as names; a bracket with one number is a part of a name.
    assert parse_rank_map("n_[9-10].sqlite=7-8,x[0-1]=3") == {
        "n_9.sqlite": 7,
        "n_10.sqlite": 8,
        "x[0-1]": 3,
    }
    assert "rank-map-differs" not in codes(nsyspipe.load(tmp_path, rank_map={"x_0": 0, "x_1": 1}))


def mpi(*ranks, inline=False):
    builder = bare(ranks[0])
    for rank in ranks:
        builder.range(-351_000_000_000, None, f"MPI Rank {rank}", kind=39, inline=inline)
    return builder


# Stems, their ranks, the reports of these stems, the source.
SOURCES = [
    # Neither the file's name nor the order of arguments agrees with it.
    *(
        (
            ("x_0", "x_1"),
            (12, 4),
            lambda name=name: [bare(0, **{name: 12}), bare(1, **{name: 4})],
            f"env:{name}",
        )
        for name in ("RANK", *VARIABLES)
    ),
    *(
        (
            ("x_0", "x_1"),
            (1, 0),
            lambda name=name: [bare(0, RANK=1, **{name: 0}), bare(1, RANK=0, **{name: 1})],
            "env:RANK",
        )
        for name in VARIABLES[:1]
    ),
    # One SLURM task that starts all ranks itself: a variable that says the same of all is passed
    # over.
    (
        ("x_0", "x_1"),
        (6, 2),
        lambda: [bare(at, OMPI_COMM_WORLD_RANK=6 - 4 * at, SLURM_PROCID=0) for at in (0, 1)],
        "env:OMPI_COMM_WORLD_RANK",
    ),
    # A source that names only some ranks is passed over.
    *(
        (("x_4", "x_2"), (4, 2), lambda name=name: [bare(0, **{name: 0}), bare(1)], "file_name")
        for name in ("PMI_RANK", "RANK")
    ),
    *(
        (("x_4",), (4,), lambda value=value: [bare(0, RANK=value)], "file_name")
        for value in ("", "-1", "1.0", 2**63)
    ),
    (
        ("x_4",),
        (4,),
        lambda: [bare(0, XRANK=1, rank=2, PMIXRANK=3, RANK_ID=5, LOCALXRANK=6)],
        "file_name",
    ),
    (
        ("x_0", "x_1"),
        (5, 2),
        lambda: [bare(at).comm_payload(10, n_ranks=8, rank=at) for at in (5, 2)],
        "nccl_payload",
    ),
    (
        ("x_0", "x_1"),
        (5, 2),
        lambda: [bare(at).comm_payload(10, n_ranks=8, rank=at, swap=True) for at in (5, 2)],
        "nccl_payload",
    ),
    # The largest communicator tells the rank.
    (
        ("x_0", "x_1"),
        (3, 1),
        lambda: [
            bare(rank).comm_payload(10, n_ranks=4, rank=rank).comm_payload(20, n_ranks=2, rank=0)
            for rank in (3, 1)
        ],
        "nccl_payload",
    ),
    (("x_0", "x_1"), (9, 4), lambda: [mpi(9), mpi(4)], "nvtx_mpi"),
    (("x_0", "x_1"), (9, 4), lambda: [mpi(9, inline=True), mpi(4, inline=True)], "nvtx_mpi"),
    # Two MPI ranks of one process name none.
    (("x_3",), (3,), lambda: [mpi(1, 2)], "file_name"),
    (("x_2", "x_10"), (2, 10), lambda: [bare(0), bare(1)], "file_name"),
    (("ddp8",), (0,), lambda: [bare(0)], "order"),
]


@pytest.mark.parametrize(("stems", "ranks", "build", "source"), SOURCES)
def test_the_first_source_that_names_every_rank_numbers_them(tmp_path, stems, ranks, build, source):
    write(tmp_path, **dict(zip(stems, build(), strict=True)))
    run = nsyspipe.load(tmp_path)
    expected = {f"{stem}.sqlite": rank for stem, rank in zip(stems, ranks, strict=True)}
    assert numbered(run, "report") == (expected, source)
    assert set(run.ranks["local_rank"].to_pylist()) == {None}
    assert figures(run, rank=ranks[0]) == STEADY
    assert "undecoded-payload" not in codes(run)
    if source == "nccl_payload":
        assert run.header.world_size == (8 if 5 in ranks else 4)


def test_the_number_at_the_end_of_the_stem_names_the_rank():
    stems = {"x_2": 2, "x_10": 10, "rank3": 3, "rank0": 0, "A-RANK7": 7, "b.1": 1, "t-08": 8}
    elsewhere = ["4gpu_baseline", "ddp8", "x_2b", "x_", "rank", "3", f"x_{10**20}"]
    for stem, rank in (stems | dict.fromkeys(elsewhere)).items():
        assert stem_rank(f"/runs_7/{stem}.sqlite") == rank, stem


def test_a_payload_that_does_not_fit_its_description_is_counted_and_ignored(tmp_path):
    builder = bare(0).comm_payload(10, n_ranks=2, rank=1)
    builder.rows["NVTX_EVENTS"][-1]["binaryData"] = b"\x01" * 40
    run = nsyspipe.load(builder.write(tmp_path / "rank4.sqlite"))
    assert run.ranks["rank"].to_pylist() == [4]
    assert figures_of(problem_of(run, "undecoded-payload")["message"]) == {"1"}


def test_ranks_without_names_are_numbered_in_argument_order(
    tmp_path,
):
    write(tmp_path, first=bare(0), second=bare(1))
    paths = [tmp_path / "second.sqlite", tmp_path / "first.sqlite"]
    for given, severity in ((paths, "warning"), (paths[:1], "info")):
        run = nsyspipe.load(given)
        assert run.ranks["report"].to_pylist() == [path.name for path in given], given
        assert problem_of(run, "rank-by-order")["severity"] == severity, given
    assert "--rank-map" in problem_of(nsyspipe.load(paths), "rank-by-order")["fix"]


def test_within_a_report_the_order_is_that_of_devices_then_of_processes(tmp_path):
    builder = TraceBuilder()
    # Process 30 has most of its operations on device 1, process 10 as many on 2 as on 3: its order
    # is that of 2.
    for pid, devices in {30: (1, 1, 2), 20: (1, 1, 1), 10: (3, 2), 40: (0,)}.items():
        for at, device in enumerate(devices):
            builder.kernel(100 * at, 100 * at + 50, launch=100 * at - 10, pid=pid, device=device)
    run = nsyspipe.load(builder.write(tmp_path / "a_7.sqlite"))
    rows = run.ranks.select(["rank", "process_rank", "pid", "device_id", "device_ids"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, 0, 40, 0, "0"),
        (1, 1, 20, 1, "1"),
        (2, 2, 30, 1, "1,2"),
        (3, 2, 30, 2, "1,2"),
        (4, 3, 10, 2, "2,3"),
        (5, 3, 10, 3, "2,3"),
    ]


BOTH = {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "OMPI_COMM_WORLD_SIZE": 8}


@pytest.mark.parametrize(
    ("environments", "ranks", "size", "source"),
    [
        *(
            ([{rank: 6, size: 8}], [6], 8, rank)
            for rank, size in (
                ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                ("PMI_RANK", "PMI_SIZE"),
                ("PMIX_RANK", "PMIX_SIZE"),
                ("SLURM_PROCID", "SLURM_NTASKS"),
            )
        ),
        # Variables that contradict each other are sources of their own.
        (
            [BOTH | {"OMPI_COMM_WORLD_RANK": 6}, BOTH | {"OMPI_COMM_WORLD_RANK": 2}],
            [2, 6],
            8,
            "OMPI_COMM_WORLD_RANK",
        ),
        # A size without room for the ranks, or of another source, is none.
        ([{"SLURM_PROCID": 3, "SLURM_NTASKS": 1}], [3], None, "SLURM_PROCID"),
        ([{"OMPI_COMM_WORLD_RANK": 3, "SLURM_NTASKS": 8}], [3], None, "OMPI_COMM_WORLD_RANK"),
    ],
)
def test_a_launchers_number_comes_with_its_own_size(tmp_path, environments, ranks, size, source):
    for at, environment in enumerate(environments):
        builder = TraceBuilder(pid=1000 + at).env(**environment).session(10**18 + at)
        builder.kernel(0, 9, launch=0).write(tmp_path / f"{'xyz'[at]}.sqlite")
    run = nsyspipe.load(tmp_path)
    assert set(run.ranks["rank_source"].to_pylist()) == {f"env:{source}"}
    assert (run.ranks["rank"].to_pylist(), run.header.world_size) == (ranks, size)
    assert ("ranks-missing" in codes(run)) == bool(size)


BAD_MAPS = [
    "x_0.sqlite=0",
    "x=0",
    "x_0=0,x_1=0",
    "x_0=0,x_1=1,x_2=2",
    "x_0=0,x_1=b",
    "x_0=0,=1",
    "x_0=0,x_1=-1",
    "x_[0-1]=0-2",
    "x_0=0-1",
    "x_[0-1]=1-0",
    "x_[1-0]=0-1",
    "x_9=0",
    "x_9=0,x_0=0",
    "=0-1",
    "no/such/file",
    "x_0=0,x_1=99999999999999999999",
]


@pytest.mark.parametrize("text", BAD_MAPS)
def test_a_rank_map_that_cannot_be_used_is_refused(tmp_path, text, worded):
    write(tmp_path, x_0=bare(0), x_1=bare(1))
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(tmp_path, rank_map=text).steps()
    assert caught.value.lines()[0].startswith("--rank-map")
    worded(caught.value.lines())


@pytest.mark.parametrize(
    ("asked", "names", "options", "chosen"),
    [
        # By name: the others are not even opened.
        ("0, 2-3", "0123", {}, "023"),
        ([3], "0123", {}, "3"),
        (1, "0123", {}, "1"),
        ("9-10,10", ("9", "10"), {}, ("9", "10")),
        # By the map, which goes before names; what it has of the others is passed over.
        ("1-2", "0123", {"rank_map": {"x_3": 1, "x_0.sqlite": 2, "x_1": 3, "x_2": 0}}, "03"),
    ],
)
def test_ranks_that_are_asked_for_are_read_alone(tmp_path, asked, names, options, chosen):
    for name in names:
        path = tmp_path / f"x_{name}.sqlite"
        steady_rank(int(name), world_size=12).write(path) if name in chosen else path.write_text(
            "no report"
        )
    run = nsyspipe.load(tmp_path, ranks=asked, **options)
    kept = {name: rank for name, rank in options.get("rank_map", {}).items() if name[2] in chosen}
    alone = nsyspipe.load(
        [tmp_path / f"x_{name}.sqlite" for name in chosen], **({"rank_map": kept} if kept else {})
    )
    assert all(
        run.table(name).equals(alone.table(name)) for name in RUN_TABLES if name != "problems"
    )
    assert run.header == alone.header
    assert {"ranks-missing", *(["ranks-not-read"] * (len(chosen) < len(names)))} <= {*codes(run)}


def test_ranks_are_chosen_by_what_was_captured_where_names_do_not_number_all(tmp_path):
    write(tmp_path, **{name: bare(at, RANK=7 - at) for at, name in enumerate("abcd")})
    found = numbered(nsyspipe.load(tmp_path, ranks="4,6-7"), "report")
    assert found == ({"a.sqlite": 7, "b.sqlite": 6, "d.sqlite": 4}, "env:RANK")


def test_unread_ranks_count_if_the_world_size_is_unknown(tmp_path):
    write(tmp_path, **{f"x_{rank}": bare(rank) for rank in range(3)})
    run = nsyspipe.load(tmp_path, ranks="0-1")
    row = problem_of(run, "ranks-not-read")
    assert run.header.world_size == 3
    # How many, of how many, and which.
    assert {"1", "3", "2"} <= figures_of(row["message"])
    assert "--ranks" in row["fix"]
    assert "ranks-missing" not in codes(run)


# What is asked for, names of reports, and options.
NOT_CHOSEN = {
    "a range with one too many": ("2-4", "x_0 x_2 x_3", {}),
    # One report of several ranks, whose part is read with the rest.
    "one rank of a report": ("1", "x", {"rank_map": "x:7=0,x:8=1,x:9=4"}),
    "one report": ("2", "x", {}),
    "a long range": ("0-999999999999999999", "x_0 x_1", {}),
    **{f"no range, {text}": (text, "x_0 x_1", {}) for text in ("", "a", "-1", "0,", "0-1-2")},
    "no rank": ([], "x_0 x_1", {}),
    **{f"a list with {one}": ([one], "x_0 x_1", {}) for one in (True, 0.5)},
    "a long range of Python": (range(10**12), "x_0 x_1", {}),
    "a range backwards": ("1-0", "x_0 x_1", {}),
    "a float": (1.5, "x_0 x_1", {}),
    "names without numbers": ("0", "a b", {}),
    "a name without number": ("0", "x_0 b", {}),
    "a map of one": ("1", "x_0 x_1", {"rank_map": "x_0=0"}),
    "a map of another": ("1", "x_0 x_1", {"rank_map": "y=0"}),
    # Numbers of names that are none of ranks: node 0 has rank 9.
    "numbers of nodes": ("0", "node_0 node_1", {"RANK": 9}),
}


@pytest.mark.parametrize(("asked", "stems", "options"), NOT_CHOSEN.values(), ids=NOT_CHOSEN)
def test_ranks_that_cannot_be_chosen_are_refused(tmp_path, asked, stems, options, worded):
    given = dict(options)
    captured = {name: given.pop(name) for name in ("RANK",) if name in given}
    write(tmp_path, **{stem: bare(at, **captured) for at, stem in enumerate(stems.split())})
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(tmp_path, ranks=asked, **given).steps()
    worded(caught.value.lines())
