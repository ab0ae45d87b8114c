"""The calls that accept names of runs: `load`, `diff`, `compare` and `whatif`.

A name becomes a `Run`, which reads nothing yet.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison import gate
from nsyspipe.errors import OptionError, short_repr
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
from nsyspipe.model.user_paths import AnyPath, ReportFile, UserPath
from nsyspipe.model.work import AskedWork
from nsyspipe.nsys.find_reports import (
    exported_reports,
    find_logs,
    find_named,
    named_reports,
    words_of_runs,
)
from nsyspipe.run.run import Run
from nsyspipe.store.choice import find_saved, labels_by_time, runs_by_label
from nsyspipe.store.layout import is_saved, place_of

if TYPE_CHECKING:
    from nsyspipe.comparison.side import Side
    from nsyspipe.report.public.difference import RunDifference
    from nsyspipe.report.public.scoreboard import Scoreboard
    from nsyspipe.report.public.whatif import WhatIf
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
    lines: bool = True,
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
    tokens_per_step: float | str | None = None,
    samples_per_step: float | str | None = None,
    flops_per_step: float | str | None = None,
    peak: str | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Open a run. nsyspipe reads nothing until you ask for a table.

    Parameters
    ----------
    reports
        A path, a directory, a glob, or several of them. An ``.nsys-rep`` file is first exported
        into a cache by nsys. Alternatively a run store that ``analyze --out`` wrote. If the store
        has several runs, choose one with `run_id`. A saved run is analyzed already, so `label` is
        the only other option that it accepts.
    step
        Regular expression for the texts of NVTX step ranges. ``"repetition"`` uses a periodic
        launch pattern. ``"none"`` treats the capture as a whole. If you pass None, nsyspipe detects
        the step ranges. If there are none, it uses a periodic launch pattern.
    steps
        Approximate number of captured steps (at most one more or less), to find them by a periodic
        launch pattern.
    backward, forward, optimizer, data
        Regular expressions for the names of phases. Pass None for the default.
    comm_kernel
        Regular expression for communication kernels in addition to NCCL kernels.
    lines
        Whether nsyspipe reads samples of Python, which show the lines that ran while the GPU
        waited.
    skip_first
        Number of complete warm-up steps to skip. ``"auto"`` skips the first, if another step
        remains.
    rank_map
        Rank by report name or path, as a mapping or as text: ``"a.sqlite=0,b.sqlite=1"``, or a file
        of such pairs.
    ranks
        Read only the reports of these ranks: ``"0-7,63"`` or numbers. The other ranks count as
        missing. nsyspipe finds the rank of a report in the rank map, then in a number at the end of
        the file name, then in the report itself. The default (None) is all reports.
    jobs
        Number of processes. If you pass None, nsyspipe chooses by cores, memory and the size of the
        reports.
    label, run_id
        Label and ID of the run. If you pass None, nsyspipe makes them from the reports. For a run
        store without `run_id`, nsyspipe takes the latest run with the label.
    nccl_log
        Logs of the run with ``NCCL_DEBUG=INFO``: one, several, or a glob.
    topology
        A file with the output of ``nvidia-smi topo -m`` on a host of the run.
    logs
        Whether nsyspipe uses NCCL logs and topology files that it finds in the directory of the
        reports. This matters only if you pass none.
    tokens_per_step, samples_per_step
        Tokens and samples of one step of the whole job: over all ranks and micro-batches. If you
        pass None, nsyspipe takes them from the sidecar.
    flops_per_step
        FLOPs of one step on one rank, over all micro-batches, for example ``9.483e12``. If you pass
        None, nsyspipe takes them from the sidecar of each rank.
    peak
        Datatype of the matrix multiplications: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"`` or
        ``"fp8"``. Model FLOPs utilization (MFU) is a share of the dense peak of this datatype.
        If you pass None, the names of the kernels show the datatype. MFU is null if they do not, or
        if the step mixes datatypes.
    executor
        Executor that reads the reports. By default, nsyspipe starts worker processes. It reads
        small reports without them.
    on_progress
        Function that nsyspipe calls with the number of finished reports and the number of all
        reports.

    Raises
    ------
    InputError
        If an argument is not a report, if `nccl_log` is not an NCCL log, or if `topology` is not a
        topology.
    CaptureError
        If nsys cannot export a report.
    OptionError
        If a parameter has the wrong type, or if a regular expression or the rank map is not valid.
        Also if an option does not apply to a saved run, or if ``STORE:NAME`` is the ID of one run
        and the label of another.
    """
    arguments = _report_arguments(reports)
    check_whole("steps", steps, "steps=20")
    check_whole("jobs", jobs, "jobs=4")
    skip_first = _checked_skip_first(skip_first)
    check_flags(logs=logs, lines=lines)
    if not logs:
        _check_no_side_files(nccl_log, topology)
    check_text("label", label, "label='baseline'")
    check_text("run_id", run_id, "run_id='run-7'")
    _check_executor(executor)
    _check_on_progress(on_progress)
    work_options = {
        "tokens_per_step": tokens_per_step,
        "samples_per_step": samples_per_step,
        "flops_per_step": flops_per_step,
        "peak": peak,
    }
    work = AskedWork.of_options(work_options)
    phases = {"backward": backward, "forward": forward, "optimizer": optimizer, "data": data}
    patterns: dict[str, Any] = {"step": step, **phases, "comm_kernel": comm_kernel}
    if any(is_saved(Path(argument)) for argument in arguments):
        # By option of the command line: its value, or None if the caller did not use it.
        options: dict[str, Any] = {
            **patterns,
            "steps": steps,
            "skip_first": None if skip_first == AUTO else skip_first,
            "rank_map": rank_map,
            "ranks": ranks,
            "nccl_log": nccl_log or None,
            "topology": topology,
            "no_logs": None if logs else True,
            "no_lines": None if lines else True,
            **work_options,
        }
        places = [*map(str, arguments)]
        return _load_saved(places, run_id, label, options)
    # A saved run does not need the modules that read reports.
    from nsyspipe.report.public.report_run import ReportRun  # noqa: PLC0415

    log_files = _log_files(nccl_log)
    topology_file = _topology_file(topology)
    chosen = _chosen_ranks(ranks, arguments, rank_map)
    # `_chosen_ranks` returns a `ChosenRanks` of the caller as it is. Then the caller has passed
    # only the reports of these ranks.
    if chosen is not None and chosen is not ranks:
        arguments = [*chosen.reports]
    exports = exported_reports(arguments, jobs=jobs)
    reading = Reading.from_text(n_steps=steps, with_lines=lines, **patterns)
    rank_of_report = chosen.rank_map if chosen else parse_rank_map(rank_map)
    return ReportRun(
        paths=tuple(exports),
        reading=reading,
        skip_first=parse_skip_first(skip_first),
        rank_map=rank_of_report,
        chosen=chosen,
        jobs=jobs,
        given_label=label,
        given_run_id=run_id,
        nccl_logs=log_files,
        topology=topology_file,
        work=work,
        looks_beside=logs,
        executor=executor,
        on_progress=on_progress,
    )


