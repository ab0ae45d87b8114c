"""What a notebook gives, or does, that is not as meant: refused with what works, or it works."""

import copy
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nsyspipe
from nsyspipe import export
from nsyspipe.errors import NsyspipeError
from nsyspipe.report.units import sure_text
from tests.build.trace import steady_rank

api: Any = nsyspipe  # as whoever has no type checker calls it


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder of two reports, a store of one run and one of two, of which each test gets a copy."""
    folder = tmp_path_factory.mktemp("prepared")
    for rank in range(2):
        steady_rank(rank).write(folder / f"steady_{rank}.sqlite")
    first = nsyspipe.load(folder / "steady_?.sqlite", label="one", run_id="run-1", jobs=1)
    second = nsyspipe.load(folder / "steady_?.sqlite", label="two", run_id="run-2", jobs=1)
    export.parquet(first, folder / "store", events=True)
    for run in (first, second):
        export.parquet(run, folder / "both")
    steady_rank(0).write(folder / "other.sqlite")
    return folder


@pytest.fixture
def here(prepared, tmp_path, monkeypatch):
    """Return the copy of `prepared`, into which this process has gone."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


REFUSED = {
    "label='nope'": lambda _: nsyspipe.load("store", label="nope"),
    "run_id='..'": lambda _: nsyspipe.load("store", run_id=".."),
    "store:one, both:one": lambda _: nsyspipe.load(["store:one", "both:one"]),
    "store:one, other.sqlite": lambda _: nsyspipe.load(["store:one", "other.sqlite"]),
    "one": (lambda _: nsyspipe.diff("both", "one", against="one")),
    "store='store:one'": lambda _: nsyspipe.dashboard("store:one", "a.html"),
    "store/steps/x.json": lambda run: export.write(run, "store/steps/x.json"),
    "path=''": lambda run: export.write(run, ""),
    "store=''": lambda run: export.parquet(run, ""),
    "label=''": lambda run: nsyspipe.compare({None: run, "b": run}),  # type: ignore[dict-item]
    ".": lambda run: export.write(run, Path()),
    "'.'": lambda _: nsyspipe.compare("."),
    "other.sqlite and other.sqlite": (lambda _: nsyspipe.load(["other.sqlite"] * 2).steps()),
    "rank_map": (
        lambda _: nsyspipe.load("steady_?.sqlite", rank_map={"steady_0.sqlite": 1}).steps()
    ),
    "x*.log": lambda _: nsyspipe.load("other.sqlite", nccl_log="x*.log"),
    "topology='*.log'": lambda _: nsyspipe.load("other.sqlite", topology="*.log"),
    "a long path": lambda _: nsyspipe.load("x" * 5000),
    "nix.sqlite": lambda _: nsyspipe.load("nix.sqlite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_meant_is_refused_with_what_works(here, case, worded):
    for name in ("a.log", "b.log"):
        (here / name).touch()
    with pytest.raises(NsyspipeError) as caught:
        REFUSED[case](nsyspipe.load("other.sqlite"))
    worded(str(caught.value))


def test_a_run_whose_operations_are_damaged_is_saved_with_them_again(here):
    next((here / "store" / "events").rglob("rank=1/*.parquet")).unlink()
    with pytest.raises(NsyspipeError, match=r"export\.parquet\(run, STORE, events=True\)"):
        list(nsyspipe.load("store").operations())
    # What doctor says of a store of which a run cannot be read works, which pandas does not.
    next((here / "both" / "runs").rglob("run_id=run-1/*.parquet")).write_bytes(b"x")
    with pytest.raises(NsyspipeError, match=r"run_id='run-2'.* nsyspipe doctor both"):
        nsyspipe.load("both", run_id="nope")


WORKS = {
    "ranks as text": lambda run: run.timeline(ranks="0-1") == run.timeline(ranks=[0, 1]),
    "a list of reports": lambda run: (
        nsyspipe.whatif([*run.paths]).scenarios == nsyspipe.whatif(run).scenarios
    ),
    "a map by paths": lambda run: (
        api.load(
            run.paths,
            rank_map={
                Path("steady_0.sqlite"): np.int64(1),
                f"../{Path.cwd().name}/steady_1.sqlite": 0,
            },
        )
        .ranks["report"]
        .to_pylist()
        == ["steady_1.sqlite", "steady_0.sqlite"]
    ),
    "a renamed run": lambda _: nsyspipe.load("store:one", label="wide").label == "wide",
    "skip_first=None": lambda run: (
        nsyspipe.load(run.paths, skip_first=None).skipped_steps == run.skipped_steps
    ),
    "numbers of others": lambda run: (
        json.loads(export.write(api.whatif(run, bucket_mb=Fraction(25)), "a.json").read_text())
        == json.loads(export.write(api.whatif(run, bucket_mb=np.float32(25)), "a.json").read_text())
    ),
    "digits of confidence": lambda _: (
        [*map(sure_text, (0.95, 0.995, 1 - 1e-12))] == ["95%", "99.5%", "99.9999999999%"]
    ),
}


@pytest.mark.parametrize("holds", WORKS.values(), ids=WORKS)
def test_what_is_meant_works(here, holds):
    assert holds(nsyspipe.load("steady_?.sqlite", jobs=1))


def test_a_run_is_read_after_its_process_changes_directory(here, monkeypatch):
    opened = [
        nsyspipe.load("steady_?.sqlite"),
        nsyspipe.load("store"),
        nsyspipe.load("other.sqlite"),
    ]
    monkeypatch.chdir("/")
    assert [run.ranks.num_rows for run in opened[:2]] == [2, 2]
    assert [len(list(run.operations())) for run in opened[:2]] == [2, 2]
    (here / "other.sqlite").unlink()
    with pytest.raises(NsyspipeError, match=r"^other\.sqlite: no such file"):
        opened[2].steps()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])
def test_a_run_can_be_copied_whoever_reads_it(here, copied):
    with ThreadPoolExecutor(1) as threads:
        run = nsyspipe.load("steady_?.sqlite", executor=threads, on_progress=lambda *_: None)
        before, summary = copied(run), run.summary()
        assert before.summary() == copied(run).summary() == summary
