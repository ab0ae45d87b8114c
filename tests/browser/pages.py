"""The pages that are looked at in a browser, by name: of runs, differences, scoreboards, stores, and what commands write."""

from dataclasses import replace
from pathlib import Path

from nsyspipe import load
from nsyspipe.api import compare, diff
from nsyspipe.comparison.difference import RunDifference
from nsyspipe.comparison.side import Side
from nsyspipe.report.html.dashboard_page import dashboard_page
from nsyspipe.report.html.difference_page import difference_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.html.scoreboard_page import scoreboard_page
from nsyspipe.store.index import INDEX, StoredRuns, stored_runs
from tests.build.ddp_run import Ddp
from tests.build.hostile import HOSTILE, HOSTILE_KERNELS, hostile_log, write_hostile_run
from tests.build.plain_steps import host_run, plain_run, scoreboard_runs, steps
from tests.build.sampled import sampled_run
from tests.build.trace import steady_rank
from tests.cli.tools import nsyspipe_here
from tests.dashboard_store import add_run, add_series, days, finding_row, run_row, series_day

LOGS = Path(__file__).parents[1] / "real" / "logs"
STORES = ("one", "two", "jobs", "study", "hostile-store", "many")
MS = 10**6
LABEL = '<script>window.attacked=9</script>"><img src=x onerror=alert(9)>'
# Of which runs a scoreboard is, by label; None for all.
BOARDS = {
    "board": {"ddp": "slow", "bucket25": "fast", "again": "again"},
    "board-of-kinds": None,
    "board-of-one": {"slow": "slow"},
    "hostile-board": HOSTILE,
}


def steady(folder, _):
    return load(
        [steady_rank(rank, n_steps=20).write(folder / f"steady_{rank}.sqlite") for rank in range(2)]
    )


def sampled(folder, _):  # hardware counters and samples of Python
    return sampled_run(folder)


def uneven(folder, _):
    return plain_run(folder / "uneven", [steps(90)] * 2)


def one_rank(_, real):
    return load(real / "baseline.sqlite")


def hostile(folder, _):
    log = hostile_log(folder / "nccl.log")
    return load(
        write_hostile_run(folder),
        nccl_log=log,
        label=LABEL,
        run_id="\"><script>alert('id')</script>",
        jobs=1,
    )


def faster(folder, _):
    slow = plain_run(folder / "slow", [steps(90), steps(100)])
    return diff(
        slow, plain_run(folder / "fast", [steps(70, comm=10), steps(60, comm=10)], kernel="sgemm")
    )


def straggler(_, real):
    return diff(
        *(str(real / f"ddp-2gpu-{name}_[0-9].sqlite") for name in ("straggler", "bucket100"))
    )


def other_world(_, real):
    return diff(str(real / "ddp-2gpu_[0-9].sqlite"), str(real / "fsdp-4gpu_[0-9].sqlite"))


def same(folder, _):
    run = plain_run(folder / "same", [steps(90)])
    return diff(run, Side("again", (run,)))


def hostile_diff(folder, real):
    plain = plain_run(folder / "plain", [steps(90)] * 2, kernel=HOSTILE_KERNELS[0])
    return diff(Side(LABEL, (plain,)), Side(LABEL * 4, (hostile(folder, real),)), force=True)


def host(folder, _):  # host steps only: neither waterfall nor its timeline
    return diff(plain_run(folder / "device", [steps(90)]), host_run(folder))


def board(folder, labels):
    runs = scoreboard_runs(folder)
    if labels is HOSTILE:
        labels = {name: list(runs)[at % len(runs)] for at, name in enumerate(HOSTILE)}
    return compare(
        {label: runs[run] for label, run in (labels or dict(zip(runs, runs, strict=True))).items()}
    )


def one(store):
    add_run(store, "only")


def two(store):
    add_series(store, "nightly", [100, 113])


def jobs(store):  # one got longer on the fifth day, the other has a run without a step time
    add_series(store, "small", [100, 100, 100, 100, 112, 112, 112, 113], findings=[finding_row()])
    add_series(store, "large", [50, 50, None, 50, 50, 50], world_size=8, n_ranks=8)


def study(store):  # each with a label of its own, one without a time of capture
    for at, (label, ms) in enumerate((("base", 100), ("bucket25", 80), ("bucket100", 90))):
        add_run(store, label, label=label, captured_at_utc=days(at / 24), step_time_ns=ms * 1e6)
    add_run(store, "undated", label="undated", captured_at_utc=None, step_time_ns=95e6)


def hostile_store(store):
    for at, name in enumerate(HOSTILE):
        add_run(
            store,
            f"{at}{name}".replace("/", "_"),
            label=name * (30 if at == 1 else 1),
            gpu_names=name,
            hosts=name,
            link_kind=name,
            captured_at_utc=days(at),
            findings=[finding_row(id=name, action=name)],
            step_time_ns=[1e8, None, float("nan"), 2e8][at % 4],
        )


def many():
    rows = []
    for label, ms in (("gpt", 600), ("resnet", 150)):
        # A tenth less from day 100 on; neighbours differ by half a per cent.
        times = [ms * (1 if day < 100 else 0.9) * (1 + 0.005 * (day * 7 % 3)) for day in range(250)]
        rows += [
            run_row(f"{label}-{day:03}", label=label, **series_day(day, time))
            for day, time in enumerate(times)
        ]
    rows.sort(key=lambda row: (row["captured_at_utc"], row["run_id"]))
    return StoredRuns(INDEX.from_rows([{"digest": "", **row} for row in rows]), ())


def real_run(real, name):
    log, topology = sorted(LOGS.glob(f"{name}.nccl.log")), LOGS / f"topo-{name.split('-')[1]}.txt"
    return load(sorted(real.glob(f"{name}_[0-9].sqlite")), nccl_log=log, topology=topology)


def page_of(name, folder, real):
    make = globals().get(name.replace("-", "_"))
    if name in STORES:
        stored = (
            make() if name == "many" else make(folder / "store") or stored_runs(folder / "store")
        )
        return dashboard_page(stored, title=name, pages={"small-007": "./pages/small%20007.html"})
    if name in BOARDS:
        return scoreboard_page(board(folder, BOARDS[name]))
    if name in ("whatif", "doctor"):
        Ddp().write(folder)
        assert nsyspipe_here(name, folder, "--html", folder / "page.html").returncode == 0
        return (folder / "page.html").read_text(encoding="utf-8")
    found = make(folder, real) if make else real_run(real, name)
    is_run = not isinstance(found, RunDifference)
    return run_page(found) if is_run else difference_page(replace(found, fail_on="regression"))