def _report_arguments(reports: object) -> list[AnyPath]:
    """Return argument `reports` of `load` as a list of paths.

    Raise an OptionError if `reports` is a loaded run, or an empty list.
    """
    fix = "load('captures/')"
    if isinstance(reports, Run):
        subject = f"reports={short_repr(reports)}"
        problem = "is already a loaded run"
        raise OptionError(subject, problem, fix="use the run directly: run.summary()")
    paths = [reports]
    if not isinstance(reports, str | os.PathLike):
        paths = [*several("reports", reports, "a path", fix)]
    if not paths:
        raise OptionError("reports=[]", "names no report", fix=fix)
    return [_report_argument(path, fix) for path in paths]


def _report_argument(path: object, fix: str) -> AnyPath:
    # The command line, or another run, has found its file already.
    if isinstance(path, ReportFile):
        return path
    return path_of("reports", path, fix)


def _checked_skip_first(skip_first: int | str | None) -> int | str:
    """Return how many steps to skip, or `AUTO`, after a check of the number."""
    if skip_first is None:
        return AUTO
    if not isinstance(skip_first, str):
        check_whole("skip_first", skip_first, "skip_first=1", 0)
    return skip_first


def _check_no_side_files(nccl_log: object, topology: object) -> None:
    """Raise an OptionError if a log or a topology is passed although none is to be used."""
    if nccl_log:
        raise logs_refused("--nccl-log")
    if topology is not None:
        raise logs_refused("--topology")


