"""The calls that take names of runs: `load`, `diff`, `compare` and `whatif`. What a user names becomes a `Run` that reads nothing yet."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison import gate
from nsyspipe.errors import OptionError, short_repr, whole_path
from nsyspipe.model.options import (
    AUTO,
    Reading,
    check_flags,
    check_text,
    check_whole,
    logs_refused,
    parse_rank_map,
    parse_skip_first,
    path_of,
    paths_of,
    several,
)
from nsyspipe.nsys.find_reports import exported_reports, find_logs, find_named, words_of_runs
from nsyspipe.run.run import Run
from nsyspipe.store.layout import is_saved, labels_by_time, place_of, runs_by_label

if TYPE_CHECKING:
    from nsyspipe.comparison.difference import RunDifference, Side
    from nsyspipe.comparison.scoreboard import Scoreboard
    from nsyspipe.replay.answer import WhatIf
    from nsyspipe.run.ranks import ChosenRanks

    AnySide = Side | Run | Sequence[Run | str] | str | os.PathLike[str]


def load(
    reports: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    step: str | None = None,
    backward: str | None = None,
    forward: str | None = None,
    optimizer: str | None = None,
    data: str | None = None,
    comm_kernel: str | None = None,
    steps: int | None = None,
    skip_first: int | str | None = AUTO,
    rank_map: Mapping[Any, int] | str | None = None,
    ranks: str | int | Iterable[int] | ChosenRanks | None = None,
    jobs: int | None = None,
    label: str | None = None,
    run_id: str | None = None,
    nccl_log: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    topology: str | os.PathLike[str] | None = None,
    logs: bool = True,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Open a run; nothing is read yet.

    Parameters
    ----------
    reports
        A path, a directory, a glob, or several of them; or one store that ``analyze --out`` wrote (with several
        runs, ``run_id`` says which), whose run has its figures already: of the options it takes `label` only.
        An ``.nsys-rep`` file is exported first, by nsys, into a cache.
    step
        Regular expression for the texts of NVTX step ranges; ``"repetition"`` takes what launches repeat, ``"none"`` the
        capture as a whole. None detects the family of ranges, and falls back on repetition.
    steps
        How many whole steps were captured, one more or less, to find them by repetition.
    backward, forward, optimizer, data
        Regular expressions for phase names; None keeps the default.
    comm_kernel
        Regular expression for communication kernels besides NCCL's.
    skip_first
        How many complete steps to leave out at the start; ``"auto"`` leaves out the first when another remains.
    rank_map
        Rank by report name or path, as a mapping or as text (``"a.sqlite=0,b.sqlite=1"``, or a file of such pairs).
    ranks
        Read the reports of these ranks only, ``"0-7,63"`` or numbers; the others count as missing. Which report is whose
        is told by the rank map, else by names that end in their numbers, else by the rank that each captured; None reads
        all. A choice that was made already, of these reports, is taken as it is, and `rank_map` with it.
    jobs
        Processes to use; None takes what cores, memory and the reports' sizes suggest.
    label, run_id
        Name and identifier; None makes them from the reports. Of a store without `run_id` the latest run of the label.
    nccl_log
        Logs of the run with ``NCCL_DEBUG=INFO``, one or several, or a glob.
    topology
        A file with the output of ``nvidia-smi topo -m`` on a host of the run.
    logs
        Whether logs and topologies that lie beside the reports under their name are used where none is given.
    executor
        Runs the work on each report; None starts spawned processes (or none, for small reports).
    on_progress
        Called with (reports done, reports in all).

    Raises
    ------
    InputError
        If an argument names no report, or a log or topology is none.
    CaptureError
        If nsys cannot export a report.
    OptionError
        If a parameter is of another kind, a regular expression or the rank map cannot be used, an option does not go with
        a saved run, or ``STORE:NAME`` is the id of one run and the label of another.
    """
    if isinstance(reports, Run):
        raise OptionError(
            f"reports={short_repr(reports)}", "is already a loaded run", fix="use the run directly: run.summary()"
        )
    if not (arguments := paths_of("reports", reports, "load('captures/')")):
        raise OptionError("reports=[]", "names no report", fix="load('captures/')")
    check_whole("steps", steps, "steps=20")
    check_whole("jobs", jobs, "jobs=4")
    skip_first = AUTO if skip_first is None else skip_first
    if not isinstance(skip_first, str):
        check_whole("skip_first", skip_first, "skip_first=1", 0)
    check_flags(logs=logs)
    if not logs and (nccl_log or topology is not None):
        raise logs_refused("--nccl-log" if nccl_log else "--topology")
    check_text("label", label, "label='baseline'")
    check_text("run_id", run_id, "run_id='run-7'")
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        raise OptionError.of_kind("executor", executor, "an executor", "executor=ThreadPoolExecutor(4), or jobs=4")
    if on_progress is not None and not callable(on_progress):
        raise OptionError.of_kind("on_progress", on_progress, "a function", "on_progress=lambda done, n_all: ...")
    phases = {"backward": backward, "forward": forward, "optimizer": optimizer, "data": data}
    patterns: dict[str, Any] = {"step": step, **phases, "comm_kernel": comm_kernel}
    if any(is_saved(Path(argument)) for argument in arguments):
        options: dict[str, Any] = {**patterns, "steps": steps, "skip_first": None if skip_first == AUTO else skip_first}
        options |= {"rank_map": rank_map, "ranks": ranks, "nccl_log": nccl_log or None, "topology": topology}
        options["no_logs"] = None if logs else True
        return _saved(arguments, run_id, label, options)
    # A saved run needs nothing of what reads reports.
    from nsyspipe.replay.answer import AnsweredRun  # noqa: PLC0415
    from nsyspipe.run.ranks import ChosenRanks, choose_ranks  # noqa: PLC0415

    given_logs = find_logs(paths_of("nccl_log", nccl_log, "nccl_log='run.nccl.log'"))
    maps = [] if topology is None else find_logs([path_of("topology", topology, "topology='topo.txt'")])
    if len(maps) > 1:
        raise OptionError(f"topology={str(topology)!r}", f"are {len(maps)} files", fix=f"topology={str(maps[0])!r}")
    if ranks is None or isinstance(ranks, ChosenRanks):
        chosen = ranks
    else:
        chosen = choose_ranks(ranks, find_named(arguments), rank_map)
        arguments = [*map(str, chosen.paths)]
    return AnsweredRun(
        paths=tuple(map(whole_path, exported_reports(arguments, jobs=jobs))),
        reading=Reading.from_text(n_steps=steps, **patterns),
        skip_first=parse_skip_first(skip_first),
        rank_map=chosen.rank_map if chosen else parse_rank_map(rank_map),
        chosen=chosen,
        jobs=jobs,
        given_label=label,
        given_run_id=run_id,
        nccl_logs=tuple(map(whole_path, given_logs)),
        topology=whole_path(maps[0]) if maps else None,
        looks_beside=logs,
        executor=executor,
        on_progress=on_progress,
    )


