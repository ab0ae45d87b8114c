"""Which facts around two runs both sides recorded, so that they may be called the same; the environment of reports is one."""

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.comparison.causes import cause_of
from nsyspipe.comparison.facts import (
    BY_GRAPH_NODES,
    BY_GROUPS,
    BY_LOG,
    BY_WRITTEN_LOG,
    CUDA_OF_DRIVER,
    CUDA_OF_TORCH,
    DELAYS,
    ENVIRONMENT,
    ONE_RANK,
    ONLY_STAGES,
    STARTED_COMMAND,
)
from nsyspipe.comparison.side import Side
from nsyspipe.comparison.surroundings import MAY_HAVE
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.schema import FINDINGS
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report.difference import (
    FiguresOfOneSide,
    _fact_without_value,
    figures_of_one_side,
    notes,
)
from nsyspipe.run.run import RunHeader
from nsyspipe.store.write import save
from tests.build.plain_steps import plain_rank
from tests.build.tools import Changed
from tests.comparison.conftest import STEPS, captured, changes

SLOW, FAST = [(1000, 600, 0, 100)] * 8, [(1000, 100, 0, 100)] * 8
LINK = NcclFacts("2.28.3", {"NCCL_P2P_DISABLE": "1"}, nvls=False)


def run_of(folder, steps=STEPS, **variables):
    """Return two ranks of steps whose programs were started with some variables."""
    folder.mkdir()
    for rank in range(2):
        plain_rank(rank, steps, world_size=2).env(**variables).write(folder / f"r_{rank}.sqlite")
    return nsyspipe.load(folder, jobs=1)


def difference(before, after):
    return nsyspipe.diff(Side("a", (before,)), Side("b", (after,)))


def facts(before, after):
    return {row["what"]: row for row in difference(before, after).facts.to_pylist()}


def state(before, after, what):
    row = facts(before, after)[what]
    return row["recorded_on"], row["is_same"]


def test_what_neither_side_recorded_is_not_the_same(run):
    found = facts(run, run)
    lacking = {what for what, row in found.items() if row["recorded_on"] == "neither"}
    assert {
        "link",
        "NCCL settings",
        "torch",
        CUDA_OF_TORCH,
        "driver",
        "command",
        ENVIRONMENT,
    } <= lacking
    assert not [what for what in lacking if found[what]["is_same"] is not None]
    assert not [what for what in lacking if not found[what]["recorded_by"]]


def test_what_both_sides_recorded_alike_is_the_same(run):
    found = facts(run, run)
    assert [
        found[what]["is_same"] for what in ("collectives per step", "host names", "CUDA graphs")
    ] == [True] * 3
    assert found["host names"]["recorded_by"] is None


@pytest.mark.parametrize("what", ["torch", "driver"])
def test_a_fact_of_one_side_is_not_compared(run, what):
    told = captured(run, torch_version="2.7", driver_version="570")
    assert state(told, run, what) == ("baseline", None)
    assert state(run, told, what) == ("candidate", None)


def test_settings_of_one_log_are_not_compared(run):
    logged = Changed(run, nccl=LINK)
    assert state(run, logged, "NCCL settings") == ("candidate", None)
    assert not [what for _, what in changes(run, logged) if what.startswith("NCCL_")]


@pytest.mark.parametrize(
    ("one", "other", "fix"),
    [
        ("INFO", "trace", BY_WRITTEN_LOG),
        ("INFO", "WARN", BY_LOG),
        ("WARN", "INFO", BY_LOG),
        (None, None, BY_LOG),
    ],
)
def test_a_log_that_both_runs_wrote_is_to_be_passed(tmp_path, one, other, fix):
    levels = {"a": one, "b": other}
    runs = [
        run_of(tmp_path / name, PATH="/bin", **({"NCCL_DEBUG": level} if level else {}))
        for name, level in levels.items()
    ]
    found = facts(*runs)
    assert {found[what]["recorded_by"] for what in ("link", "NCCL settings", "NCCL version")} == {
        fix
    }


def test_of_sides_of_which_one_gave_its_log_the_other_may_have_written_one(tmp_path):
    before, after = (run_of(tmp_path / name, NCCL_DEBUG="INFO") for name in "ab")
    row = facts(Changed(before, nccl=LINK), after)["NCCL settings"]
    assert (row["recorded_on"], row["recorded_by"]) == ("baseline", BY_WRITTEN_LOG)


