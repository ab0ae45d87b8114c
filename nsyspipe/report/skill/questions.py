"""The closed list of questions: the field of each answer, and when to abstain."""

from dataclasses import dataclass

# Commands of the questions.
DOCTOR = "doctor"
ANALYZE = "analyze"
WHATIF = "whatif"
DIFF = "diff"
COMPARE = "compare"


@dataclass(frozen=True)
class Question:
    """A question, and the field of a JSON document that has its answer."""

    # Names the question in the JSON of the skill.
    id: str
    text: str
    # The command with `--json -` that prints the document.
    command: str
    # As `fields.parse_path` reads it.
    path: str
    # As `nsyspipe schema` names it; empty for text, names and true or false.
    unit: str
    # When no answer may be given, besides a null.
    abstain: str = ""


_ONE_STEP = "about variation or noise with 1 step used"
_SAVING = "if null, and never add two savings"
_MISSING_RANK = "if a rank is missing"
_UNDECIDED = "if inconclusive"
_NOT_RECORDED = "if null"

# Questions in the order of work.
QUESTIONS = (
    # What the reports can answer.
    Question(
        id="capability",
        text="Can the reports answer X? (name: steps, link, message_bytes, idle_causes, ...)",
        command=DOCTOR,
        path="capabilities[name=link].status",
        unit="",
        abstain="if no",
    ),
    Question(
        id="capability-fix",
        text="What records the missing part?",
        command=DOCTOR,
        path="capabilities[name=link].fix",
        unit="",
    ),
    # The run.
    Question(
        id="ranks-read",
        text="How many ranks were read?",
        command=ANALYZE,
        path="run.n_ranks",
        unit="count",
    ),
    Question(
        id="world-size",
        text="How many ranks does the job have?",
        command=ANALYZE,
        path="run.world_size",
        unit="count",
        abstain="about ranks that were not read",
    ),
    Question(
        id="parallelism",
        text="Which kinds of parallelism are used?",
        command=ANALYZE,
        path="run.parallelism",
        unit="",
    ),
    Question(
        id="steps-from",
        text="How were the steps found?",
        command=ANALYZE,
        path="run.steps_from",
        unit="",
        abstain="about steps if capture",
    ),
    Question(
        id="steps-used",
        text="How many steps do the metrics use?",
        command=ANALYZE,
        path="summary.n_summary_steps",
        unit="count",
        abstain=_ONE_STEP,
    ),
    Question(
        id="steps-skipped",
        text="Which steps were skipped?",
        command=ANALYZE,
        path="summary.skipped_steps[]",
        unit="",
    ),
    Question(
        id="problems",
        text="What is wrong or missing in the reports?",
        command=ANALYZE,
        path="problems[].code",
        unit="",
    ),
    # The step.
    Question(
        id="step-time",
        text="How long is a step (median)?",
        command=ANALYZE,
        path="summary.step_time_ns",
        unit="ns",
        abstain=_ONE_STEP,
    ),
    Question(
        id="step-of-rank",
        text="How long is one step on one rank?",
        command=ANALYZE,
        path="steps[].wall_ns",
        unit="ns",
    ),
    Question(
        id="throughput",
        text="How many steps per second?",
        command=ANALYZE,
        path="summary.throughput_steps_per_s",
        unit="1/s",
        abstain="exactly if problems[].code has slowest-rank-changes: it is too low",
    ),
    Question(
        id="mean-step",
        text="How long is the mean step (slowest rank of each step)?",
        command=ANALYZE,
        path="mean_step.slowest_of_each_step_ns",
        unit="ns",
    ),
    Question(
        id="mean-step-of-a-rank",
        text="How long is the mean step of the slowest single rank? (1e9 / it is the throughput "
        "without that bias)",
        command=ANALYZE,
        path="mean_step.slowest_on_average_ns",
        unit="ns",
    ),
    Question(
        id="part",
        text="How long is a part of the mean step (slowest rank)? (compute, exposed_comm, "
        "exposed_memory, idle)",
        command=ANALYZE,
        path="mean_step.parts[part=exposed_comm].slowest_of_each_step_ns",
        unit="ns",
    ),
    Question(
        id="part-of-all-ranks",
        text="The same as the mean over all ranks?",
        command=ANALYZE,
        path="mean_step.parts[part=exposed_comm].all_ranks_ns",
        unit="ns",
    ),
    Question(
        id="lower-bounds",
        text="Which parts can be longer than measured?",
        command=ANALYZE,
        path="mean_step.lower_bounds",
        unit="",
        abstain="about the exact value of a part that is listed",
    ),
    Question(
        id="uneven",
        text="Are the steps too uneven for one number?",
        command=ANALYZE,
        path="evenness.is_uneven",
        unit="",
        abstain=_ONE_STEP,
    ),
    Question(
        id="exposed-share",
        text="What share of the step is exposed communication?",
        command=ANALYZE,
        path="summary.exposed_comm_share",
        unit="ratio",
        abstain="about shares of compute or of communication",
    ),
    Question(
        id="overlap",
        text="What share of the communication overlaps with compute? (the rest of 1 is exposed)",
        command=ANALYZE,
        path="summary.overlap_ratio",
        unit="ratio",
    ),
    Question(
        id="idle-share",
        text="What share of the step is the GPU idle?",
        command=ANALYZE,
        path="summary.idle_share",
        unit="ratio",
        abstain="if mean_step.lower_bounds has idle",
    ),
    Question(
        id="blocking-call",
        text="Which CUDA call blocks the CPU longest?",
        command=ANALYZE,
        path="idle_calls[0].call",
        unit="",
    ),
    Question(
        id="mfu",
        text="What is the MFU?",
        command=ANALYZE,
        path="summary.mfu",
        unit="ratio",
        abstain="if null: it needs --flops-per-step, or FLOPs in NAME.capture.json",
    ),
    Question(
        id="memory-headroom",
        text="How much GPU memory is free?",
        command=ANALYZE,
        path="ranks[].headroom_bytes",
        unit="bytes",
        abstain="if null: it needs torch's peaks in NAME.capture.json",
    ),
    # Communication.
    Question(
        id="collectives",
        text="How many collectives per step?",
        command=ANALYZE,
        path="summary.collectives_per_step",
        unit="count",
    ),
    Question(
        id="message-bytes",
        text="How many bytes are sent per step?",
        command=ANALYZE,
        path="summary.message_bytes_per_step",
        unit="bytes",
        abstain=_NOT_RECORDED,
    ),
    Question(
        id="traffic-exposed",
        text="How much exposed time does one communicator cause? (choose role and ranks)",
        command=ANALYZE,
        path="traffic[rank=null,role=data].exposed_part_ns_per_step",
        unit="ns",
        abstain="about other communicators, and never add their rows over ranks",
    ),
    Question(
        id="role-exposed",
        text="The same for all communicators of a role, mean over ranks?",
        command=ANALYZE,
        path="findings[id=comm-bound].evidence.exposed_comm_ns_per_step_by_role.data",
        unit="ns",
        abstain="if there is no such finding",
    ),
    Question(
        id="traffic-bandwidth",
        text="What bus bandwidth does one communicator reach?",
        command=ANALYZE,
        path="traffic[rank=null,role=data].busbw_bytes_per_s",
        unit="bytes/s",
        abstain="about other communicators",
    ),
    Question(
        id="traffic-calls",
        text="How many collectives per step does one communicator run?",
        command=ANALYZE,
        path="traffic[rank=null,role=data].calls_per_step",
        unit="count",
    ),
    Question(
        id="traffic-bytes",
        text="How many bytes per step does one communicator send?",
        command=ANALYZE,
        path="traffic[rank=null,role=data].bytes_per_step",
        unit="bytes",
        abstain=_NOT_RECORDED,
    ),
    Question(
        id="bandwidth",
        text="What bus bandwidth do the collectives reach?",
        command=ANALYZE,
        path="summary.busbw_bytes_per_s",
        unit="bytes/s",
        abstain=_NOT_RECORDED,
    ),
    Question(
        id="counted-bandwidth",
        text="The same, counted by the hardware?",
        command=ANALYZE,
        path="counters.counted_bytes_per_s",
        unit="bytes/s",
        abstain="if counters is null",
    ),
    Question(
        id="interconnect",
        text="Which interconnect does a connection use?",
        command=ANALYZE,
        path="links[].kind",
        unit="",
        abstain="if links is empty: it was not recorded",
    ),
    # Ranks.
    Question(
        id="wait",
        text="What share of the step do ranks wait for later ranks?",
        command=ANALYZE,
        path="summary.wait_share",
        unit="ratio",
        abstain=_MISSING_RANK,
    ),
    Question(
        id="straggler",
        text="Which rank do the others wait for?",
        command=ANALYZE,
        path="findings[id=straggler].evidence.rank",
        unit="id",
        abstain="if there is no such finding: no rank is late, or problems[].code has not-judged",
    ),
    Question(
        id="straggler-delay",
        text="How long do the others wait for a rank, over all steps used?",
        command=ANALYZE,
        path="stragglers[rank=0].lateness_ns",
        unit="ns",
        abstain="if null, or below ranks[].clock_error_ns",
    ),
    Question(
        id="clock-error",
        text="How exactly do the clocks of ranks agree?",
        command=ANALYZE,
        path="ranks[rank=0].clock_error_ns",
        unit="ns",
        abstain="about the order of ranks if null. 0 is exact: one report has these ranks",
    ),
    # What to change.
    Question(
        id="first-change",
        text="What should be changed first?",
        command=ANALYZE,
        path="recommendations.first.id",
        unit="",
        abstain="if first is null: no change saves much",
    ),
    Question(
        id="first-saving",
        text="How much does it save? (known: estimated, conditional, or bounded, which is at most)",
        command=ANALYZE,
        path="recommendations.first.saving_ns_per_step",
        unit="ns",
        abstain=_SAVING,
    ),
    Question(
        id="first-step-time",
        text="How long is a step then?",
        command=ANALYZE,
        path="recommendations.first.step_time_ns",
        unit="ns",
        abstain=_NOT_RECORDED,
    ),
    Question(
        id="alternative",
        text="What step time does another change lead to? (findings[].evidence has the median)",
        command=ANALYZE,
        path="recommendations.alternatives[].step_time_ns",
        unit="ns",
        abstain="without its condition if known is conditional",
    ),
    Question(
        id="within-noise",
        text="Which savings are within noise?",
        command=ANALYZE,
        path="recommendations.within_noise[].id",
        unit="",
        abstain="that one of them helps",
    ),
    Question(
        id="little",
        text="Which changes save almost nothing, and what share at most?",
        command=ANALYZE,
        path="recommendations.little[0].saved_share",
        unit="ratio",
    ),
    Question(
        id="finding-expected",
        text="What does a finding save, estimated?",
        command=ANALYZE,
        path="findings[id=straggler].expected_ns_per_step",
        unit="ns",
        abstain=_SAVING,
    ),
    Question(
        id="finding-bound",
        text="What does a finding save at most?",
        command=ANALYZE,
        path="findings[id=ddp-single-gpu].saving_ns_per_step",
        unit="ns",
        abstain=_SAVING,
    ),
    Question(
        id="finding-evidence",
        text="What is a finding based on? (each key of its evidence)",
        command=ANALYZE,
        path="findings[id=comm-bound].evidence",
        unit="",
        abstain="about a key that is null, or begins with assumed: nothing measured it",
    ),
    # A simulation.
    Question(
        id="predicted-step",
        text="How long is a step after a change? (with low_ns and high_ns)",
        command=WHATIF,
        path="scenarios[0].step_time_ns",
        unit="ns",
        abstain="if refused is not null: give the reason in refused",
    ),
    Question(
        id="predicted-gain",
        text="By how many percent is the step shorter?",
        command=WHATIF,
        path="scenarios[0].gain_pct",
        unit="%",
        abstain="if refused is not null",
    ),
    Question(
        id="refused",
        text="Why is there no prediction?",
        command=WHATIF,
        path="scenarios[0].refused",
        unit="",
    ),
    Question(
        id="limit",
        text="How long is a step without any communication time?",
        command=WHATIF,
        path="limit_step_time_ns",
        unit="ns",
        abstain="as a prediction: it is a limit",
    ),
    # Two runs.
    Question(
        id="verdict",
        text="Did the change help, or is it noise?",
        command=DIFF,
        path="verdict",
        unit="",
        abstain="if inconclusive: give why, and never call it a success",
    ),
    Question(
        id="comparable",
        text="Can the runs be compared?",
        command=DIFF,
        path="comparable",
        unit="",
        abstain="if false: give comparability[].message",
    ),
    Question(
        id="difference",
        text="By how many percent did a metric change? (with ci_low and ci_high)",
        command=DIFF,
        path="metrics[metric=step_time].delta_pct",
        unit="%",
        abstain=_UNDECIDED,
    ),
    Question(
        id="interval",
        text="What is the highest change that the data allow?",
        command=DIFF,
        path="metrics[metric=step_time].ci_high",
        unit="ns",
        abstain=_NOT_RECORDED,
    ),
    Question(
        id="why-undecided",
        text="Why is it undecided?",
        command=DIFF,
        path="metrics[metric=step_time].why",
        unit="",
    ),
    Question(
        id="part-change",
        text="Which part of the step changed, and by how much?",
        command=DIFF,
        path="step_time_parts[part=exposed_comm].delta_ns",
        unit="ns",
        abstain="about a cause",
    ),
    Question(
        id="cause",
        text="What is the likely cause of the difference?",
        command=DIFF,
        path="cause",
        unit="",
        abstain="if null, or if changes[] has several settings",
    ),
    Question(
        id="kernel-change",
        text="By how much did a kernel change per rank and step? (only the ten largest)",
        command=DIFF,
        path="kernels[].delta_ns_per_step",
        unit="ns",
        abstain="that it is significant: kernels have no interval",
    ),
    # Several runs.
    Question(
        id="fastest",
        text="Which run is the fastest of its group?",
        command=COMPARE,
        path="kinds[0].best",
        unit="",
        abstain="if null, or if not_told_from is not empty",
    ),
    Question(
        id="speedup",
        text="How much faster is a run than its baseline? (with speedup_low and speedup_high)",
        command=COMPARE,
        path="runs[].peer_speedup",
        unit="ratio",
        abstain="if peer_verdict is inconclusive",
    ),
    Question(
        id="verdict-of-run",
        text="Is a run faster than the first run, or is it noise?",
        command=COMPARE,
        path="runs[].verdict",
        unit="",
        abstain="if inconclusive: give why",
    ),
)