def _saved(arguments: Sequence[str], run_id: str | None, label: str | None, options: Mapping[str, object]) -> Run:
    if len(arguments) > 1:
        is_all = all(is_saved(Path(argument)) for argument in arguments)
        problem = f"{'several saved runs' if is_all else 'a saved run and something else'}, which are not one run"
        raise OptionError(", ".join(arguments), problem, fix=f"load({arguments[0]!r}) alone")
    if named := [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]:
        problem = f"{arguments[0]} is a saved run, which is analyzed already"
        raise OptionError(", ".join(named), problem, fix="leave them out, or analyze the reports again")
    from nsyspipe.store.saved_run import open_saved  # noqa: PLC0415 - Parquet takes as long as all else to import

    return open_saved(Path(arguments[0]), run_id, label)


def diff(
    baseline: AnySide,
    candidate: AnySide | None = None,
    *,
    against: str | None = None,
    min_effect_pct: float | str = gate.DEFAULT_MIN_EFFECT_PCT,
    confidence: float = gate.DEFAULT_CONFIDENCE,
    metrics: Sequence[str] | str | None = None,
    fail_on: str | None = None,
    force: bool = False,
) -> RunDifference:
    """Compare two runs: whether a change helped, or is noise, and whether a gate lets it pass.

    delta = candidate - baseline of the medians over summary steps (of the means of times where either run is uneven),
    per figure of a step: times are the largest over ranks, ratios pooled over ranks, counts and bytes means over ranks.
    ``regression`` or ``improvement`` when the interval of delta at `confidence` excludes 0 and |delta| is at least
    `min_effect_pct` of the baseline; ``no change`` when all of the interval is within that; else ``inconclusive``, as
    with fewer than 3 summary steps, and when the runs are not comparable.

    Parameters
    ----------
    baseline, candidate
        A `nsyspipe.Run`; several captures of one configuration, as a list of runs or a `nsyspipe.Side`, which has a
        label too; or what `nsyspipe.load` takes: a path, a glob, a directory, a saved run, of which ``STORE:LABEL`` is the
        latest of its label. They are read at once.
    against
        The baseline is all runs of this label in the store that stands in its place, as captures of one configuration, but
        for those of some ranks beside ones of all; the candidate may be another label of the store, and None is the only other one.
    min_effect_pct
        Smallest relative difference that counts, per cent from 0: 2 and "2%" are the same. Less than 0.1 has to be a text.
    confidence
        Of the intervals, above 0.5 and below 1.
    metrics
        What the verdict rests on, one name or several, also as ``"step_time,idle"`` (see `RunDifference.verdict`); None is
        step_time. All are in the table.
    fail_on
        ``"regression"`` or ``"any-change"`` of these metrics: what `RunDifference.gate` fails on. It passes where that is
        excluded, not where nobody can tell; None asks for no gate.
    force
        Give verdicts although world size, GPU model, ranks, ranks per batch or the work of a step differ.

    Returns
    -------
    RunDifference
        With Arrow tables ``metrics``, ``step_time_parts``, ``idle_causes``, ``kernels``, ``changes``,
        ``comparability`` (what makes the two hard to compare) and ``problems`` (of each capture alone); null means "not
        recorded".

    Raises
    ------
    OptionError
        If a metric or gate is not known or could never fail, a number is out of range, or a side has one capture twice.
    InputError
        If a path names no run.

    Examples
    --------
    >>> change = nsyspipe.diff("before_*.sqlite", "after_*.sqlite")  # doctest: +SKIP
    >>> change.verdict, change.metrics.to_pylist()[0]["delta_pct"]  # doctest: +SKIP
    ('improvement', -11.2)
    >>> nsyspipe.diff("before_*.sqlite", "after_*.sqlite", fail_on="regression").gate  # doctest: +SKIP
    <Gate passed: no regression of median step_time by 2.0 % or more>
    """
    from nsyspipe.comparison.difference import RunDifference, told_apart  # noqa: PLC0415 - one run needs none
    from nsyspipe.comparison.metrics import DEFAULT_METRIC, Rules  # noqa: PLC0415 - one run needs none
    from nsyspipe.model.figures import METRICS  # noqa: PLC0415 - one run needs none

    check_flags(force=force)
    rules = Rules(gate.effect_ratio(min_effect_pct), gate.check_confidence(confidence), force)
    judged = gate.check_metrics(DEFAULT_METRIC if metrics is None else metrics)
    if fail_on is not None:
        gate.check_can_fail(fail_on, {name: METRICS[name].better for name in judged})
    check_text("against", against, "against='main'")
    if against is not None:
        store = path_of("baseline", baseline, f"diff('runs/', against={against!r})")
        found = runs_by_label(store, against, [] if candidate is None else [candidate])
        baseline, *others = ([load(place, label=name) for place in places] for name, (places, _) in found.items())
        candidate = others[0] if others else candidate
    if candidate is None:
        fix = "diff(BASELINE, CANDIDATE), each a run or a list of captures"
        raise OptionError("diff", "compares two runs, and one is named", fix=fix)
    before, after = told_apart([_as_side(baseline, "baseline"), _as_side(candidate, "candidate")])
    return RunDifference(before, after, rules, judged, fail_on)