def test_settings_of_logs_are_not_named_settings_of_the_environment(tmp_path, worded):
    before, after = (
        run_of(tmp_path / "a", NCCL_ALGO="Ring"),
        run_of(tmp_path / "b", NCCL_ALGO="Ring"),
    )
    row = facts(before, after)["NCCL settings"]
    worded([_fact_without_value(row)], "no log")
    told = _fact_without_value(facts(Changed(before, nccl=LINK), after)["NCCL settings"])
    assert "NCCL_P2P_DISABLE" in told
    worded(told, "one log")


def test_settings_of_two_logs_are_compared_even_where_one_names_none(run):
    before, after = Changed(run, nccl=LINK), Changed(run, nccl=replace(LINK, settings={}))
    assert changes(before, after)["link", "NCCL_P2P_DISABLE"] == ("1", None)
    assert state(before, after, "NCCL settings") == ("both", False)


def test_a_log_of_a_level_without_settings_says_nothing_of_them(run):
    before, after = Changed(run, nccl=LINK), Changed(run, nccl=NcclFacts("2.28.3", {}, None))
    assert state(before, after, "NCCL settings") == ("baseline", None)


@pytest.mark.slow
def test_environments_of_two_reports_that_differ(tmp_path):
    before = run_of(tmp_path / "a", CUDA_DEVICE_MAX_CONNECTIONS=1, TORCH_NCCL_ENABLE_TIMING=1)
    after = run_of(tmp_path / "b", CUDA_DEVICE_MAX_CONNECTIONS=8)
    found = changes(before, after)
    assert found["capture", "CUDA_DEVICE_MAX_CONNECTIONS"] == ("1", "8")
    assert found["capture", "TORCH_NCCL_ENABLE_TIMING"] == ("1", None)
    assert state(before, after, ENVIRONMENT) == ("both", False)


def test_an_environment_without_training_variables_is_compared(tmp_path):
    before, after = (
        run_of(tmp_path / "a", NCCL_P2P_DISABLE=1),
        run_of(tmp_path / "b", PATH="/usr/bin"),
    )
    assert changes(before, after)["capture", "NCCL_P2P_DISABLE"] == ("1", None)


def test_an_environment_that_only_one_report_has_is_not_compared(run, tmp_path):
    told = run_of(tmp_path / "a", NCCL_P2P_DISABLE=1)
    assert state(told, run, ENVIRONMENT) == ("baseline", None)
    assert ("capture", "NCCL_P2P_DISABLE") not in changes(told, run)


def test_a_setting_is_compared_once_where_logs_and_environments_have_it(tmp_path):
    before, after = (
        run_of(tmp_path / "a", NCCL_P2P_DISABLE=1),
        run_of(tmp_path / "b", PATH="/usr/bin"),
    )
    logged = (
        Changed(before, nccl=LINK),
        Changed(after, nccl=replace(LINK, settings={"NCCL_DEBUG": "INFO"})),
    )
    named = [topic for topic, what in changes(*logged) if what == "NCCL_P2P_DISABLE"]
    assert named == ["link"]


def test_an_environment_that_a_log_contradicts_is_not_the_same(tmp_path):
    """Programs that set a variable themselves: NCCL took it, and the environment of their start lacks it."""
    before, after = (
        run_of(tmp_path / "a", NCCL_P2P_DISABLE=1),
        run_of(tmp_path / "b", NCCL_P2P_DISABLE=1),
    )
    assert state(before, after, ENVIRONMENT) == ("both", True)
    assert state(Changed(before, nccl=LINK), after, ENVIRONMENT) == ("both", True)
    other = replace(LINK, settings={"NCCL_P2P_DISABLE": "0"})
    assert state(before, Changed(after, nccl=other), ENVIRONMENT) == ("both", None)


@pytest.mark.slow
def test_environments_that_differ_in_what_logs_compare_are_not_the_same(tmp_path):
    before, after = (
        run_of(tmp_path / "a", NCCL_P2P_DISABLE=1),
        run_of(tmp_path / "b", PATH="/usr/bin"),
    )
    logged = Changed(before, nccl=LINK), Changed(after, nccl=replace(LINK, settings={}))
    assert state(*logged, ENVIRONMENT) == ("both", False)


