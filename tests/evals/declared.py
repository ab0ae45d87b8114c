"""Questions about the captures of tests/real, each with the field of its answer and the exact answer.

Half of the questions are by a reader who saw only the output of `analyze` and `diff`. Their answers
are that reader's. The others are worked out from what is known about the programs
(tests/real/PROVENANCE.md), by arithmetic, or from the tables of a report (`tests.evals.oracle`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Answer: TypeAlias = str | float | None
Bait = Literal[
    "",
    "wrong denominator",
    "one step",
    "missing rank",
    "clock error",
    "other communicator",
    "several changes",
    "lower bound",
    "assumption",
]
MS = 1e6  # ns
MB = 1e6  # bytes
GB = 1e9  # bytes
PERCENT = 0.01  # of a ratio
RANK = "rank"
# The field has the answer itself.
AS_ANSWER = object()
READER = "reader"
PROJECT = "project"


@dataclass(frozen=True)
class Eval:
    """A question, the field that answers it, and the answer."""

    id: str
    question: str
    # The command that answers, with its arguments, relative to the folder of captures.
    command: tuple[str, ...]
    path: str
    # None: it cannot be said.
    answer: Answer
    # Where the answer is from.
    how: str
    # What the field has, if it is not the answer. For a question without an answer, what shows that
    # there is none.
    value: object = AS_ANSWER
    # The unit of a number, how many of the unit of the field it is, and its decimals.
    unit: str = ""
    scale: float = 1.0
    digits: int = 0
    # How the answer follows from the field.
    calculation: Callable[[float], float] | None = None
    # What makes a wrong answer look right, and that answer.
    bait: Bait = ""
    bait_answer: Answer = None
    author: str = PROJECT

    @property
    def is_number(self) -> bool:
        return isinstance(self.answer, int | float)

    @property
    def prompt(self) -> str:
        """The question as an agent gets it: the captures, the question, and the form of an answer."""
        captures = " ".join(f'"{word}"' for word in self.command if word.endswith(".sqlite"))
        return f"Captures: {captures}. {self.question} {self.form}".rstrip()

    @property
    def form(self) -> str:
        """How a number is to be given, also where none can be."""
        if self.unit == RANK:
            return "Answer with the number of a rank."
        return f"Answer in {self.unit}, with {self.digits} decimals." if self.unit else ""

    def answer_of(self, value: object) -> Answer:
        """Return the answer that follows from the value of the field."""
        if self.answer is None:
            return None
        if not self.is_number or not isinstance(value, int | float):
            return self.answer if value == self.expected_value else f"{value}"
        calculated = value if self.calculation is None else self.calculation(value)
        return round(calculated / self.scale, self.digits)

    @property
    def expected_value(self) -> object:
        """What the field has, where the answer is no number."""
        return self.answer if self.value is AS_ANSWER else self.value


def _complement(share: float) -> float:
    return 1 - share


def _per_second(length_ns: float) -> float:
    return 1e9 / length_ns


def _analyze(*places: str) -> tuple[str, ...]:
    return ("analyze", *places)


SHM = "ddp-4gpu-shm_*.sqlite"
SHM_BUCKETS = "ddp-4gpu-shm-bucket100_*.sqlite"
STRAGGLER = "ddp-2gpu-straggler_*.sqlite"
TPDDP = "4gpu-tpddp_[0-9].sqlite"
ONE_BUCKET = "2gpu-gpt-one-shm_*.sqlite"
BUCKETS = "2gpu-gpt-b25-shm_[0-9].sqlite"
BF16 = "2gpu-gpt-b25-shm-bf16hook_*.sqlite"
# Parameters of the programs, from tests/real/PROVENANCE.md. A gradient has 4 bytes.
GPT_BYTES = 4 * 166_307_840
TPDDP_BYTES = 4 * 115_947_520

BY_READER = (
    Eval(
        id="r01",
        question="With nothing known about the hardware beyond what this run recorded, which single "
        "change should be made first, and to what step time is it estimated to lead? Answer with "
        "the step time.",
        command=_analyze(SHM),
        path="recommendations.first.step_time_ns",
        answer=111,
        how="printed by analyze: 159.7 -> 111 ms",
        unit="ms",
        scale=MS,
        bait="assumption",
        bait_answer=93,
        author=READER,
    ),
    Eval(
        id="r02",
        question="Over which link (NVLink, PCIe or shared memory) did the four ranks communicate?",
        command=_analyze(SHM),
        path="links[].kind",
        answer=None,
        how="no log and no topology were recorded",
        bait="assumption",
        bait_answer="NVLink",
        author=READER,
    ),
    Eval(
        id="r03",
        question="How many of the 5.43 ms of exposed communication did rank 0 spend waiting for a "
        "later rank?",
        command=_analyze("ddp-4gpu_0.sqlite"),
        path="summary.wait_share",
        answer=None,
        unit="ms",
        digits=2,
        how="three of four ranks are missing",
        bait="missing rank",
        bait_answer=0,
        author=READER,
    ),
    Eval(
        id="r04",
        question="Rank 0 has the longer step and computes longer. Which rank is the one that is late "
        "and has to be investigated?",
        command=_analyze(STRAGGLER),
        path="findings[id=straggler].evidence.rank",
        answer=1,
        how="rank 1 sleeps 30 ms in each forward",
        unit=RANK,
        bait="wrong denominator",
        bait_answer=0,
        author=READER,
    ),
    Eval(
        id="r05",
        question="What is the best estimate (not the bound) of the time saved per step if the late "
        "rank is no longer late, provided that the CPU can launch early enough?",
        command=_analyze(STRAGGLER),
        path="findings[id=straggler].expected_ns_per_step",
        answer=39.3,
        how="printed by analyze -v: 39.34 ms",
        unit="ms",
        scale=MS,
        digits=1,
        bait="assumption",
        bait_answer=44.4,
        author=READER,
    ),
    Eval(
        id="r06",
        question="Did the all-reduce kernels take less time per rank and step in the candidate (mean "
        "over the ranks)? Answer with the change, positive if they took more.",
        command=("diff", SHM, SHM_BUCKETS),
        path="kernels[name=ncclDevKernel_AllReduce_Sum_f32_RING_LL].delta_ns_per_step",
        answer=2.36,
        how="printed by diff: 72.53 -> 74.88 ms",
        unit="ms",
        scale=MS,
        digits=2,
        bait="wrong denominator",
        bait_answer=-48.97,
        author=READER,
    ),
    Eval(
        id="r07",
        question="How much of the 48.1 ms difference in step time is due to splitting the all-reduce "
        "alone?",
        command=("diff", SHM, SHM_BUCKETS),
        path="cause",
        answer=None,
        unit="ms",
        digits=1,
        how="static graph and bucket view changed too, and each run has one step",
        bait="several changes",
        bait_answer=48.1,
        author=READER,
    ),
    Eval(
        id="r08",
        question="How long is the exposed communication per step as the mean over both ranks (not "
        "that of the slowest rank)?",
        command=_analyze("2gpu-moe_*.sqlite"),
        path="mean_step.parts[part=exposed_comm].all_ranks_ns",
        answer=6.09,
        how="printed by analyze -v: 6.093 ms",
        unit="ms",
        scale=MS,
        digits=2,
        bait="wrong denominator",
        bait_answer=3.31,
        author=READER,
    ),
    Eval(
        id="r09",
        question="What step time is estimated if the late rank launched its kernels as fast as the "
        "other rank, provided that the CPU can keep up?",
        command=_analyze("2gpu-tp_*.sqlite"),
        path="recommendations.alternatives[id=straggler].step_time_ns",
        answer=19.4,
        how="printed by analyze: 19.4 ms (18.4 to 20.4)",
        unit="ms",
        scale=MS,
        digits=1,
        author=READER,
    ),
    Eval(
        id="r10",
        question="Which rank do the other three wait for?",
        command=_analyze(TPDDP),
        path="findings[id=straggler].evidence.rank",
        answer=1,
        how="printed by analyze: the CPU of rank 1 launches late",
        unit=RANK,
        bait="wrong denominator",
        bait_answer=2,
        author=READER,
    ),
    Eval(
        id="r11",
        question="How many ms of exposed communication per step, as the mean over the ranks, belong "
        "to data parallelism?",
        command=_analyze(TPDDP),
        path="findings[id=comm-bound].evidence.exposed_comm_ns_per_step_by_role.data",
        answer=4.6,
        how="printed by analyze -v: 50% of 9.21 ms",
        unit="ms",
        scale=MS,
        digits=1,
        bait="other communicator",
        bait_answer=9.2,
        author=READER,
    ),
    Eval(
        id="r12",
        question="By how many percent was communication measured to slow down compute in this run?",
        command=_analyze(TPDDP),
        path="findings[id=comm-bound].evidence.slowdown_ratio",
        answer=None,
        unit="percent",
        how="only 6.7% of the kernel time during communication can be compared",
        bait="assumption",
        bait_answer=74,
        author=READER,
    ),
    Eval(
        id="r13",
        question="For what share of the step is the GPU idle in total?",
        command=_analyze("2gpu-graph_[0-9].sqlite"),
        path="mean_step.lower_bounds",
        answer=None,
        value=["idle"],
        unit="percent",
        digits=1,
        how="CUDA graphs were captured as a whole, so idle time inside them is not visible",
        bait="lower bound",
        bait_answer=1.8,
        author=READER,
    ),
    Eval(
        id="r14",
        question="What is the throughput in steps/s once the known bias of the stated one is "
        "corrected?",
        command=_analyze("2gpu-pp_*.sqlite"),
        path="mean_step.slowest_on_average_ns",
        answer=26.6,
        how="26.25 steps/s are printed, and a note that this is too low by 1.5%",
        unit="steps/s",
        digits=1,
        calculation=_per_second,
        bait="wrong denominator",
        bait_answer=26.3,
        author=READER,
    ),
    Eval(
        id="r15",
        question="What bus bandwidth of the collectives on NVLink results from the hardware counters?",
        command=_analyze("2gpu-counters.sqlite"),
        path="counters.counted_bytes_per_s",
        answer=232.7,
        how="printed by analyze -v",
        unit="GB/s",
        scale=GB,
        digits=1,
        bait="wrong denominator",
        bait_answer=25.9,
        author=READER,
    ),
    Eval(
        id="r16",
        question="What share of the step can the most effective of the single changes save at most?",
        command=_analyze("2gpu-gpt-accum_*.sqlite"),
        path="recommendations.little[0].saved_share",
        answer=1.4,
        how="printed by analyze: no change would save more than 1.4%",
        unit="percent",
        scale=PERCENT,
        digits=1,
        author=READER,
    ),
    Eval(
        id="r17",
        question="What share of the communication time (not of the step) is not hidden by compute, as "
        "the mean over the ranks?",
        command=_analyze("fsdp-4gpu_*.sqlite"),
        path="summary.overlap_ratio",
        answer=4.9,
        how="printed by analyze -v: 95.1% overlap",
        unit="percent",
        scale=PERCENT,
        digits=1,
        calculation=_complement,
        bait="wrong denominator",
        bait_answer=0.2,
        author=READER,
    ),
    Eval(
        id="r18",
        question="How many ms per step can removing the DDP wrapper save at most?",
        command=_analyze("ddp-1gpu_0.sqlite"),
        path="findings[id=ddp-single-gpu].saving_ns_per_step",
        answer=4.47,
        how="printed by analyze -v: at most 4.474 ms",
        unit="ms",
        scale=MS,
        digits=2,
        author=READER,
    ),
    Eval(
        id="r19",
        question="Which CUDA call that blocks the CPU should be removed from the step first?",
        command=_analyze("4gpu-item-pageable_*.sqlite"),
        path="idle_calls[0].call",
        answer="cudaStreamSynchronize",
        how="the program calls loss.item() in each step",
        author=READER,
    ),
    Eval(
        id="r20",
        question="Does the estimated saving of gradient_as_bucket_view=True stand out from the noise? "
        "Answer yes or no.",
        command=_analyze("ddp-4gpu_[0-9].sqlite"),
        path="recommendations.within_noise[id=grad-copy].id",
        answer="no",
        value="grad-copy",
        how="printed by analyze -v: 1.365 ms, within noise",
        author=READER,
    ),
)

BY_PROJECT = (
    Eval(
        id="p01",
        question="What is the ID of the finding to act on first?",
        command=_analyze(SHM),
        path="recommendations.first.id",
        answer="single-bucket",
        how="the program sends its 1.2 GB of gradients in one bucket over shared memory",
    ),
    Eval(
        id="p02",
        question="What share of the step is exposed communication, as the mean over all ranks?",
        command=_analyze(SHM),
        path="summary.exposed_comm_share",
        answer=45.4,
        how="oracle.exposed_share",
        unit="percent",
        scale=PERCENT,
        digits=1,
        bait="wrong denominator",
        bait_answer=88.8,
    ),
    Eval(
        id="p03",
        question="How long is a step (median)?",
        command=_analyze(SHM),
        path="summary.step_time_ns",
        answer=159.7,
        how="oracle.step_time_ns",
        unit="ms",
        scale=MS,
        digits=1,
    ),
    Eval(
        id="p04",
        question="By how many ms do the step times of this run spread from step to step?",
        command=_analyze(SHM),
        path="summary.n_summary_steps",
        answer=None,
        value=1,
        unit="ms",
        digits=1,
        how="of three captured steps, one is used",
        bait="one step",
        bait_answer=49.5,
    ),
    Eval(
        id="p05",
        question="The second run has smaller buckets. By how many percent did they lower the step "
        "time, beyond noise?",
        command=("diff", SHM, SHM_BUCKETS),
        path="verdict",
        answer=None,
        value="inconclusive",
        unit="percent",
        digits=1,
        how="one step on each side",
        bait="one step",
        bait_answer=30.1,
    ),
    Eval(
        id="p06",
        question="Which of the four ranks of this job do the others wait for?",
        command=_analyze("ddp-4gpu-shm_0.sqlite", "ddp-4gpu-shm_1.sqlite"),
        path="stragglers[rank=0].lateness_ns",
        answer=None,
        unit=RANK,
        how="ranks 2 and 3 are not among the reports",
        bait="missing rank",
        bait_answer=0,
    ),
    Eval(
        id="p07",
        question="How many ranks does the job have?",
        command=_analyze("ddp-4gpu_0.sqlite"),
        path="run.world_size",
        answer=4,
        how="the job had four processes, one of which is read",
        unit="ranks",
        bait="missing rank",
        bait_answer=1,
    ),
    Eval(
        id="p08",
        question="How many ms in all did rank 0 wait because rank 1 came late (straggler delay of rank 1)?",
        command=_analyze("2gpu-pp_*.sqlite"),
        path="stragglers[rank=1].lateness_ns",
        answer=None,
        unit="ms",
        digits=1,
        how="sends and receives do not align clocks, so the clock error is not known",
        bait="clock error",
        bait_answer=57.5,
    ),
    Eval(
        id="p09",
        question="With which clock error (in ns) can the times of rank 0 be compared with rank 1?",
        command=_analyze("2gpu-pp_*.sqlite"),
        path="ranks[rank=0].clock_error_ns",
        answer=None,
        unit="ns",
        how="the ranks share no collective that ends at the same time on both",
        bait="clock error",
        bait_answer=0,
    ),
    Eval(
        id="p10",
        question="How large is the clock error of rank 3 relative to the other ranks?",
        command=_analyze("ddp-4gpu-onefile.sqlite"),
        path="ranks[rank=3].clock_error_ns",
        answer=0,
        how="one report has one clock",
        unit="ns",
    ),
    Eval(
        id="p11",
        question="How many MB does the data-parallel all-reduce of ranks 0 and 2 send per step?",
        command=_analyze(TPDDP),
        path="traffic[rank=null,communicator=0x4f2709430b1ebdec].bytes_per_step",
        answer=round(TPDDP_BYTES / MB, 1),
        how="4 bytes for each of 115 947 520 parameters",
        unit="MB",
        scale=MB,
        digits=1,
        bait="other communicator",
        bait_answer=536.9,
    ),
    Eval(
        id="p12",
        question="How many all-to-alls of the experts does a rank run per step?",
        command=_analyze("2gpu-moe_*.sqlite"),
        path="traffic[rank=null,role=expert].calls_per_step",
        answer=32,
        how="oracle.calls_per_step",
        unit="calls",
        bait="other communicator",
        bait_answer=38,
    ),
    Eval(
        id="p13",
        question="How many MB of messages does a rank send per step?",
        command=_analyze(ONE_BUCKET),
        path="summary.message_bytes_per_step",
        answer=round(GPT_BYTES / MB, 1),
        how="4 bytes for each of 166 307 840 parameters",
        unit="MB",
        scale=MB,
        digits=1,
    ),
    Eval(
        id="p14",
        question="How many MB of messages does a rank send per step?",
        command=_analyze(BF16),
        path="summary.message_bytes_per_step",
        answer=round(GPT_BYTES / 2 / MB, 1),
        how="the hook sends 2 bytes for each of 166 307 840 parameters",
        unit="MB",
        scale=MB,
        digits=1,
    ),
    Eval(
        id="p15",
        question="The first run has one bucket, the second has buckets of 25 MB. By how many percent "
        "did the median step time change?",
        command=("diff", ONE_BUCKET, BUCKETS),
        path="metrics[metric=step_time].delta_pct",
        answer=-25.3,
        how="oracle.change_pct",
        unit="percent",
        digits=1,
    ),
    Eval(
        id="p16",
        question="Is the difference between the two runs an improvement, a regression, no change, or "
        "not decided?",
        command=("diff", ONE_BUCKET, BUCKETS),
        path="verdict",
        answer="improvement",
        how="ten steps on each side, and the longest of the second is shorter than the shortest of "
        "the first (oracle.are_separate)",
    ),
    Eval(
        id="p17",
        question="How many percent faster is the second run?",
        command=("diff", TPDDP, "4gpu-tpddp-nsys2024_*.sqlite"),
        path="comparable",
        answer=None,
        value=False,
        unit="percent",
        digits=1,
        how="both are exports of one capture",
        bait="several changes",
        bait_answer=0,
    ),
    Eval(
        id="p18",
        question="By how many percent do the changes of the second run (loss.item() in each step, "
        "pageable batches) lengthen the step?",
        command=("diff", "2gpu-gpt-b25_*.sqlite", "4gpu-item-pageable_*.sqlite"),
        path="comparable",
        answer=None,
        value=False,
        unit="percent",
        digits=1,
        how="two GPUs against four",
        bait="wrong denominator",
        bait_answer=3.1,
    ),
    Eval(
        id="p19",
        question="How long would a step be with bucket_cap_mb=50?",
        command=("whatif", TPDDP, "--bucket-mb", "50"),
        path="scenarios[0].step_time_ns",
        answer=None,
        unit="ms",
        digits=1,
        how="a GPU that waits for its CPU has no prediction (scenarios[0].refused)",
        bait="lower bound",
        bait_answer=26.1,
    ),
    Eval(
        id="p20",
        question="How long would a step be if the gradients were sent as bf16?",
        command=("whatif", BUCKETS, "--gradient-dtype", "bf16"),
        path="scenarios[0].step_time_ns",
        answer=29.9,
        how="docs/accuracy.md. The capture with that hook has 30.5 ms, inside the range",
        unit="ms",
        scale=MS,
        digits=1,
    ),
    Eval(
        id="p21",
        question="Which kind of parallelism does the program use?",
        command=_analyze("2gpu-pp_*.sqlite"),
        path="run.parallelism",
        answer="pipeline",
        value=["pipeline"],
        how="the program is pipeline parallel",
    ),
    Eval(
        id="p22",
        question="What MFU does the run reach?",
        command=_analyze("ddp-4gpu_[0-9].sqlite"),
        path="summary.mfu",
        answer=None,
        unit="percent",
        how="the FLOPs of a step were not recorded",
        bait="assumption",
        bait_answer=88,
    ),
    Eval(
        id="p23",
        question="How many GB of GPU memory does rank 0 leave free?",
        command=_analyze("ddp-4gpu_[0-9].sqlite"),
        path="ranks[rank=0].headroom_bytes",
        answer=None,
        unit="GB",
        digits=1,
        how="memory events were not recorded",
        bait="assumption",
        bait_answer=150.1,
    ),
    Eval(
        id="p24",
        question="How were the steps found: ranges, repetition, host or capture?",
        command=_analyze(TPDDP),
        path="run.steps_from",
        answer="repetition",
        how="the program has no range of its own",
    ),
    Eval(
        id="p25",
        question="What is the ID of the finding to act on first?",
        command=_analyze("4gpu/accum-broken_*.sqlite"),
        path="recommendations.first.id",
        answer="no-sync",
        how="three micro-batches that all reduce",
    ),
    Eval(
        id="p26",
        question="Can these reports show the interconnect? Answer yes, partly or no.",
        command=("doctor", SHM),
        path="capabilities[name=link].status",
        answer="no",
        how="neither a log of NCCL nor a topology was passed",
    ),
    Eval(
        id="p27",
        question="What is the label of the fastest of the three runs?",
        command=("compare", ONE_BUCKET, BUCKETS, BF16),
        path="kinds[0].best",
        answer="2gpu-gpt-b25-shm-bf16hook",
        how="less is sent in more buckets (tests.pairs has the step times)",
    ),
    Eval(
        id="p28",
        question="How many times faster is the job with four GPUs per step?",
        command=("compare", "baseline.sqlite", "ddp-4gpu_[0-9].sqlite"),
        path="runs[label=ddp-4gpu].verdict",
        answer=None,
        value="inconclusive",
        unit="times",
        digits=1,
        how="a step of four GPUs does four times the work",
        bait="wrong denominator",
        bait_answer=0.9,
    ),
    Eval(
        id="p29",
        question="How long is step 10 on rank 0?",
        command=_analyze(SHM),
        path="steps[rank=0,step=10].wall_ns",
        answer=209.2,
        how="oracle.step_time_ns",
        unit="ms",
        scale=MS,
        digits=1,
        bait="one step",
        bait_answer=159.7,
    ),
    Eval(
        id="p30",
        question="Which finding saves at least 2% of the step? Answer with its ID, or none.",
        command=_analyze("2gpu-gpt-accum_*.sqlite"),
        path="recommendations.first.id",
        answer="none",
        value=None,
        how="two of three micro-batches send nothing, and NVLink sends the rest in 1.3% of the step",
        bait="wrong denominator",
        bait_answer="comm-slows-compute",
    ),
)

EVALS = (*BY_READER, *BY_PROJECT)
