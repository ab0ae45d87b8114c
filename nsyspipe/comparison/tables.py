"""The tables of a difference and of a scoreboard: every column's unit and formula."""

from __future__ import annotations

from nsyspipe.model.figures import shown
from nsyspipe.model.table import table

METRIC_ROWS = table("""
    difference_metrics by metric: One row per figure: medians or means over summary steps of both sides, and what their difference may be.

    metric            text                 name, as --metric takes it
    unit              text                 ns, 1/s, ratio, count, bytes or bytes/s
    better            text                 lower, higher, or neither
    statistic         text?                median, or mean: of times where the steps of either run are uneven
    baseline          float:the_metric's?  that over summary steps; of several captures the mean of theirs, of the baseline
    candidate         float:the_metric's?  that over summary steps; of several captures the mean of theirs, of the candidate
    delta             float:the_metric's?  candidate - baseline
    delta_pct         float:%?             100 x delta / baseline; null where that is 0
    ci_low            float:the_metric's?  lower end of the interval of delta; null when undecided
    ci_high           float:the_metric's?  upper end of it
    confidence        ratio                of the interval
    n_baseline        count                summary steps that have the figure, never times ranks
    n_candidate       count                the same of the candidate
    method            text?                how the interval was made
    verdict           text                 improvement, regression, no change, or inconclusive; change of what is neither better lower nor higher
    why               text?                what is lacking where there is no figure, or why it is inconclusive
    baseline_median   float:the_metric's?  median over summary steps of the baseline, whatever is judged
    baseline_mean     float:the_metric's?  mean over summary steps of the baseline, whatever is judged
    candidate_median  float:the_metric's?  median over summary steps of the candidate, whatever is judged
    candidate_mean    float:the_metric's?  mean over summary steps of the candidate, whatever is judged
    min_effect        float:the_metric's?  smallest difference that counts
    min_effect_pct    float:%              the same, of the baseline
    no_regression     flag                 the interval's worse end lies below it: --fail-on regression passes
    settle_steps      count?               about so many steps per capture would settle it, of judged figures; null: decided, or no number would
    settle_captures   count?               or so many captures on each side, each of as many steps
    gate_steps        count?               the same for --fail-on regression
    gate_captures     count?               the same for --fail-on regression
""")

STEP_TIME_PARTS = table("""
    difference_step_time_parts by part: One row per part of the step on the slowest rank of each step (tie: the lowest): they sum to the mean step time exactly, in every column.

    part          text       compute, exposed_comm, exposed_memory, idle
    baseline_ns   float:ns?  mean over summary steps, of the baseline
    candidate_ns  float:ns?  mean over summary steps, of the candidate
    delta_ns      float:ns?  candidate - baseline
""")

IDLE_CAUSE_PARTS = table("""
    difference_idle_causes by cause: One row per cause of idle time on the same ranks: they sum to the part idle exactly.

    cause         text       input, launch, blocked, dependency, or other: no cause that both sides recorded
    baseline_ns   float:ns?  mean over summary steps; null where a side did not record it, of the baseline
    candidate_ns  float:ns?  mean over summary steps; null where a side did not record it, of the candidate
    delta_ns      float:ns?  candidate - baseline
""")

KERNEL_CHANGES = table("""
    difference_kernels by delta_ns_per_step, phase, name: One row per (phase, normalised name) that either side runs in a summary step, the largest |delta| first.

    phase                  text?         phase that launched them; null outside of all
    name                   text          as in kernels
    status                 text          appeared, vanished, changed, or same: at most the minimum effect and 0.1 % of the step
    baseline_ns_per_step   float:ns?     per rank and summary step: durations of those that start in its window, of the baseline
    candidate_ns_per_step  float:ns?     per rank and summary step: durations of those that start in its window, of the candidate
    delta_ns_per_step      float:ns?     candidate - baseline
    baseline_n_per_step    float:count?  how many, likewise; 0 where none runs in a summary step
    candidate_n_per_step   float:count?  the same of the candidate
    baseline_mean_ns       float:ns?     mean duration of one; null where none runs there
    candidate_mean_ns      float:ns?     the same of the candidate
""")