def test_what_only_one_side_has_stands_with_its_value(run):
    told = captured(Changed(run, nccl=LINK), torch_version="2.7")
    for found in (facts(run, told), facts(told, run)):
        assert [found[what]["words"] for what in ("torch", "NCCL settings", "NCCL version")] == [
            "2.7",
            "NCCL_P2P_DISABLE=1",
            "2.28.3",
        ], found
    assert facts(told, told)["straggler"]["words"] == "none"


@pytest.mark.slow
def test_the_delays_that_graphs_as_a_whole_hide_are_recorded_node_by_node(runs):
    found = facts(runs("2gpu-graph"), runs("2gpu-graph-node"))
    lacking = [row for row in found.values() if row["recorded_by"] == BY_GRAPH_NODES]
    assert [row["topic"] for row in lacking] == [
        "collectives",
        "copies",
        "stragglers",
        "stragglers",
    ]
    assert {(row["recorded_on"], row["recorded_by"]) for row in lacking} == {
        ("candidate", BY_GRAPH_NODES)
    }
    assert [row["unit"] for row in lacking] == ["count", None, "ns", None]
    (n,) = runs("2gpu-graph-node").summary()["collectives_per_step"].to_pylist()
    assert lacking[0]["value"] == n


def test_the_delays_of_groups_that_are_not_named_need_their_names(run):
    row = {"code": "groups-not-named", "severity": "warning", "message": "", "fix": None}
    unnamed = Changed(run, problem_rows=[row], stragglers=lambda: run.stragglers().slice(0, 0))
    found = facts(unnamed, run)["delays by ranks"]
    assert (found["recorded_on"], found["recorded_by"]) == ("candidate", BY_GROUPS)


def test_why_nobody_was_judged_stands_on_its_side(run):
    reason = "the ranks that are waited for launch no slower"
    unjudged = Changed(run, skipped_checks=(SkippedCheck(("no-sync", "straggler"), reason, "x"),))
    found = facts(unjudged, unjudged)["straggler"]
    assert (found["recorded_on"], found["recorded_by"]) == ("neither", None)
    assert (found["baseline_why"], found["candidate_why"]) == (reason, reason)
    found = facts(unjudged, run)["straggler"]
    assert (found["recorded_on"], found["words"]) == ("candidate", "none")
    assert (found["baseline_why"], found["candidate_why"]) == (reason, None)


def test_sides_of_which_one_was_not_judged_and_one_lacks_groups(run):
    unnamed = {"code": "groups-not-named", "severity": "warning", "message": "", "fix": None}
    lacking = Changed(run, problem_rows=[unnamed], stragglers=lambda: run.stragglers().slice(0, 0))
    unjudged = Changed(run, skipped_checks=(SkippedCheck(("straggler",), "why", "x"),))
    found = facts(unjudged, lacking)["straggler"]
    assert [found[name] for name in ("recorded_by", "baseline_why", "candidate_why")] == [
        BY_GROUPS,
        "why",
        None,
    ]


def test_delays_of_one_rank_lack_no_report(tmp_path):
    (tmp_path / "a").mkdir()
    plain_rank(0, STEPS, world_size=1).write(tmp_path / "a" / "r_0.sqlite")
    alone = nsyspipe.load(tmp_path / "a", jobs=1)
    found = facts(alone, alone)
    for what in ("straggler", DELAYS):
        assert (found[what]["recorded_by"], found[what]["baseline_why"]) == (None, ONE_RANK), what


@pytest.mark.slow
def test_delays_where_only_stages_of_a_pipeline_meet_lack_no_report(runs):
    staged = runs("2gpu-pp")
    found = facts(staged, staged)
    for what in ("straggler", DELAYS):
        assert (found[what]["recorded_by"], found[what]["candidate_why"]) == (None, ONLY_STAGES), (
            what
        )


WHY = "candidate: its clocks are not known"


def split(metric, n_baseline, n_candidate, *, value=None, why=WHY):
    counts = {"n_baseline": n_baseline, "n_candidate": n_candidate}
    return {"metric": metric, "baseline": value, "candidate": value, "why": why} | counts


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [split("wait", 8, 0), split("transfer", 8, 0)],
            [FiguresOfOneSide("baseline", WHY, ("wait", "transfer"))],
        ),
        (
            [split("wait", 0, 1, why="baseline: x")],
            [FiguresOfOneSide("candidate", "baseline: x", ("wait",))],
        ),
        ([split("wait", 0, 0), split("transfer", 8, 8)], []),
        ([split("message_bytes", 8, 0)], []),  # of which facts say more
        ([split("wait", 8, 0, value=5.0)], []),  # a capture without steps has values, of no step
    ],
)
def test_waiting_and_transfer_of_one_side_are_told_with_the_reason(rows, told):
    assert figures_of_one_side(SimpleNamespace(metrics=pa.Table.from_pylist(rows))) == told


