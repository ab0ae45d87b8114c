"""The vocabulary: each metric and term with its name, unit and definition, and where it is shown.

Every output, page and help text, and the glossary, read names and definitions from here.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec import Struct

Better = Literal["lower", "higher", "neither"]
NEITHER: Better = "neither"


class Fraction(NamedTuple):
    """The columns of `schema.STEPS` that a ratio divides."""

    numerator: str
    denominator: str


# Ratio -> what it divides.
RATIOS = {
    "comm_share": Fraction("comm_ns", "wall_ns"),
    "exposed_comm_share": Fraction("exposed_comm_ns", "wall_ns"),
    "overlap_ratio": Fraction("overlap_compute_ns", "comm_ns"),
    "backward_overlap_ratio": Fraction("overlap_backward_ns", "comm_ns"),
    "idle_share": Fraction("idle_ns", "wall_ns"),
    "compute_share": Fraction("compute_ns", "wall_ns"),
    "exposed_memory_share": Fraction("exposed_memory_ns", "wall_ns"),
    "wait_share": Fraction("wait_ns", "wall_ns"),
    "transfer_share": Fraction("transfer_ns", "wall_ns"),
    "mfu": Fraction("ideal_compute_ns", "wall_ns"),
}
# Rate of one GPU -> what it divides, both summed over ranks.
GPU_RATES = {"flops_per_s": Fraction("flops", "wall_ns")}
# Rate of the whole job -> what it divides: a count of the step, and the largest window over ranks.
JOB_RATES = {
    "tokens_per_s": Fraction("tokens", "wall_ns"),
    "samples_per_s": Fraction("samples", "wall_ns"),
}
# Mean per (rank, step) -> column of `schema.STEPS`.
MEANS = {
    "dtod_ns_per_step": "dtod_ns",
    "dtod_bytes_per_step": "dtod_bytes",
    "collectives_per_step": "n_collectives",
    "idle_input_ns_per_step": "idle_input_ns",
    "idle_launch_ns_per_step": "idle_launch_ns",
    "idle_blocked_ns_per_step": "idle_blocked_ns",
    "idle_dependency_ns_per_step": "idle_dependency_ns",
    "idle_unknown_ns_per_step": "idle_unknown_ns",
    "message_bytes_per_step": "message_bytes",
}
# Rate over transfer time -> column of `schema.COLLECTIVES`.
RATES = {
    "algbw_bytes_per_s": "message_bytes",
    "busbw_bytes_per_s": "bus_bytes",
}


class Figure(Struct, frozen=True, kw_only=True):
    """One metric: its name, its meaning, and which direction is better."""

    # Column of `schema.SUMMARY`, of `schema.STEPS` for a metric that a run does not have, or of its
    # own table for `OTHER_FIGURES`.
    column: str
    # The name for --metric and --sort.
    name: str
    unit: str
    # If neither, a change of this metric alone is neither good nor bad.
    better: Better = "neither"
    # Whether a scoreboard that is sorted by this metric begins with the largest value.
    is_most_first: bool = False
    label: str
    # The label where there is little room, as in a column.
    short: str
    # A few words below the label.
    meaning: str = ""
    # One sentence, for the glossary.
    definition: str
    # Category of the palette. None for a metric without a color of its own.
    category: str | None = None

    @property
    def heading(self) -> str:
        """The short label, split into two lines so that the longer line is as short as possible."""
        words = self.short.split()
        two_lines = [(" ".join(words[:n]), " ".join(words[n:])) for n in range(1, len(words))]
        if not two_lines:
            return self.short
        narrowest = min(two_lines, key=_width)
        return "\n".join(narrowest)

    @property
    def of_step(self) -> tuple[str, str | None]:
        """The column that this metric is made of, and the column that it is divided by, if any.

        Both are columns of steps, or of matched collectives for a rate of the interconnect. The
        value of one step is made of the values of its ranks. A time is the largest of these values.
        A ratio is the sum of numerators divided by the sum of denominators. Any other metric is the
        mean of the values.
        """
        fractions = RATIOS | GPU_RATES | JOB_RATES
        if self.column in fractions:
            return fractions[self.column]
        if self.column in RATES:
            return RATES[self.column], "transfer_ns"
        if self.column in {"step_time_ns", "throughput_steps_per_s"}:
            return "wall_ns", None
        return MEANS.get(self.column, self.column), None

    @property
    def formula(self) -> str:
        """How the value of one step is computed, in words."""
        if self.unit == "1/s":
            # The throughput in steps. The step time is in ns.
            return "1e9 / step_time"
        numerator, denominator = self.of_step
        if denominator is None:
            statistic = "largest" if self.unit == "ns" else "mean of"
            return f"{statistic} {numerator} over ranks"
        if self.column in JOB_RATES:
            return f"{numerator} / largest {denominator} over ranks"
        is_sum_over_ranks = self.column in RATIOS or self.column in GPU_RATES
        summed_rows = "ranks" if is_sum_over_ranks else "matched collectives"
        return f"sum of {numerator} / sum of {denominator} over {summed_rows}"


def _width(lines: tuple[str, str]) -> int:
    return max(map(len, lines))


class Term(Struct, frozen=True):
    """A word of the vocabulary that is not a metric."""

    name: str
    definition: str


class Counter(Struct, frozen=True):
    """A hardware counter of a GPU: per cent of what the hardware can do."""

    # Its columns in tables begin with this.
    name: str
    label: str


class CounterLane(Struct, frozen=True):
    """A lane of a timeline that shows one or two counters."""

    label: str
    counters: tuple[Counter, ...]
    # Counters of one resource add up. Of the two directions of a link, the larger one counts.
    is_sum: bool = False


class GlossaryRow(Struct, frozen=True):
    """A row of the glossary: a metric or a term."""

    term: str
    # The name in columns. Empty if it is the term itself.
    short: str
    # Empty for a term that is not a metric.
    unit: str
    definition: str


_COMM = "Communication during which no compute kernel runs on the same GPU"
_OVERLAP = "Share of total communication during which a compute kernel runs on the same GPU"
_COPIES = "Memory copies and memsets during which neither compute nor communication runs"
_WAIT = (
    "Time that a rank spends inside a collective before the last rank has started the same "
    "collective"
)
_IDLE = "Time during which the GPU runs no kernel, no copy and no memset"
_TRANSFER = (
    "Communication after the last rank has started the collective: total communication minus wait "
    "time"
)

# In the order in which a difference lists them. Some have no better direction: communication may
# take longer because more of it overlaps, and the shares of compute and of total communication
# change with everything else.
_RUN_FIGURES = (
    Figure(
        column="step_time_ns",
        name="step_time",
        unit="ns",
        better="lower",
        label="Step time",
        short="step time",
        meaning="slowest rank, median over steps",
        definition=(
            "The time of the slowest rank in each step, as the median over the steps used "
            "(nsyspipe analyze prints the mean)."
        ),
    ),
    Figure(
        column="throughput_steps_per_s",
        name="throughput",
        unit="1/s",
        better="higher",
        is_most_first=True,
        label="Throughput",
        short="throughput",
        meaning="1 / mean step time",
        definition=(
            "Training steps per second: one divided by the mean step time (by the median, if "
            "nsyspipe diff compares medians)."
        ),
    ),
    Figure(
        column="tokens_per_s",
        name="tokens_per_s",
        unit="token/s",
        better="higher",
        is_most_first=True,
        label="Tokens per second",
        short="tokens/s",
        meaning="of the whole job",
        definition="Tokens of one step of the whole job, divided by the mean step time.",
    ),
    Figure(
        column="samples_per_s",
        name="samples_per_s",
        unit="sample/s",
        better="higher",
        is_most_first=True,
        label="Samples per second",
        short="samples/s",
        meaning="of the whole job",
        definition="Samples of one step of the whole job, divided by the mean step time.",
    ),
    Figure(
        column="flops_per_s",
        name="flops_per_s",
        unit="FLOP/s",
        better="higher",
        is_most_first=True,
        label="FLOPs per second per GPU",
        short="FLOP rate",
        meaning="of one GPU, mean over ranks",
        definition="FLOPs of one step on one rank, divided by the step time of that rank.",
    ),
    Figure(
        column="mfu",
        name="mfu",
        unit="ratio",
        better="higher",
        is_most_first=True,
        label="Model FLOPs utilization",
        short="MFU",
        meaning="of the dense peak of the GPU",
        definition=(
            "FLOPs per second of a GPU, as a share of the dense peak of the GPU for the datatype "
            "of the matrix multiplications."
        ),
    ),
    Figure(
        column="slow_compute_ns",
        name="slow_compute",
        unit="ns",
        better="lower",
        label="Slow compute",
        short="slow compute",
        definition=(
            "Compute beyond ideal compute: the time by which kernels are slower than the dense "
            "peak of the GPU."
        ),
    ),
    Figure(
        column="ideal_compute_ns",
        name="ideal_compute",
        unit="ns",
        label="Ideal compute",
        short="ideal compute",
        definition="FLOPs of a step on one rank, divided by the dense peak of the GPU.",
    ),
    Figure(
        column="compute_ns",
        name="compute",
        unit="ns",
        better="lower",
        label="Compute",
        short="compute",
        category="compute",
        definition="Time during which at least one compute kernel runs on the GPU.",
    ),
    Figure(
        column="comm_ns",
        name="comm",
        unit="ns",
        label="Total communication",
        short="total comm",
        definition=(
            "Time during which at least one communication operation runs, exposed or overlapped."
        ),
    ),
    Figure(
        column="exposed_comm_ns",
        name="exposed_comm",
        unit="ns",
        better="lower",
        label="Exposed communication",
        short="exposed comm",
        category="exposed",
        definition=f"{_COMM}.",
    ),
    Figure(
        column="exposed_memory_ns",
        name="exposed_memory",
        unit="ns",
        better="lower",
        label="Exposed copies",
        short="exposed copies",
        category="copies",
        definition=f"{_COPIES}.",
    ),
    Figure(
        column="idle_ns",
        name="idle",
        unit="ns",
        better="lower",
        label="Idle",
        short="idle",
        category="idle",
        definition=f"{_IDLE}.",
    ),
    Figure(
        column="dtod_ns_per_step",
        name="dtod",
        unit="ns",
        better="lower",
        label="D2D memcpy",
        short="D2D memcpy",
        meaning="device-to-device copies, mean per rank and step",
        definition="Time of device-to-device copies, without copies that are communication.",
    ),
    Figure(
        column="wait_ns",
        name="wait",
        unit="ns",
        better="lower",
        label="Wait time for other ranks",
        short="wait",
        definition=f"{_WAIT}.",
    ),
    Figure(
        column="transfer_ns",
        name="transfer",
        unit="ns",
        label="Transfer time",
        short="transfer",
        definition=f"{_TRANSFER}.",
    ),
    Figure(
        column="idle_input_ns_per_step",
        name="idle_input",
        unit="ns",
        better="lower",
        label="Idle: data loading",
        short="idle: data loading",
        definition=(
            "Idle time because the CPU was getting the next batch instead of launching kernels."
        ),
    ),
    Figure(
        column="idle_launch_ns_per_step",
        name="idle_launch",
        unit="ns",
        better="lower",
        label="Idle: late kernel launch (CPU-bound)",
        short="idle: late launch",
        definition=(
            "Idle time because the CPU launched the next kernel late, for another reason than "
            "data loading or a blocking call."
        ),
    ),
    Figure(
        column="idle_blocked_ns_per_step",
        name="idle_blocked",
        unit="ns",
        better="lower",
        label="Idle: CPU blocked in CUDA sync / memory call",
        short="idle: CPU blocked",
        definition=(
            "Idle time because the CPU was blocked in a CUDA synchronization or memory call."
        ),
    ),
    Figure(
        column="idle_dependency_ns_per_step",
        name="idle_dependency",
        unit="ns",
        better="lower",
        label="Idle: stream dependency or launch latency",
        short="idle: stream dependency",
        definition=(
            "Idle time after a kernel was launched, while it waited for another stream or for the "
            "GPU to start it."
        ),
    ),
    Figure(
        column="idle_unknown_ns_per_step",
        name="idle_unknown",
        unit="ns",
        better="lower",
        label="Idle: launch not recorded",
        short="idle: unknown",
        definition="Idle time before a kernel for which the report contains no launch.",
    ),
    Figure(
        column="comm_share",
        name="comm_share",
        unit="ratio",
        label="Total communication",
        short="total comm",
        meaning="of step time, exposed or overlapped",
        definition="Total communication as a share of step time.",
    ),
    Figure(
        column="exposed_comm_share",
        name="exposed_comm_share",
        unit="ratio",
        better="lower",
        label="Exposed communication",
        short="exposed comm",
        meaning="of step time, while no compute runs",
        definition="Exposed communication as a share of step time.",
        category="exposed",
    ),
    Figure(
        column="overlap_ratio",
        name="overlap_ratio",
        unit="ratio",
        better="higher",
        is_most_first=True,
        label="Overlap",
        short="overlap",
        meaning="of total communication, while compute runs",
        category="hidden",
        definition=f"{_OVERLAP}.",
    ),
    Figure(
        column="backward_overlap_ratio",
        name="backward_overlap_ratio",
        unit="ratio",
        better="higher",
        is_most_first=True,
        label="Overlap with backward",
        short="overlap with backward",
        meaning="of total communication, while backward kernels run",
        category="hidden",
        definition=(
            "Share of total communication during which a compute kernel of the backward pass runs "
            "on the same GPU."
        ),
    ),
    Figure(
        column="idle_share",
        name="idle_share",
        unit="ratio",
        better="lower",
        label="Idle",
        short="idle",
        meaning="of step time, the GPU runs nothing",
        category="idle",
        definition="Idle time as a share of step time.",
    ),
    Figure(
        column="compute_share",
        name="compute_share",
        unit="ratio",
        is_most_first=True,
        label="Compute",
        short="compute",
        meaning="of step time",
        category="compute",
        definition="Compute as a share of step time.",
    ),
    Figure(
        column="exposed_memory_share",
        name="exposed_memory_share",
        unit="ratio",
        better="lower",
        label="Exposed copies",
        short="exposed copies",
        category="copies",
        meaning="of step time, memcpy and memset while nothing else runs",
        definition="Exposed copies as a share of step time.",
    ),
    Figure(
        column="wait_share",
        name="wait_share",
        unit="ratio",
        better="lower",
        label="Wait time for other ranks",
        short="wait",
        meaning="of step time, inside communication",
        category="waiting",
        definition="Wait time for other ranks as a share of step time.",
    ),
    Figure(
        column="transfer_share",
        name="transfer_share",
        unit="ratio",
        label="Transfer time",
        short="transfer",
        meaning="of step time, after all ranks have arrived",
        definition="Transfer time as a share of step time.",
    ),
    Figure(
        column="collectives_per_step",
        name="collectives",
        unit="count",
        label="Collectives per step",
        short="collectives per step",
        meaning="mean per rank",
        definition="Communication operations that a rank starts in a step.",
    ),
    Figure(
        column="message_bytes_per_step",
        name="message_bytes",
        unit="bytes",
        label="Message size per step",
        short="message size per step",
        meaning="of all collectives, mean per rank and step",
        definition=(
            "Bytes of all collectives that a rank takes part in during a step, counted as "
            "nccl-tests counts them."
        ),
    ),
    Figure(
        column="dtod_bytes_per_step",
        name="dtod_bytes",
        unit="bytes",
        label="D2D memcpy size",
        short="D2D bytes",
        meaning="device-to-device copies, mean per rank and step",
        definition="Bytes of device-to-device copies that a rank makes in a step.",
    ),
    Figure(
        column="algbw_bytes_per_s",
        name="algbw",
        unit="bytes/s",
        better="higher",
        is_most_first=True,
        label="Algorithm bandwidth",
        short="algbw",
        meaning="message size over transfer time",
        definition=(
            "Message size divided by transfer time, the algorithm bandwidth (algbw) of nccl-tests."
        ),
    ),
    Figure(
        column="busbw_bytes_per_s",
        name="busbw",
        unit="bytes/s",
        better="higher",
        is_most_first=True,
        label="Bus bandwidth",
        short="bus bandwidth",
        meaning="bus bytes over transfer time",
        definition=(
            "Algorithm bandwidth times the factor of the collective, the bus bandwidth (busbw) of "
            "nccl-tests, which you can compare with the interconnect."
        ),
    ),
)

# Metrics of ranks, phases, kernels and collectives, which a run as a whole does not have.
_OTHER_FIGURES = (
    Figure(
        column="lateness_ns",
        name="straggler_delay",
        unit="ns",
        better="lower",
        label="Straggler delay",
        short="delay caused",
        meaning="mean per step, only the latest rank of a step counts",
        definition=(
            "The longest delay of each step, assigned to the rank that caused it and averaged "
            "over the steps used."
        ),
    ),
    Figure(
        column="wait_caused_ns",
        name="wait_caused",
        unit="ns",
        better="lower",
        label="Wait time caused",
        short="wait caused",
        definition=(
            "The sum of a rank's delays over all collectives in which the rank arrived last."
        ),
    ),
    Figure(
        column="n_arrived_last",
        name="arrived_last",
        unit="count",
        label="Arrived last",
        short="arrived last",
        definition="Number of collectives in which the rank arrived last.",
    ),
    Figure(
        column="arrival_skew_ns",
        name="skew",
        unit="ns",
        better="lower",
        label="Skew",
        short="skew",
        definition="Time between the first and the last rank that starts the same collective.",
    ),
    Figure(
        column="bubble_ns_per_step",
        name="bubble",
        unit="ns",
        better="lower",
        label="Pipeline bubble",
        short="bubble",
        definition="Time during which a pipeline stage waits for another stage.",
    ),
    Figure(
        column="host_launch_ns",
        name="launch_time",
        unit="ns",
        better="lower",
        label="Launch time",
        short="launch time",
        definition=(
            "Time that the CPU needs to launch all kernels of a step, without the time in which "
            "the CPU waits for the GPU."
        ),
    ),
    Figure(
        column="n_allocs",
        name="allocations",
        unit="count",
        better="lower",
        label="Allocations per step",
        short="allocations",
        definition=(
            "CUDA calls of a step that allocate GPU memory, without those that take memory from a "
            "pool."
        ),
    ),
    Figure(
        column="n_frees",
        name="frees",
        unit="count",
        better="lower",
        label="Frees per step",
        short="frees",
        definition="CUDA calls of a step that free GPU memory, without those of a pool.",
    ),
    Figure(
        column="peak_allocated_bytes",
        name="peak_allocated",
        unit="bytes",
        label="Peak allocated memory",
        short="peak allocated",
        definition="The most GPU memory that the tensors of PyTorch had at one time.",
    ),
    Figure(
        column="peak_reserved_bytes",
        name="peak_reserved",
        unit="bytes",
        label="Peak reserved memory",
        short="peak reserved",
        definition=(
            "The most GPU memory that PyTorch had at one time, for tensors and in its cache."
        ),
    ),
    Figure(
        column="headroom_bytes",
        name="headroom",
        unit="bytes",
        label="Headroom",
        short="headroom",
        definition="Memory of the GPU minus peak reserved memory.",
    ),
    Figure(
        column="n_alloc_retries",
        name="alloc_retries",
        unit="count",
        better="lower",
        label="Allocator retries",
        short="retries",
        definition=(
            "How often PyTorch freed its cache and tried again, because an allocation failed."
        ),
    ),
    Figure(
        column="grad_copy_ns",
        name="grad_copy",
        unit="ns",
        better="lower",
        label="Gradient copies",
        short="gradient copies",
        definition=(
            "Device-to-device copies between gradients and the buckets of DistributedDataParallel."
        ),
    ),
    Figure(
        column="host_ns_per_step",
        name="phase_host",
        unit="ns",
        better="lower",
        label="CPU time of a phase",
        short="CPU",
        definition="Time that the CPU spends inside the NVTX ranges of a phase.",
    ),
    Figure(
        column="device_ns_per_step",
        name="phase_device",
        unit="ns",
        better="lower",
        label="GPU time of a phase",
        short="GPU",
        definition="Time during which a GPU operation that was launched in the phase runs.",
    ),
    Figure(
        column="idle_ns_per_step",
        name="idle_before",
        unit="ns",
        better="lower",
        label="Idle before first kernel",
        short="idle before",
        definition="Idle time that ends when an operation of the phase starts.",
    ),
    Figure(
        column="beside_comm_ratio",
        name="concurrent_with_comm",
        unit="ratio",
        label="% concurrent with communication",
        short="% concurrent with comm",
        definition="Share of a kernel's time during which communication runs on the same GPU.",
    ),
    Figure(
        column="slowdown_ratio",
        name="slowdown",
        unit="ratio",
        better="lower",
        label="Slowdown under communication",
        short="slowdown under comm",
        definition=(
            "How much longer a kernel takes while communication runs, compared with equal kernels "
            "that run without communication."
        ),
    ),
)

TERMS = (
    Term(
        "Step",
        "One iteration of the training loop, on the GPU: from the first kernel of the iteration "
        "to the first kernel of the next.",
    ),
    Term("Rank", "One process of the training job on one GPU."),
    Term(
        "Hardware counter",
        "A number that the hardware of a GPU counts, such as the traffic of its NVLinks. nsys "
        "samples counters in regular periods.",
    ),
    Term(
        "Counted bus bandwidth",
        "The bytes that hardware counters saw on the link that carried communication, divided by "
        "transfer time. Bus bandwidth is derived from message sizes, and needs no counters.",
    ),
    Term(
        "Mean step time",
        "The time of the slowest rank in each step, as the mean over the steps used. The first "
        "lines of `nsyspipe analyze` show the mean step time and its parts.",
    ),
    Term("Phase", "A part of a step: data, forward, backward or optimizer."),
    Term("Collective", "A communication operation of several ranks, for example an all-reduce."),
    Term("Communicator", "A group of ranks that communicate with each other, as NCCL defines it."),
    Term("Straggler", "A rank for which the other ranks wait."),
    Term(
        "Delay",
        "The time from the start of a collective on the second-to-last rank to the start on the "
        "last rank. The last rank causes the delay.",
    ),
    Term(
        "Parallelism",
        "The purpose of communication: data, FSDP/ZeRO, tensor, pipeline or expert parallelism.",
    ),
    Term(
        "Interconnect",
        "The connection between two GPUs: NVLink P2P, PCIe, shared memory (SHM) via host memory, "
        "or a network.",
    ),
    Term(
        "Peak bandwidth",
        "The bandwidth that the data sheet of an interconnect gives for one direction.",
    ),
    Term(
        "Stream dependency",
        "A kernel or copy starts only after work on another stream of the GPU has ended, because "
        "the program asked for this order.",
    ),
    Term(
        "Variation",
        "How much the step time differs between the steps of a capture, or between captures of the "
        "same program.",
    ),
    Term("Peer", "The rank that a rank sends to or receives from."),
    Term("Launch-bound", "The GPU waits because the CPU launches kernels late."),
    Term("Input-bound", "The GPU waits because the CPU is loading data."),
    Term(
        "Sync-bound",
        "The GPU waits because the CPU is blocked in a CUDA synchronization or memory call. Calls "
        "that allocate or free GPU memory do not count if the run has the finding alloc-in-step.",
    ),
    Term("Communication-bound", "Exposed communication takes a large part of the step."),
    Term(
        "Finding", "A cause of lost time that nsyspipe has found in a run, with a recommendation."
    ),
    Term("Recommendation", "A change that you can make because of a finding."),
    Term(
        "Simulation",
        "nsyspipe runs the captured steps again with one change and predicts the step time.",
    ),
    Term("Estimated", "The step time or saving that a simulation predicts, with a range."),
    Term("Upper bound", "The most that a change can save, computed from the capture."),
    Term(
        "Limit",
        "The saving with perfect overlap or zero communication time. A limit is not a setting you "
        "can change.",
    ),
    Term("Within noise", "The range of the estimate includes the captured step time."),
    Term(
        "Conditional",
        "The saving requires a faster interconnect, and the reports do not show whether the "
        "machine has one.",
    ),
    Term(
        "Skipped check",
        "A check that nsyspipe could not make, because the reports do not contain what the check "
        "needs.",
    ),
    Term(
        "Steps used",
        "The captured steps from which nsyspipe computes the metrics, without the warm-up step "
        "and incomplete steps.",
    ),
    Term("Run store", "A directory of saved runs, as `--out` writes it."),
)

# The lanes of counters in a timeline, from top to bottom.
COUNTER_LANES = (
    CounterLane("SMs active", (Counter("sm_active", "SMs active"),)),
    CounterLane("tensor cores", (Counter("tensor_active", "tensor cores active"),)),
    CounterLane(
        "GPU memory",
        (Counter("dram_read", "memory read"), Counter("dram_write", "memory written")),
        is_sum=True,
    ),
    CounterLane(
        "NVLink", (Counter("nvlink_rx", "NVLink received"), Counter("nvlink_tx", "NVLink sent"))
    ),
    CounterLane("PCIe", (Counter("pcie_rx", "PCIe received"), Counter("pcie_tx", "PCIe sent"))),
)
# The counter that is no share, in words.
CLOCK_LABEL = "clock"
# Counters by name.
COUNTERS = {counter.name: counter for lane in COUNTER_LANES for counter in lane.counters}

# Where metrics are shown, and in which order: their columns.
PLACES = {
    "ranks": (
        "compute_share",
        "exposed_comm_share",
        "exposed_memory_share",
        "idle_share",
        "comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "wait_share",
    ),
    "dashboard": (
        "step_time_ns",
        "throughput_steps_per_s",
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "wait_share",
        "idle_share",
    ),
    "scoreboard": (
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "wait_share",
        "dtod_ns_per_step",
        "message_bytes_per_step",
    ),
    "scoreboard, if known": (
        "idle_share",
        "collectives_per_step",
        "busbw_bytes_per_s",
        "tokens_per_s",
        "samples_per_s",
        "flops_per_s",
        "mfu",
    ),
    "scoreboard table": (
        "step_time_ns",
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "compute_share",
        "exposed_memory_share",
        "idle_share",
        "wait_share",
        "dtod_ns_per_step",
        "dtod_bytes_per_step",
        "collectives_per_step",
        "message_bytes_per_step",
        "busbw_bytes_per_s",
        "tokens_per_s",
        "samples_per_s",
        "flops_per_s",
        "mfu",
    ),
    "difference": (
        "step_time_ns",
        "throughput_steps_per_s",
        "tokens_per_s",
        "samples_per_s",
        "flops_per_s",
        "mfu",
        "slow_compute_ns",
        "compute_ns",
        "comm_ns",
        "exposed_comm_ns",
        "exposed_memory_ns",
        "idle_ns",
        "wait_ns",
        "dtod_ns_per_step",
        "overlap_ratio",
        "backward_overlap_ratio",
        "message_bytes_per_step",
        "busbw_bytes_per_s",
    ),
}

# Metrics of a run by column, in the order in which a difference has them, and by name.
FIGURES: dict[str, Figure] = {figure.column: figure for figure in _RUN_FIGURES}
METRICS: dict[str, Figure] = {figure.name: figure for figure in _RUN_FIGURES}
# The others by name.
OTHER_FIGURES: dict[str, Figure] = {figure.name: figure for figure in _OTHER_FIGURES}


def _figures_of_steps() -> dict[str, Figure]:
    """Return, by column of the steps, the metric of the run that is made of this column alone.

    A metric with a denominator is made of two columns, and left out.
    """
    figure_of_step_column = {}
    for figure in _RUN_FIGURES:
        step_column, denominator = figure.of_step
        # `wall_ns` is left out: the window of one rank is not the step time of the run.
        if denominator is None and step_column != "wall_ns":
            figure_of_step_column[step_column] = figure
    return figure_of_step_column


_FIGURES_OF_PHASES = {
    "host_ns": OTHER_FIGURES["phase_host"],
    "device_ns": OTHER_FIGURES["phase_device"],
    "idle_ns": OTHER_FIGURES["idle_before"],
}
_FIGURES_OF_KERNELS = {"slowdown_ratio": OTHER_FIGURES["slowdown"]}
_BANDWIDTHS = {column: FIGURES[column] for column in RATES}
_FIGURES_OF_TRAFFIC = _BANDWIDTHS | {"bubble_ns_per_step": OTHER_FIGURES["bubble"]}
_FIGURES_OF_RANKS = {
    OTHER_FIGURES[name].column: OTHER_FIGURES[name]
    for name in ("peak_allocated", "peak_reserved", "headroom", "alloc_retries")
}
# Table -> column -> the metric that the column is.
_FIGURES_OF_TABLES = {
    "steps": (
        _figures_of_steps()
        | FIGURES
        | {
            "host_launch_ns": OTHER_FIGURES["launch_time"],
            "grad_copy_ns": OTHER_FIGURES["grad_copy"],
            "n_allocs": OTHER_FIGURES["allocations"],
            "n_frees": OTHER_FIGURES["frees"],
        }
    ),
    "ranks": _FIGURES_OF_RANKS,
    "summary": FIGURES,
    "rank_summary": {
        column: figure for column, figure in FIGURES.items() if column != "step_time_ns"
    },
    "runs": FIGURES,
    "phases": _FIGURES_OF_PHASES,
    "phase_summary": {
        f"{column}_per_step": figure for column, figure in _FIGURES_OF_PHASES.items()
    },
    "collectives": _BANDWIDTHS | {"arrival_skew_ns": OTHER_FIGURES["skew"]},
    "stragglers": {
        "n_arrived_last": OTHER_FIGURES["arrived_last"],
        "wait_caused_ns": OTHER_FIGURES["wait_caused"],
    },
    "traffic": _FIGURES_OF_TRAFFIC,
    "kernels": _FIGURES_OF_KERNELS,
    "costs": (
        _FIGURES_OF_TRAFFIC
        | _FIGURES_OF_KERNELS
        | {"beside_comm_ratio": OTHER_FIGURES["concurrent_with_comm"]}
    ),
}
# Unit of a column -> unit that outputs show.
_SHOWN_UNITS = {
    "ns": "ms",
    "ratio": "%",
    "1/s": "steps/s",
    "count": "count",
    "bytes": "bytes",
    "bytes/s": "GB/s",
    "FLOP/s": "TFLOP/s",
    "token/s": "tokens/s",
    "sample/s": "samples/s",
}


def shown(place: str) -> tuple[Figure, ...]:
    """Return the metrics that one of `PLACES` shows."""
    columns = PLACES[place]
    return tuple(FIGURES[column] for column in columns)


def definition_of(table: str, column: str) -> str | None:
    """Return the definition of the metric that a column of a table is, or None if it is not one."""
    figures_of_table = _FIGURES_OF_TABLES.get(table, {})
    figure = figures_of_table.get(column)
    return None if figure is None else figure.definition


def glossary_rows() -> Iterator[GlossaryRow]:
    """Yield a row for each metric and term, sorted by name.

    A time and its share of step time have the same label. The row of the time is for both.
    """
    rows = [GlossaryRow(term.name, "", "", term.definition) for term in TERMS]
    labels_of_times = _labels_of_unit("ns")
    for figure in (*_RUN_FIGURES, *_OTHER_FIGURES):
        has_row_of_time = figure.unit == "ratio" and figure.label in labels_of_times
        if not has_row_of_time:
            row = _glossary_row(figure)
            rows.append(row)
    yield from sorted(rows, key=lambda row: row.term.casefold())


def _labels_of_unit(unit: str) -> set[str]:
    return {figure.label for figure in FIGURES.values() if figure.unit == unit}


def _glossary_row(figure: Figure) -> GlossaryRow:
    has_share = figure.unit == "ns" and figure.label in _labels_of_unit("ratio")
    unit = "ms, % of step time" if has_share else _SHOWN_UNITS[figure.unit]
    short_word = figure.short.casefold()
    is_short_label_the_same = short_word == figure.label.casefold()
    short = "" if is_short_label_the_same else figure.short
    return GlossaryRow(figure.label, short=short, unit=unit, definition=figure.definition)