def _check_on_progress(on_progress: object) -> None:
    if on_progress is not None and not callable(on_progress):
        fix = "on_progress=lambda done, n_all: ..."
        raise OptionError.of_kind("on_progress", on_progress, "a function", fix)


def _chosen_ranks(
    ranks: str | int | Iterable[int] | ChosenRanks | None,
    arguments: Sequence[AnyPath],
    rank_map: Mapping[Any, int] | str | None,
) -> ChosenRanks | None:
    """Return the ranks that `load` reads, with their reports; None if it reads all reports."""
    if ranks is None:
        return None
    from nsyspipe.run.ranks import ChosenRanks, choose_ranks  # noqa: PLC0415 - few choose ranks

    if isinstance(ranks, ChosenRanks):
        return ranks
    return choose_ranks(ranks, named_reports(arguments), rank_map)


def _check_executor(executor: object) -> None:
    """Raise an OptionError unless `executor` is None or has a `submit`, as executors have."""
    if executor is None:
        return
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        fix = "executor=ThreadPoolExecutor(4), or jobs=4"
        raise OptionError.of_kind("executor", executor, "an executor", fix)


def _log_files(nccl_log: object) -> tuple[UserPath, ...]:
    """Return the log files that `nccl_log` names: a path, a glob, or several of them."""
    arguments = paths_of("nccl_log", nccl_log, "nccl_log='run.nccl.log'")
    files = find_logs(arguments)
    return tuple(map(UserPath.of, files))


def _topology_file(topology: AnyPath | None) -> UserPath | None:
    """Return the file that `topology` names, a path or a glob; None if it is None.

    Raise an OptionError if the glob matches several files.
    """
    if topology is None:
        return None
    files = find_logs([path_of("topology", topology, "topology='topo.txt'")])
    if len(files) > 1:
        first_file = str(files[0])
        subject = f"topology={str(topology)!r}"
        problem = f"are {len(files)} files"
        raise OptionError(subject, problem, fix=f"topology={first_file!r}")
    return UserPath.of(files[0]) if files else None