def test_waiting_that_both_sides_have_is_not_of_one(run):
    assert not figures_of_one_side(difference(run, run))


def commanded(folder, *words):
    """Return two ranks of steps that nsys started with a command."""
    folder.mkdir()
    for rank in range(2):
        plain_rank(rank, STEPS, world_size=2).command(*words).write(folder / f"r_{rank}.sqlite")
    return nsyspipe.load(folder, jobs=1)


def test_commands_that_nsys_started_are_compared(tmp_path):
    before = commanded(tmp_path / "a", "/home/me/bin/python3", "/home/me/train.py", "--ddp")
    after = commanded(tmp_path / "b", "python3", "train.py", "--ddp", "--bucket-mb", "100")
    assert before.header.commands == ["python3 train.py --ddp"]
    assert state(before, before, "command") == ("both", True)
    assert state(before, after, "command") == ("both", False)
    assert (
        changes(before, after)["capture", STARTED_COMMAND][1]
        == "python3 train.py --ddp --bucket-mb 100"
    )


def test_a_command_of_a_launcher_is_told_once(tmp_path):
    before, after = (
        commanded(tmp_path / name, "python3", "train.py", "--lr", name) for name in "12"
    )
    told = [captured(one, command=["torchrun", "train.py"]) for one in (before, after)]
    assert state(*told, "command") == ("both", True)
    assert not [what for _, what in changes(*told) if "command" in what]


def test_commands_of_different_kinds_cannot_be_compared_and_have_no_words(run, tmp_path):
    by_launcher = captured(run, command=["torchrun", "train.py"])
    by_nsys = commanded(tmp_path / "a", "python3", "train.py")
    found = facts(by_launcher, by_nsys)["command"]
    assert (found["recorded_on"], found["is_same"]) == ("neither", None)
    assert found["words"] is None


def test_a_value_of_a_command_that_is_hidden_may_have_changed(tmp_path):
    before, after = (
        commanded(tmp_path / name, "python3", "train.py", "--data", f"/mnt/{name}") for name in "ab"
    )
    assert state(before, after, "command") == ("both", None)
    assert ("capture", f"{STARTED_COMMAND}{MAY_HAVE}") in changes(before, after)


def test_a_saved_run_has_the_commands_of_its_reports(tmp_path):
    run = commanded(
        tmp_path / "a", "python3", "train.py", "--lr", "0.1", "--api-key", "hunter-two-three"
    )
    save(run, tmp_path / "store")
    assert nsyspipe.load(tmp_path / "store").header.commands == [
        "python3 train.py --lr 0.1 --api-key '***'"
    ]


@pytest.mark.parametrize(
    ("host", "is_known"), [("host-0", False), ("host-12", False), ("host-a", True), ("node0", True)]
)
def test_a_name_that_a_redaction_gave_a_host_is_not_compared(run, host, is_known):
    named = Changed(run, header=replace(run.header, hosts=[host]))
    found = facts(named, named)["host names"]
    assert (found["recorded_on"], found["is_same"]) == (
        ("both", True) if is_known else ("neither", None)
    )


def told_run(folder, driver, cuda, events, **options):
    """Return two ranks of steps whose reports say what the machine and the capture were."""
    folder.mkdir()
    for rank in range(2):
        builder = plain_rank(rank, STEPS, world_size=2, **options)
        for name, value in (("NvDriverVersion", driver), ("CudaDriverVersion", cuda)):
            builder.add(
                "TARGET_INFO_SYSTEM_ENV",
                globalVid=0,
                devStateName="",
                name=name,
                value=value,
                nameEnum=0,
            )
        for value in events:
            builder.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value=value)
        builder.add(
            "META_DATA_CAPTURE", name="PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", value="Node"
        )
        builder.write(folder / f"r_{rank}.sqlite")
    return nsyspipe.load(folder, jobs=1)


