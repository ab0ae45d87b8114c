"""The rule about calls that allocate and free memory of a GPU: what it says of a few plain rows. Times are ns."""

from nsyspipe.findings.host import sync_bound
from nsyspipe.findings.memory import alloc_in_step
from tests.findings.make import NOT_JUDGED, case, evidence, of, step, threshold

COLUMNS = ("idle_blocked_ns", "idle_blocked_by_allocs_ns", "idle_made_by_allocs_ns")
CONF = "PYTORCH_CUDA_ALLOC_CONF"
NO_COUNTS = dict.fromkeys(("n_allocs", "n_frees", "n_failed_allocs"), 0)


def of_calls(idle_ns):
    """Return the columns of a step whose device idles so long for calls that manage memory."""
    return dict.fromkeys(COLUMNS, idle_ns)


def allocating(*n_calls, idle_ns=50, column="n_allocs", **more):
    """Return a rank whose steps have so many calls each; step 0, with which the capture begins, has none."""
    rows = []
    for number, n_calls_of_step in enumerate(n_calls, start=1):
        rows.append(step(0, number, **of_calls(idle_ns) | {column: n_calls_of_step}))
    return evidence(rows, **more)


def freeing(**more):
    counts = {"n_allocs": 3, "n_frees": 2}
    rows = [step(0, number, **of_calls(50) | counts) for number in (1, 2)]
    return evidence(rows, **more)


def failing(n_failed, **more):
    counts = {"n_allocs": 3, "n_frees": 2, "n_failed_allocs": n_failed}
    rows = [step(0, number, **of_calls(50) | counts) for number in (1, 2)]
    return evidence(rows, **more)


# Rank 0 idles 50 for its calls, and rank 1 waits for it.
OF_ONE_RANK = [
    row
    for number in (1, 2)
    for row in (
        step(0, number, **of_calls(50) | {"n_allocs": 1}),
        step(1, number, exposed=50, wait=50),
    )
]
# Rank 0 has the idle time, and rank 1 the calls that recur.
OF_OTHER_RANK = [
    row
    for number in (1, 2)
    for row in (
        step(0, number, **of_calls(50)),
        step(1, number, exposed=50, wait=50, n_allocs=1),
    )
]
# The first step of the capture is a summary step, as with --skip-first 0.
WARM_UP = [
    step(0, 0, **of_calls(300) | {"n_allocs": 9}),
    *(step(0, number) for number in (1, 2)),
]
# The capture cuts off the last step.
CUT_OFF = [
    step(0, 1, **of_calls(50) | {"n_allocs": 4}),
    step(0, 2, n_allocs=4, in_summary=False, is_complete=False),
]
ALLOC_IN_STEP = of(
    alloc_in_step,
    case(
        "each step",
        allocating(2, 2, 2),
        saving=50,
        n_allocs_per_step=2.0,
        n_steps_with_allocs_by_rank={"0": 3},
    ),
    *threshold("2 % of step time", allocating(1, 1, idle_ns=20), allocating(1, 1, idle_ns=19)),
    *threshold("half of the steps", allocating(1, 0, 1, 0), allocating(0, 0, 1, 1, 0)),
    *threshold(
        "half of the later half",
        allocating(1, 1, 1, 1, 1, 1, 0, 0),
        allocating(1, 1, 1, 1, 1, 1, 1, 0, 0, 0),
    ),
    *threshold("two steps", allocating(1, 1), allocating(1)),
    case("frees alone", allocating(1, 1, column="n_frees"), n_frees_per_step=1.0),
    case("no calls", allocating(0, 0)),
    case("the first step of the capture alone", evidence(WARM_UP)),
    case("a last step that is cut off", evidence(CUT_OFF), n_steps_with_allocs_by_rank={"0": 2}),
    case("on the rank that the others wait for", evidence(OF_ONE_RANK), saving=50, rank=0),
    case("on another rank", evidence(OF_OTHER_RANK)),
    case("idle time not known", allocating(1, 1, idle_ns=None), NOT_JUDGED),
    case("they free", freeing(), n_frees_per_step=2.0),
    case("they free, variables known", freeing(environment={}), saving=50),
    case(
        "they free, by a threshold",
        freeing(environment={CONF: "garbage_collection_threshold:0.8"}),
        settings={CONF: "garbage_collection_threshold:0.8"},
    ),
    case("they fail", failing(1), n_failed_allocs_per_step=1.0),
    case("it is not known whether they fail", failing(None), n_failed_allocs_per_step=None),
    case(
        "they fail, with expandable segments",
        failing(1, environment={CONF: "expandable_segments:True"}),
        settings={CONF: "expandable_segments:True"},
    ),
    case(
        "they grow, with expandable segments",
        allocating(1, 1, environment={CONF: "expandable_segments:True"}),
        settings={CONF: "expandable_segments:True"},
    ),
    case(
        "retries by the sidecar",
        allocating(1, 1, alloc_retries={0: 7}),
        n_alloc_retries_by_rank={"0": 7},
    ),
    case(
        "the calls by name",
        allocating(1, 1, blocked_ns_by_call={"cudaFree": 40, "cudaEventSynchronize": 20}),
        idle_ns_per_step_by_call={"cudaFree": 40},
    ),
)


def blocked(idle_ns, of_allocs_ns, n_allocs=1):
    """Return steps whose device idles so long for calls that block, and for those that manage memory among them."""
    figures = of_calls(of_allocs_ns) | {"idle_blocked_ns": idle_ns, "n_allocs": n_allocs}
    calls = {"cudaMalloc": 30, "cudaStreamSynchronize": 20}
    rows = [step(0, number, **figures) for number in (1, 2)]
    return evidence(rows, blocked_ns_by_call=calls)


SYNC_BOUND_BESIDE_ALLOCATIONS = of(
    sync_bound,
    *threshold("2 % beside allocations that recur", blocked(70, 50), blocked(69, 50)),
    case(
        "without calls that have their own finding",
        blocked(100, 50),
        idle_ns_per_step_by_call={"cudaStreamSynchronize": 20},
    ),
    case(
        "with allocations that do not recur",
        blocked(69, 50, n_allocs=0),
        idle_ns_per_step_by_call={"cudaMalloc": 30, "cudaStreamSynchronize": 20},
    ),
    # 19 of allocations have no finding, so they count here.
    case("with allocations below their limit", blocked(20, 19), fires=True),
)
CASES = ALLOC_IN_STEP + SYNC_BOUND_BESIDE_ALLOCATIONS