def _load_saved(
    arguments: Sequence[str], run_id: str | None, label: str | None, options: Mapping[str, object]
) -> Run:
    """Open a saved run.

    `options` has None for each option of `load` that the caller did not use. Any other value is an
    OptionError, because these options change how reports are read.
    """
    if len(arguments) > 1:
        are_all_saved = all(is_saved(Path(argument)) for argument in arguments)
        kinds = "several saved runs" if are_all_saved else "a saved run and something else"
        problem = f"{kinds}, which are not one run"
        raise OptionError(", ".join(arguments), problem, fix=f"load({arguments[0]!r}) alone")
    used_names = [name for name, value in options.items() if value is not None]
    if used_names:
        used_options = [f"--{name.replace('_', '-')}" for name in used_names]
        problem = f"{arguments[0]} is a saved run, which is analyzed already"
        fix = "leave them out, or analyze the reports again"
        raise OptionError(", ".join(used_options), problem, fix=fix)
    from nsyspipe.report.public.saved_run import SavedRun  # noqa: PLC0415 - slow to import

    store, saved_id = find_saved(Path(arguments[0]), run_id, label)
    return SavedRun(UserPath.of(store), saved_id, given_label=label)


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
    """Compare two runs, and decide whether the difference is real or noise.

    For each metric, delta is the median of the candidate minus the median of the baseline. Each
    median is over the summary steps of that side, which are the steps that the metrics use. If the
    times of a run are uneven, nsyspipe compares means instead. A time is the largest over ranks, a
    ratio is pooled over ranks, and a count or size is the mean over ranks.

    The verdict is ``regression`` or ``improvement`` if two conditions hold: the confidence interval
    of delta excludes 0, and |delta| is at least `min_effect_pct` of the baseline. The verdict is
    ``no change`` if the whole interval is smaller than `min_effect_pct`. All other cases are
    ``inconclusive``. Examples are a run with fewer than 3 summary steps, and runs that are not
    comparable.

    Parameters
    ----------
    baseline, candidate
        A `nsyspipe.Run`, or what `nsyspipe.load` accepts: a path, a glob, a directory or a saved
        run. ``STORE:LABEL`` is the latest run with that label. For several captures of one
        configuration, pass a list of runs or a `nsyspipe.Side`, which also has a label. nsyspipe
        reads both sides in parallel.
    against
        Use all runs of this label in the run store `baseline` as captures of the baseline. If the
        store has runs of all ranks and runs of some ranks, nsyspipe leaves out the runs of some
        ranks. `candidate` may be another label of the store. If you pass no candidate, the store
        must have exactly one other label, which is then the candidate.
    min_effect_pct
        Smallest relative difference that matters, in percent: 2 and "2%" are the same. Pass values
        below 0.1 as text.
    confidence
        Confidence of the intervals, between 0.5 and 1.
    metrics
        Metrics that the verdict uses: one name, several, or a text such as ``"step_time,idle"``
        (see `RunDifference.verdict`). By default, this is step_time. The table has all metrics in
        any case.
    fail_on
        ``"regression"`` or ``"any-change"`` of these metrics makes `RunDifference.gate` fail. The
        gate passes only if the confidence intervals exclude a failure. By default, there is no
        gate.
    force
        Give verdicts even if world size, GPU model, ranks, model-parallel size or the work of a
        step differ.

    Returns
    -------
    RunDifference
        The Arrow tables ``metrics``, ``step_time_parts``, ``idle_causes``, ``kernels`` and
        ``changes``. Table ``comparability`` shows why the runs are hard to compare. Table
        ``problems`` has the problems of each capture. Null means "not recorded".

    Raises
    ------
    OptionError
        If a metric or gate is unknown, a gate can never fail, or a number is out of range. Also if
        a side has the same capture twice.
    InputError
        If a path is not a run.

    Examples
    --------
    >>> change = nsyspipe.diff("before_*.sqlite", "after_*.sqlite")  # doctest: +SKIP
    >>> change.verdict, change.metrics.to_pylist()[0]["delta_pct"]  # doctest: +SKIP
    ('improvement', -11.2)
    >>> gated = nsyspipe.diff("before/", "after/", fail_on="regression")  # doctest: +SKIP
    >>> gated.gate  # doctest: +SKIP
    <Gate passed: no regression of median step_time by 2.0 % or more>
    """
    from nsyspipe.comparison.metrics import DEFAULT_METRIC, Rules  # noqa: PLC0415 - not for one run
    from nsyspipe.comparison.side import distinguish_sides  # noqa: PLC0415 - not for one run
    from nsyspipe.model.figures import METRICS  # noqa: PLC0415 - not for one run
    from nsyspipe.report.public.difference import RunDifference  # noqa: PLC0415 - not for one run

    check_flags(force=force)
    rules = Rules(gate.effect_ratio(min_effect_pct), gate.check_confidence(confidence), force)
    judged_metrics = gate.check_metrics(DEFAULT_METRIC if metrics is None else metrics)
    if fail_on is not None:
        gate.check_can_fail(fail_on, {name: METRICS[name].better for name in judged_metrics})
    check_text("against", against, "against='main'")
    if against is not None:
        store = path_of("baseline", baseline, f"diff('runs/', against={against!r})")
        candidates = [] if candidate is None else [candidate]
        runs_of_sides = []
        for label, saved_runs in runs_by_label(store, against, candidates).items():
            runs_of_sides.append([load(path, label=label) for path in saved_runs.paths])
        baseline = runs_of_sides[0]
        # Without a second side, `candidate` is a run outside the store, and stays as it is.
        if len(runs_of_sides) > 1:
            candidate = runs_of_sides[1]
    if candidate is None:
        fix = "diff(BASELINE, CANDIDATE), each a run or a list of captures"
        raise OptionError("diff", "compares two runs, and one is named", fix=fix)
    before, after = distinguish_sides(
        [_as_side(baseline, "baseline"), _as_side(candidate, "candidate")]
    )
    return RunDifference(before, after, rules, judged_metrics, fail_on)