@pytest.mark.parametrize(
    ("rate", "samplings"), [("1000", ["1000"]), ("1e3; drop", []), (None, ["off"])]
)
def test_the_rate_of_python_samples_is_read_from_the_options_of_the_capture(
    tmp_path, rate, samplings
):
    builder = plain_rank(0, STEPS).add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="Cuda")
    if rate is not None:
        name = "PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE"
        builder.add("META_DATA_CAPTURE", name=name, value=rate)
    builder.write(tmp_path / "r.sqlite")
    assert nsyspipe.load(tmp_path, jobs=1).header.python_samplings == samplings


@pytest.mark.parametrize(
    ("samplings", "per_s"),
    [(["1000"], 1000.0), (["off"], None), ([], None), (["1000", "200"], None)],
)
def test_samples_per_second_are_known_if_all_reports_have_one_rate(samplings, per_s):
    header = RunHeader("run", "label", 1, None, [], [], [], [], None, [])
    assert replace(header, python_samplings=samplings).python_samples_per_s == per_s


@pytest.mark.slow
def test_drivers_and_traced_events_of_reports_are_compared(tmp_path):
    before = told_run(tmp_path / "a", "580.159.04", "13000", ["NvtxEvents", "Cuda"])
    after = told_run(tmp_path / "b", "570.86", "12080", ["Cuda", "NvtxEvents", "OSRuntime"])
    found = changes(before, after)
    assert found["versions", "driver"] == ("580.159.04", "570.86")
    assert found["versions", CUDA_OF_DRIVER] == ("13.0", "12.8")
    assert found["capture", "traced events"] == ("Cuda, NvtxEvents", "Cuda, NvtxEvents, OSRuntime")
    assert before.header.cuda_graph_traces == ["node"]
    assert before.header.python_samplings == ["off"]
    assert state(before, before, "driver") == ("both", True)
    save(before, tmp_path / "store")
    assert nsyspipe.load(tmp_path / "store").header == before.header


@pytest.mark.parametrize("value", ["/home/me", "hunter2", "580 <b>", ""])
def test_what_is_no_version_in_a_report_is_not_read(tmp_path, value):
    header = told_run(tmp_path / "a", value, value, [value, "1"]).header
    assert (header.driver_versions, header.cuda_driver_versions) == ([], [])
    assert header.traced_events == []


def test_the_one_kind_that_redacted_copies_keep_is_not_taken_for_all(tmp_path):
    assert told_run(tmp_path / "a", "580", "13000", ["NvtxEvents"]).header.traced_events == []


def test_a_driver_of_a_sidecar_comes_before_that_of_reports(run, tmp_path):
    told = told_run(tmp_path / "a", "580.159.04", "13000", [])
    assert changes(captured(run, driver_version="570"), told)["versions", "driver"] == (
        "570",
        "580.159.04",
    )
    assert state(run, told, CUDA_OF_DRIVER) == ("candidate", None)


SLOWED = "comm-slows-compute"


@pytest.mark.slow
@pytest.mark.parametrize("is_found", [True, False])
def test_a_slowdown_is_said_to_be_in_analyze_only_if_it_is(runs, is_found):
    """Compute got slower beside more communication, and the finding of it is not judged without kernels to compare."""
    after = runs("2gpu-gpt-b25-shm")
    rows = [row for row in after.judged_findings().to_pylist() if row["id"] != SLOWED]
    found = FINDINGS.from_rows([*rows, rows[0] | {"id": SLOWED}][: len(rows) + is_found])
    texts = notes(difference(runs("2gpu-gpt-b25"), Changed(after, judged_findings=lambda: found)))
    assert any(SLOWED in text for text in texts) == is_found


@pytest.mark.slow
def test_hidden_values_may_have_changed_and_are_not_the_same(tmp_path):
    before, after = (run_of(tmp_path / name, NCCL_IB_HCA=f"secret-{name}") for name in "ab")
    assert ("capture", f"NCCL_IB_HCA{MAY_HAVE}") in changes(before, after)
    assert state(before, after, ENVIRONMENT) == ("both", None)
    assert "secret" not in repr(changes(before, after))