def compare(
    runs: Iterable[AnySide] | Mapping[str, AnySide] | AnySide,
    *others: AnySide,
    sort: str | None = None,
    min_effect_pct: float | str = gate.DEFAULT_MIN_EFFECT_PCT,
    confidence: float = gate.DEFAULT_CONFIDENCE,
    force: bool = False,
) -> Scoreboard:
    """Set runs side by side: which is fastest, by how much, and what their steps' time goes to.

    speed-up = mean step time of the first run / mean step time of this one, over summary steps, with an interval at
    `confidence`; it compares steps/s, whatever a step processes. The verdict is that of `nsyspipe.diff` on step_time
    against the first: ``inconclusive`` with too few steps, and where world size, GPU model, ranks, ranks per batch or the
    work of a step differ. Such runs are also measured against their ``peer``, the first of their own kind.

    Parameters
    ----------
    runs
        In any number, the reference first: each as in `diff`. As a mapping, labels are its keys; of equal labels, in `diff`
        too, directories tell runs apart, else run ids. A store alone, ``compare(STORE)``, stands for all of its runs, the oldest first. One by one,
        ``compare(RUN, RUN)``, is the same as a list.
    sort
        Metric that the table is sorted by, the best first and nulls last; None keeps the order given.
    min_effect_pct, confidence, force
        As in `diff`, of step times.

    Returns
    -------
    Scoreboard
        With the Arrow tables ``table``, ``checks`` and ``problems``, and ``kinds``; null means "not recorded".

    Raises
    ------
    OptionError
        If there is no run, a metric is not known, a number is out of range, or a run has one capture twice.
    InputError
        If a path names no run, or a run cannot be read.

    Examples
    --------
    >>> board = nsyspipe.compare({"ddp": "ddp_*.sqlite", "bucket25": "bucket25_*.sqlite"})  # doctest: +SKIP
    >>> board.table.select(["label", "speedup", "verdict"]).to_pylist()[1]  # doctest: +SKIP
    {'label': 'bucket25', 'speedup': 1.12, 'verdict': 'improvement'}
    """
    from nsyspipe.comparison.difference import Side, told_apart  # noqa: PLC0415 - one run needs none
    from nsyspipe.comparison.metrics import Rules  # noqa: PLC0415 - one run needs none
    from nsyspipe.comparison.scoreboard import Scoreboard, check_sort  # noqa: PLC0415 - one run needs none

    check_flags(force=force)
    rules = Rules(gate.effect_ratio(min_effect_pct), gate.check_confidence(confidence), force)
    check_text("sort", sort, "sort='step_time'")
    if sort is not None:
        sort = check_sort(sort, "--sort")
    given: Any = [runs, *others] if others else runs
    if isinstance(given, Mapping):
        sides = [Side(label, _as_side(run).runs) for label, run in given.items()]
    elif isinstance(given, str | os.PathLike):
        place = os.fspath(given)
        ids = [*labels_by_time(Path(place))]
        if len(ids) <= 1:
            named = [] if is_saved(Path(place)) else shlex.split(" ".join(words_of_runs(find_named([place]))))
            if len(named) <= 1:
                raise OptionError(repr(place), "is one run, not a list of them", fix="compare(RUN, RUN)")
            what, fix = (
                f"has reports of {len(named)} runs, according to their names",
                f"compare({', '.join(map(repr, named))})",
            )
            raise OptionError(repr(place), what, fix=fix)
        sides = [_as_side(place_of(place, run_id)) for run_id in ids]
    else:
        fix = "compare(RUN, RUN), or compare('runs/')"
        if isinstance(given, set | frozenset):
            raise OptionError.of_kind("runs", given, "a list of runs, the baseline first,", fix)
        sides = [_as_side(run) for run in several("runs", given, "a list of them", fix)]
    if not sides:
        raise OptionError("compare", "has no run", fix="one run at least, the reference first")
    return Scoreboard(tuple(Side(side.name, side.runs) for side in told_apart(sides)), rules, sort)