CHANGES = table("""
    difference_changes by topic, what: One row per fact around the runs that differs: numbers in the columns _value, words in the others.

    topic            text              steps, collectives, copies, stragglers, link, versions, capture
    what             text              the fact
    unit             text?             of the numbers; null for words
    baseline         text?             in words; null where it was not set
    candidate        text?             the same of the candidate
    baseline_value   float:the_row's?  as a number; mean of several captures
    candidate_value  float:the_row's?  the same of the candidate
    delta            float:the_row's?  candidate - baseline
""")

COMPARABILITY = table("""
    difference_comparability by check: One row per reason to doubt the comparison; those that block make all verdicts inconclusive.

    check      text  stable name
    blocks     flag  no verdict without --force
    baseline   text  what was found
    candidate  text  what was found
    message    text  both in one sentence
""")

CHECKS_OF_RUNS = table("""
    scoreboard_checks by label, check: One row per reason to doubt a comparison: those that block are against the first, the others against the peer.

    label            text  the run
    against          text  what it was compared with
    check            text  stable name
    blocks           flag  no verdict without --force
    reference_value  text  what was found there
    value            text  what was found of the run
    message          text  both in one sentence
""")

_PROBLEM = """
    severity  text   error, warning, info
    report    text?  where
    rank      id?    where
    message   text   what
    fix       text?  what mends it
"""

PROBLEMS_OF_SIDES = table(f"""
    difference_problems by side: The problems of the runs, as each says them.

    side      text   baseline or candidate
    run_id    text   capture
    code      text   as in problems
{_PROBLEM}
""")

PROBLEMS_OF_RUNS = table(f"""
    scoreboard_problems by label: The problems of the runs, as each says them.

    label     text   the run
    run_id    text   its capture
    code      text   as in problems; no-figures: no step has a window on every rank
{_PROBLEM}
""")

_FIGURES = "\n".join(f"    {one.column} float:{one.unit}? {one.meaning}" for one in shown("scoreboard table"))

SCOREBOARD = table(f"""
    scoreboard by label: One row per run, in the order given or sorted. The first that was given is the reference.

    label                   text       name of the run, unique
    run_ids                 text       its captures, with a space between
    n_captures              count      captures of it
    world_size              count?     ranks of the job; null when not recorded
    n_ranks                 count      ranks with a report
    gpu_names               text       GPU models, with commas between; empty when not recorded
    n_summary_steps         count      steps the figures rest on, of all captures
{_FIGURES}
    throughput_steps_per_s  1/s?       1 / mean step time; of several captures of the mean of their means
    rank_steps_per_s        1/s?       throughput x ranks: samples/s over the batch of a rank
    speedup                 ratio?     mean step time of the first / mean step time of this run: in steps/s
    speedup_low             ratio?     lower end of its interval; null with too few steps
    speedup_high            ratio?     upper end of it
    verdict                 text       of step time against the first: reference, improvement, regression, no change or inconclusive
    why                     text?      why it is inconclusive
    peer                    text       the first run that can be compared with this one: the same world size, GPU model and ranks
    peer_speedup            ratio?     mean step time of the peer / mean step time of this run: in steps/s
    peer_speedup_low        ratio?     lower end of its interval; null with too few steps
    peer_speedup_high       ratio?     upper end of it
    peer_verdict            text       of step time against the peer; reference where that is the run itself
    peer_why                text?      why that is inconclusive
    peer_statistic          text?      median, or mean where steps are uneven: what that verdict is of
    peer_settle_steps       count?     about so many steps per capture would settle it; null: decided, or no number would
    peer_settle_captures    count?     or so many captures of each run, each of as many steps
    is_uneven               flag       mean and median of its steps are far apart, or few steps are near the median
    mean_step_time_ns       float:ns?  mean over summary steps of the slowest rank: what the parts sum to
    compute_ns              float:ns?  part of the mean step time on its slowest rank
    exposed_comm_ns         float:ns?  part of it
    exposed_memory_ns       float:ns?  part of it
    idle_ns                 float:ns?  part of it
""")