@pytest.mark.slow
def test_a_saved_run_has_the_environment_of_its_reports(tmp_path):
    before = run_of(tmp_path / "a", CUDA_DEVICE_MAX_CONNECTIONS=1)
    after = run_of(tmp_path / "b", CUDA_DEVICE_MAX_CONNECTIONS=8)
    save(before, tmp_path / "store")
    saved = nsyspipe.load(tmp_path / "store")
    assert saved.header.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert saved.files.table("runs")["environment"].to_pylist() == [
        '{"CUDA_DEVICE_MAX_CONNECTIONS": "1"}'
    ]
    assert changes(saved, after)["capture", "CUDA_DEVICE_MAX_CONNECTIONS"] == ("1", "8")


def test_values_of_several_ranks_survive_saving(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    for rank in range(2):
        plain_rank(rank, STEPS, world_size=2).env(CUDA_DEVICE_MAX_CONNECTIONS=1 + rank).write(
            folder / f"r_{rank}.sqlite"
        )
    save(nsyspipe.load(folder, jobs=1), tmp_path / "store")
    assert nsyspipe.load(tmp_path / "store").header.environment == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1 | 2"
    }


def causes(before, after):
    """Return the facts of the probable cause, by name, of two runs."""
    cause = cause_of(difference(before, after))
    return {fact[0]: fact[2:] for fact in cause.facts}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        ({"CUDA_DEVICE_MAX_CONNECTIONS": 1}, {"CUDA_DEVICE_MAX_CONNECTIONS": 8}),
        ({"TORCH_NCCL_ENABLE_TIMING": 1}, {"TORCH_NCCL_ENABLE_TIMING": 0}),
        ({"NCCL_P2P_DISABLE": 1}, {"PATH": "/bin"}),
        ({"CUDA_LAUNCH_BLOCKING": 1}, {"PATH": "/bin"}),
        ({"TORCH_NCCL_BLOCKING_WAIT": 1}, {"PATH": "/bin"}),
    ],
)
def test_a_costly_setting_of_the_slower_side_is_its_probable_cause(tmp_path, slow, fast):
    before, after = run_of(tmp_path / "a", SLOW, **slow), run_of(tmp_path / "b", FAST, **fast)
    (name,) = slow
    assert causes(before, after)[name][0] == "1"
    assert causes(after, before)[name][1] == "1"


@pytest.mark.slow
def test_a_costly_setting_of_the_faster_side_is_no_cause(tmp_path):
    before = run_of(tmp_path / "a", FAST, CUDA_DEVICE_MAX_CONNECTIONS=1)
    after = run_of(tmp_path / "b", SLOW, CUDA_DEVICE_MAX_CONNECTIONS=8)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in causes(before, after)


def test_what_follows_from_a_setting_of_the_link_is_not_named_beside_it(tmp_path):
    slow, fast = run_of(tmp_path / "a", SLOW), run_of(tmp_path / "b", FAST)
    before = Changed(slow, nccl=LINK)
    after = Changed(fast, nccl=NcclFacts("2.28.3", {"NCCL_DEBUG": "INFO"}, nvls=True))
    assert [*causes(before, after)] == ["NCCL_P2P_DISABLE"]
    assert ("link", "NVLink SHARP") in changes(before, after)


@pytest.mark.slow
def test_a_scoreboard_has_variables_that_differ(tmp_path):
    runs = {
        name: run_of(tmp_path / name, CUDA_DEVICE_MAX_CONNECTIONS=n, NCCL_DEBUG="INFO")
        for name, n in (("a", 1), ("b", 8))
    }
    runs["c"] = run_of(tmp_path / "c", NCCL_DEBUG="INFO")
    runs["d"] = run_of(tmp_path / "d")
    board = nsyspipe.compare(runs)
    rows = [tuple(row.values()) for row in board.environments.to_pylist()]
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert rows == [(name, "a", "1"), (name, "b", "8"), (name, "c", "not set")]
    assert board.without_environment == ["d"]


@pytest.mark.parametrize("setting", [{}, {"CUDA_DEVICE_MAX_CONNECTIONS": 1}])
def test_a_command_is_a_cause_only_where_nothing_that_follows_from_it_is_known(tmp_path, setting):
    before, after = (
        run_of(tmp_path / "a", SLOW, PATH="/bin", **setting),
        run_of(tmp_path / "b", FAST, PATH="/bin"),
    )
    before, after = (
        Changed(one, header=replace(one.header, commands=[f"train.py --lr {n}"]))
        for n, one in enumerate((before, after))
    )
    assert [*causes(before, after)] == ([*setting] or [STARTED_COMMAND])