def whatif(
    run: AnySide,
    *,
    bandwidth: float | str | None = None,
    link: str | None = None,
    gradient_dtype: str | None = None,
    bucket_mb: float | None = None,
    no_wait: bool = False,
    no_grad_copy: bool = False,
    no_sync: bool = False,
    prefetch: bool = False,
    perfect_overlap: bool = False,
    gradient_bytes: float | None = None,
) -> WhatIf:
    """Replay the captured steps with other communication, and say what the step time would be.

    Each rank's own work (its main stream, with its gaps) is kept; collective k starts when the work before it is
    done and the collective before it has ended, ends T_k after its last start over ranks, and what needs it waits
    for that end. Work beside communication takes 1 + c times as long, and each operation begins a delay later: c is that of
    the kernels that ``comm-slows-compute`` compares, the delay that of the gaps between operations; assumed where the
    capture does not show them.
    The step time is that of ``summary``: of each summary step the largest window over ranks, then the median.

    Parameters
    ----------
    run
        A run, or what `nsyspipe.load` takes: from reports or saved with its operations; of a single rank of several what
        needs no other is answered.
    bandwidth
        Bus bandwidth (busbw of nccl-tests) in bytes per second, as ``"300GB/s"``, or as ``"2x"`` of the captured one; with a
        role of `schema.TRAFFIC` in front (``"tensor=2x"``) of its communicators alone. Of gradients captured = gradient bytes x
        2(n-1)/n / transfer: T_k x captured / given over a slower link, 30 us + (T_k - 30 us) x captured / given over a
        faster one.
    link
        A name of `links.NAMED_LINKS` (``nvlink4``, ``pcie5x16``, ``infiniband-ndr``, ``roce-400``, ``shm``, …), or of
        a GPU for its NVLink (``a100``): its bandwidth. One that the capture reaches about (within 20 %) changes nothing.
    gradient_dtype
        ``bf16`` or ``fp16`` in place of f32: half the bytes, and twice the time of the copies for casting.
    bucket_mb
        DDP's ``bucket_cap_mb``: gradients in order of readiness, a bucket closed by the one that fills it; T of each =
        30 us + its bytes x captured time per byte; where one bucket was captured, those that begin beside work are 2 %
        longer and wait for a place on the GPU. The captured buckets stay as they are.
    no_wait
        All ranks work as the middle one of each step.
    no_grad_copy
        ``gradient_as_bucket_view=True``: without the copies that follow the collectives.
    no_sync
        Of an accumulation, gradients are sent in the last micro-batch alone: DDP's ``no_sync()`` in the others, without what
        scales them into buckets and copies them out.
    prefetch
        Of FSDP, each all-gather of parameters may begin when the one before it in its step may.
    perfect_overlap
        All communication beside work: max(work + c / (1 + c) x sum of T, sum of T) of each step.
    gradient_bytes
        Bytes of gradients per step, where neither NCCL's payload nor copies say them; changes nothing by itself.
        Where they do, it must be within 10 % of what they say.

    Returns
    -------
    WhatIf
        With any change asked for, one scenario of all of them together (id ``custom``); otherwise a menu of single
        changes, the largest gain first.

    Raises
    ------
    OptionError
        If a value cannot be used, or values contradict each other or the capture.
    InputError
        If a path names no run.
    DatasetError
        If the run was saved without its operations.

    Notes
    -----
    The interval comes from replays with the least and the most of each thing that is not known (c and the delay; bandwidth and
    overhead of a collective; ready times that were not seen), half a per cent for two captures of one program, and twice
    the standard error of the median: the root of the sum of their squares, since nothing ties one to another. It
    reaches 2 % of the predicted step time to either side, but not below the step if transfers took no time: on 28 pairs of
    captures the model was off by 1.1 % in the middle, and once by more than 4 %: of one bucket, 25 MB and bf16 at once took 5.8 %
    more than predicted, beyond the range; each alone takes 2 % more, and hosts of that capture are hardly ahead. The rest is open. What it does not cover is refused with its reason.

    A faster link is not predicted to be slower, nor its range to end higher, on any capture that was tried; yet nothing
    forces it: between 30 and 300 GB/s the slowdown that is assumed grows with the bandwidth, and holds while ranks wait.
    """
    from nsyspipe.comparison.difference import Side  # noqa: PLC0415 - one run needs none
    from nsyspipe.replay.answer import whatif as ask  # noqa: PLC0415 - few ask for it

    changes: dict[str, Any] = {
        "bandwidth": bandwidth, "link": link, "gradient_dtype": gradient_dtype, "bucket_mb": bucket_mb, "no_wait": no_wait,
        "no_grad_copy": no_grad_copy, "no_sync": no_sync, "prefetch": prefetch, "perfect_overlap": perfect_overlap,
    }  # fmt: skip
    is_opened = isinstance(run, Side | Run) or (isinstance(run, list | tuple) and isinstance([*run, None][0], Run))
    opened, *others = _as_side(run, "run").runs if is_opened else [load(run)]  # type: ignore[arg-type]  # as it refuses
    if others:
        raise OptionError("whatif", "asks one run, and several are given", fix="whatif(RUN) of one of them")
    return ask(opened, gradient_bytes=gradient_bytes, **changes)


def _as_side(side: AnySide, name: str = "runs") -> Side:
    from nsyspipe.comparison.difference import Side  # noqa: PLC0415 - one run needs none

    if isinstance(side, Side):
        return side
    if isinstance(side, Run | str | os.PathLike):
        run = side if isinstance(side, Run) else load(side)
        return Side(run.header.label, (run,))
    fix = "load([REPORT, REPORT]) for reports of one run, or [load(RUN), load(RUN)]"
    runs = tuple(several(name, side, "a run, a path, or a list of runs", fix))
    if not (runs and all(isinstance(run, Run) for run in runs)):
        problem = "is a list with other things than runs" if runs else "names no run"
        raise OptionError(f"{name}={short_repr(side)}", problem, fix=fix)
    return Side(runs[0].header.label, runs)