def compare(
    runs: Iterable[AnySide] | Mapping[str, AnySide] | AnySide,
    *others: AnySide,
    sort: str | None = None,
    min_effect_pct: float | str = gate.DEFAULT_MIN_EFFECT_PCT,
    confidence: float = gate.DEFAULT_CONFIDENCE,
    force: bool = False,
) -> Scoreboard:
    """Compare several runs, and rank the runs that are comparable.

    speedup = mean step time of the first run / mean step time of this run, over summary steps, with
    a confidence interval. The speedup compares steps per second, whatever a step processes. The
    verdict is that of `nsyspipe.diff` for step_time against the first run. The verdict is
    ``inconclusive`` with too few steps, or if world size, GPU model, ranks, model-parallel size or
    the work of a step differ. nsyspipe also compares such a run with its ``peer``, the first run of
    its own group.

    Parameters
    ----------
    runs
        Any number of runs, the baseline first. Each run is one that `nsyspipe.diff` accepts. The
        keys of a mapping are labels. If two runs have the same label, nsyspipe uses directory names
        or run IDs instead. ``compare(STORE)`` compares all runs of a run store, the oldest first.
        ``compare(RUN, RUN)`` is the same as a list of two runs.
    sort
        Sort the table by this metric: the best run is first, and nulls are last. By default, the
        table keeps the order of `runs`.
    min_effect_pct, confidence, force
        As in `nsyspipe.diff`, for step times.

    Returns
    -------
    Scoreboard
        The Arrow tables ``table``, ``checks`` and ``problems``, and the groups ``kinds``. Null
        means "not recorded".

    Raises
    ------
    OptionError
        If there is no run, a metric is unknown, or a number is out of range. Also if a run has the
        same capture twice.
    InputError
        If a path is not a run, or if a run cannot be read.

    Examples
    --------
    >>> board = nsyspipe.compare({"ddp": "ddp/", "bucket25": "bucket25/"})  # doctest: +SKIP
    >>> board.table.select(["label", "speedup", "verdict"]).to_pylist()[1]  # doctest: +SKIP
    {'label': 'bucket25', 'speedup': 1.12, 'verdict': 'improvement'}
    """
    from nsyspipe.comparison.metrics import Rules  # noqa: PLC0415 - not for one run
    from nsyspipe.comparison.scoreboard import check_sort  # noqa: PLC0415 - not for one run
    from nsyspipe.comparison.side import Side, distinguish_sides  # noqa: PLC0415 - not for one run
    from nsyspipe.report.public.scoreboard import Scoreboard  # noqa: PLC0415 - not for one run

    check_flags(force=force)
    rules = Rules(gate.effect_ratio(min_effect_pct), gate.check_confidence(confidence), force)
    check_text("sort", sort, "sort='step_time'")
    if sort is not None:
        sort = check_sort(sort, "--sort")
    # A mapping, a list, or the path of a store.
    named_runs: Any = [runs, *others] if others else runs
    if isinstance(named_runs, Mapping):
        sides = [Side(label, _as_side(run).runs) for label, run in named_runs.items()]
    elif isinstance(named_runs, str | os.PathLike):
        place = os.fspath(named_runs)
        # The run IDs of the store, the oldest first; none if the path is not a store.
        run_ids = [*labels_by_time(Path(place))]
        if len(run_ids) <= 1:
            raise _one_run_error(place)
        sides = [_as_side(place_of(place, run_id)) for run_id in run_ids]
    else:
        fix = "compare(RUN, RUN), or compare('runs/')"
        if isinstance(named_runs, set | frozenset):
            # A set has no first run, which would be the baseline.
            needed = "a list of runs, the baseline first,"
            raise OptionError.of_kind("runs", named_runs, needed, fix)
        sides = [_as_side(run) for run in several("runs", named_runs, "a list of them", fix)]
    if not sides:
        raise OptionError("compare", "has no run", fix="one run at least, the reference first")
    named_sides = [Side(side.name, side.runs) for side in distinguish_sides(sides)]
    return Scoreboard(tuple(named_sides), rules, sort)


