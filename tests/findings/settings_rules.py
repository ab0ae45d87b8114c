"""Rules about costly settings of the environment: each needs the setting and what it does to the steps. Times are ns."""

from nsyspipe.findings.settings import blocking_launches, serialized_streams
from tests.findings.make import NOT_JUDGED, case, evidence, of, step, steps, threshold, traffic

ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
TIMING = {"TORCH_NCCL_ENABLE_TIMING": "1"}
BLOCKING, WAITING = {"CUDA_LAUNCH_BLOCKING": "1"}, {"TORCH_NCCL_BLOCKING_WAIT": "true"}
LAUNCH, BLOCKED, DEPENDENCY = "idle_launch_ns", "idle_blocked_ns", "idle_dependency_ns"


def run(environment, *, exposed=300, hidden=100, wait=0, role="data", **figures):
    """Return two ranks with a step of 1000, of which so much is exposed communication."""
    rows = [step(rank, exposed=exposed, hidden=hidden, wait=wait, **figures) for rank in range(2)]
    return evidence(
        rows,
        environment=environment,
        traffic=traffic(role, "all_reduce", (exposed, wait), (exposed, wait)),
    )


STREAMS = of(
    serialized_streams,
    case("one connection", run(ONE), saving=300, settings=ONE),
    case("timing", run(TIMING), saving=300, settings=TIMING),
    case("both are one cause", run(ONE | TIMING), saving=300, settings=ONE | TIMING),
    case("of some processes", run({"CUDA_DEVICE_MAX_CONNECTIONS": "1 | 8"}), saving=300),
    # 300 exposed less 120 that wait for others, and 50 between launch and start.
    case(
        "waiting is another's, dependency is its own",
        run(ONE, wait=120, **{DEPENDENCY: 50}),
        saving=230,
    ),
    case("no waiting known", run(ONE, wait_ns=None, **{DEPENDENCY: 50}), saving=350),
    # Rank 1 is left with 900 - 100 - 0 of its window, rank 0 with 1000 - 300.
    case(
        "the slowest rank without it",
        evidence([step(0, exposed=300), step(1, exposed=100, wall=900)], environment=ONE),
        saving=200,
    ),
    *threshold("5 % is exposed", run(ONE, exposed=50), run(ONE, exposed=49)),
    case("8 connections", run({"CUDA_DEVICE_MAX_CONNECTIONS": "8"})),
    case("not set", run({})),
    case("not recorded", run(None)),
    case("tensor parallelism alone may want it", run(ONE, role="tensor")),
    case("timing of tensor parallelism", run(ONE | TIMING, role="tensor"), settings=TIMING),
    case("not known", run(ONE, exposed_comm_ns=None), NOT_JUDGED),
    case("no communication", evidence(steps(1), environment=ONE)),
)

HOST = of(
    blocking_launches,
    case("launches block", run(BLOCKING, **{LAUNCH: 100}), saving=400, settings=BLOCKING),
    case("collectives block", run(WAITING, **{BLOCKED: 100}), saving=400, settings=WAITING),
    case("both", run(BLOCKING | WAITING, **{LAUNCH: 100}), settings=BLOCKING | WAITING),
    case("communication cannot overlap", run(BLOCKING), saving=300),
    *threshold(
        "idle",
        run(BLOCKING, exposed=0, **{LAUNCH: 15, BLOCKED: 5}),
        run(BLOCKING, exposed=0, **{LAUNCH: 15, BLOCKED: 4}),
    ),
    *threshold("exposed", run(BLOCKING, exposed=50), run(BLOCKING, exposed=49)),
    case("no collectives to wait for", evidence([step(idle_launch_ns=100)], environment=WAITING)),
    case("alone", evidence([step(idle_launch_ns=100)], environment=BLOCKING), saving=100),
    case("off", run({"CUDA_LAUNCH_BLOCKING": "0"}, **{LAUNCH: 100})),
    case("no compute known", run(BLOCKING, compute_ns=None, **{LAUNCH: 100}), saving=None),
)

CASES = STREAMS + HOST