def _one_run_error(place: str) -> OptionError:
    """Return the error for `compare(place)`, where `place` is not a store with several runs.

    If `place` has reports whose file names tell several runs apart, the fix names these runs.
    """
    # For each run, the path or the glob of its reports.
    paths_of_runs = []
    if not is_saved(Path(place)):
        words_for_shell = words_of_runs(find_named([place]))
        # `split` takes the quotes of a shell away.
        paths_of_runs = shlex.split(" ".join(words_for_shell))
    if len(paths_of_runs) <= 1:
        return OptionError(repr(place), "is one run, not a list of them", fix="compare(RUN, RUN)")
    problem = f"has reports of {len(paths_of_runs)} runs, according to their names"
    arguments = ", ".join(map(repr, paths_of_runs))
    return OptionError(repr(place), problem, fix=f"compare({arguments})")


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
    """Predict the step time after a change of communication, by simulating the captured steps.

    The simulation keeps the work of each rank: its main stream, with its gaps. Collective k starts
    after the work before it and after the preceding collective. Collective k ends T_k after its
    start on the last rank. Work that needs the collective waits for this end.

    Work that is concurrent with communication takes 1 + c times as long, and each operation starts
    later by a delay. The simulation takes c from the kernels that ``comm-slows-compute`` compares,
    and the delay from the gaps between operations. If the capture does not show them, the
    simulation assumes typical values. The step time is that of ``summary``: the median over summary
    steps of the largest window over ranks.

    Parameters
    ----------
    run
        A run, or what `nsyspipe.load` accepts. A saved run needs its operations. If only one of
        several ranks is available, only changes that need no other rank have an estimate.
    bandwidth
        Bus bandwidth of collectives (busbw of nccl-tests) in bytes per second, for example
        ``"300GB/s"``, or ``"2x"`` the captured bandwidth. ``"tensor=2x"`` changes one kind of
        parallelism (`role` in `schema.TRAFFIC`). The captured bandwidth of gradients is gradient
        bytes x 2(n-1)/n / transfer time. On a slower interconnect, T_k grows by captured / new
        bandwidth. On a faster interconnect, T_k becomes 30 us + (T_k - 30 us) x captured / new
        bandwidth.
    link
        Bandwidth of a name in `links.NAMED_LINKS` (``nvlink4``, ``pcie5x16``, ``infiniband-ndr``,
        ``roce-400``, ``shm``, ...). The name of a GPU (``a100``) is its NVLink. An interconnect
        within 20% of the captured bandwidth changes nothing.
    gradient_dtype
        ``bf16`` or ``fp16`` instead of f32: half the bytes, and twice the copy time because of the
        casts.
    bucket_mb
        Set ``bucket_cap_mb`` of DDP. Gradients fill buckets in the order in which they become
        ready. T of a bucket is 30 us + its bytes x captured time per byte. If the captured run has
        one bucket per step, new buckets that start while work runs take 2% longer. They also start
        later, because they wait until a kernel frees a part of the GPU. If the captured buckets
        already have the new size, nsyspipe changes nothing.
    no_wait
        Every rank works as fast as the median rank of each step.
    no_grad_copy
        Set ``gradient_as_bucket_view=True``, which removes the copies after the collectives.
    no_sync
        Use ``no_sync()`` of DDP with gradient accumulation: send gradients only in the last
        micro-batch. In the other micro-batches, the work that scales and copies gradients is
        removed too.
    prefetch
        Gather the parameters of FSDP earlier. Each all-gather of parameters may start at the
        earliest time at which, in the capture, the all-gather before it could start.
    perfect_overlap
        Overlap all communication with work: max(work + c / (1 + c) x sum of T, sum of T) for each
        step. T is the transfer time of a collective, c is the slowdown under communication, and
        work is the step time if transfers take no time.
    gradient_bytes
        Size of the gradients of one rank: the sum of the message sizes of their collectives in
        one step. These are not the bytes on the wire. Give it if NCCL payloads and copies do not
        record the size. This value alone changes nothing. If the size is recorded, the value must
        be within 10% of it.

    Returns
    -------
    WhatIf
        Its scenarios. If you request changes, there is one scenario with all of them together (ID
        ``custom``). Otherwise there is one scenario per single change, sorted by saving.

    Raises
    ------
    OptionError
        If a value is not valid, or if values contradict each other or the capture.
    InputError
        If a path is not a run.
    DatasetError
        If the run was saved without its operations.

    Notes
    -----
    The range of an estimate comes from simulations with the smallest and the largest value of each
    unknown. The unknowns are c, the delay, the bandwidth and the overhead of a collective, and the
    ready times that were not captured. nsyspipe adds 0.5% for the difference between two captures
    of one program, and twice the standard error of the median. The range is the root of the sum of
    the squares, because the parts are independent.

    The range is at least 2% of the predicted step time on both sides. The range does not go below
    the step time with zero communication time. On 28 pairs of captures the median error was 1.1%,
    and one error exceeded 4%. In that case, a run with one bucket was changed to buckets of 25 MB
    and to bf16. The measured step time was 5.8% above the prediction and outside the range. Each of
    the two changes alone takes 2% more than predicted, and the CPUs of that capture are hardly
    ahead of their GPUs. The rest of the error is not explained. If the model does not cover a
    change, nsyspipe gives a reason instead of an estimate.

    In all captures that we tried, a faster interconnect had a predicted step time that was shorter
    or equal. The upper end of its range was also lower or equal. The model does not guarantee this.
    Between 30 and 300 GB/s, the assumed slowdown grows with the bandwidth and applies while ranks
    wait.
    """
    from nsyspipe.comparison.side import Side  # noqa: PLC0415 - not for one run
    from nsyspipe.replay.answer import whatif as ask  # noqa: PLC0415 - few ask for it
    from nsyspipe.report.public.whatif import WhatIf  # noqa: PLC0415 - few ask for it

    changes: dict[str, Any] = {
        "bandwidth": bandwidth,
        "link": link,
        "gradient_dtype": gradient_dtype,
        "bucket_mb": bucket_mb,
        "no_wait": no_wait,
        "no_grad_copy": no_grad_copy,
        "no_sync": no_sync,
        "prefetch": prefetch,
        "perfect_overlap": perfect_overlap,
    }
    if isinstance(run, Side | Run) or _starts_with_run(run):
        runs = _as_side(run, "run").runs
    else:
        # Paths of the reports of one run, or something that `load` refuses.
        runs = (load(run),)  # type: ignore[arg-type]
    if len(runs) > 1:
        problem = "asks one run, and several are given"
        raise OptionError("whatif", problem, fix="whatif(RUN) of one of them")
    answer = ask(runs[0], gradient_bytes=gradient_bytes, **changes)
    return WhatIf(**vars(answer))


def _starts_with_run(runs: object) -> bool:
    return isinstance(runs, list | tuple) and bool(runs) and isinstance(runs[0], Run)


def _as_side(side: AnySide, name: str = "runs") -> Side:
    """Return a side of one or several runs, which has the label of its first run.

    `name` is the parameter that errors name.
    """
    from nsyspipe.comparison.side import Side  # noqa: PLC0415 - not for one run

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
