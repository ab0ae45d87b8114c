"""Every limit of the rules: two values a little off, and the tests on both sides of each place where it decides."""

from msgspec import Struct


class Use(Struct, frozen=True):
    """One place where a limit decides, and what holds it there on both sides.

    `tests` are functions of a test module of this folder, or the IDs of cases of a module that
    lists `CASES`. One of them at least fails with the lower value, and one with the higher value.
    """

    module: str
    tests: tuple[str, ...]


class Limit(Struct, frozen=True):
    """A number from which on a rule says something else."""

    lower: float
    higher: float
    uses: tuple[Use, ...]


def held(module: str, *tests: str) -> Use:
    """Return a use that these tests or cases hold."""
    return Use(module, tests)


def on_both_sides(module: str, case: str) -> Use:
    """Return a use that the two cases of `make.threshold` hold."""
    return Use(module, (case, f"{case}, not quite"))


COMM, DEVICE, ROLES = "comm_rules", "device_rules", "role_rules"
MEMORY = "memory_rules"
LATE, SETTINGS, LINK = "straggler_rules", "settings_rules", "test_slow_link"
LINES = "test_host_lines"
OF_COMM, OF_HOST = "test_limits_communication", "test_limits_host"
OF_LATENESS, OF_GRADIENTS = "test_limits_lateness", "test_limits_gradients"

LIMITS = {
    "analysis.host_lines.MIN_SAMPLES": Limit(
        4, 6, (held(LINES, "test_four_samples_are_too_few_and_five_are_enough"),)
    ),
    "findings.host_lines.MIN_SHARE_OF_SAMPLES": Limit(
        0.44, 0.51, (held(LINES, "test_a_line_needs_half_of_the_samples"),)
    ),
    "findings.host_lines.MIN_SHARE_OF_STEPS": Limit(
        0.24, 0.51, (held(LINES, "test_a_line_needs_half_of_the_steps"),)
    ),
    "findings.host_lines.MAX_SHARE_OF_OTHER_TIMES": Limit(
        0.92, 0.97, (held(LINES, "test_a_function_that_all_other_samples_have_too_is_the_loop"),)
    ),
    "findings.host_lines.MIN_PART_OF_MOST": Limit(
        0.84,
        0.91,
        (held(LINES, "test_the_innermost_of_functions_in_about_as_many_samples_is_named"),),
    ),
    "findings.host_lines.MIN_SHARE_OF_LOCK": Limit(
        0.08,
        0.11,
        (held(LINES, "test_the_holder_of_the_lock_is_named_from_a_tenth_of_the_idle_time"),),
    ),
    "findings.host_lines.MIN_PART_OF_LATENESS": Limit(
        0.49,
        0.51,
        (
            held(
                LINES,
                "test_a_straggler_is_late_if_idling_is_half_of_its_delays",
                "test_a_straggler_is_not_late_by_less_idling",
            ),
        ),
    ),
    "findings.straggler.MIN_CLOCK_DIFFERENCE": Limit(
        0.019,
        0.021,
        (
            held(
                "test_slow_clock",
                "test_a_clock_two_per_cent_lower_is_a_slow_one",
                "test_a_clock_that_is_hardly_lower_is_no_slow_one",
            ),
        ),
    ),
    "findings.communication._MIN_EXPOSED_SHARE_OF_STEP": Limit(
        0.049, 0.051, (on_both_sides(COMM, "comm_bound, 5 % of step time"),)
    ),
    "findings.communication._MIN_SHARE_OF_GRADIENTS": Limit(
        0.49,
        0.51,
        (
            held(
                COMM,
                "comm_bound, half of it gradients",
                "comm_bound, less than half of it gradients",
            ),
        ),
    ),
    "findings.communication._MIN_SHARE_OF_MOST": Limit(
        0.66,
        0.67,
        (
            held(
                OF_COMM,
                "test_two_thirds_on_the_compute_stream_count_as_all",
                "test_less_than_two_thirds_on_the_compute_stream_count_as_none",
            ),
            held(
                OF_COMM,
                "test_a_phase_with_two_thirds_of_exposed_communication_is_named",
                "test_a_phase_with_less_than_two_thirds_is_not_named",
            ),
        ),
    ),
    "findings.communication._MIN_SLOWDOWN": Limit(
        0.0185, 0.0205, (on_both_sides(COMM, "comm_slows_compute, 20 of 1000, 220 hidden"),)
    ),
    "findings.communication._MIN_SLOWED_SHARE_OF_STEP": Limit(
        0.00245, 0.00255, (on_both_sides(COMM, "comm_slows_compute, 100 of 1000, 28 hidden"),)
    ),
    "findings.communication._MIN_SHARE_OF_WAITING": Limit(
        0.49,
        0.51,
        (
            held(
                OF_COMM,
                "test_half_of_communication_is_mostly_waiting",
                "test_less_than_half_of_communication_is_not_mostly_waiting",
            ),
        ),
    ),
    "findings.communication._MIN_DIFFERENCE_NS": Limit(
        0.94,
        1.06,
        (
            held(
                OF_COMM,
                "test_a_bound_that_is_lower_by_1_ns_replaces_the_larger_one",
                "test_a_bound_that_is_lower_by_less_than_1_ns_does_not_count",
            ),
        ),
    ),
    "findings.gradients._MIN_SAVING_SHARE_OF_STEP": Limit(
        0.009,
        0.0101,
        (
            on_both_sides(COMM, "single_bucket, 1 % of step time"),
            on_both_sides(ROLES, "no_sync, 1 % of step time"),
            held(
                COMM,
                "too_many_buckets, all thresholds at once",
                "too_many_buckets, less than 1 %",
            ),
        ),
    ),
    "findings.gradients._MAX_OVERLAP_OF_SINGLE_BUCKET": Limit(
        0.099, 0.102, (on_both_sides(COMM, "single_bucket, a tenth hidden"),)
    ),
    "findings.gradients._MAX_ALL_REDUCES_OF_SINGLE_BUCKET": Limit(
        2, 4, (on_both_sides(COMM, "single_bucket, a loss and a norm, and one more"),)
    ),
    "findings.gradients._MIN_SHARE_OF_SINGLE_BUCKET": Limit(
        0.945, 0.955, (on_both_sides(COMM, "single_bucket, 95 %"),)
    ),
    "findings.gradients._MIN_MANY_COLLECTIVES": Limit(
        19,
        21,
        (
            held(COMM, "too_many_buckets, what they leave exposed", "too_many_buckets, 19 of them"),
            held(ROLES, "small_shards, their latency", "small_shards, 19 of them"),
        ),
    ),
    "findings.gradients._MAX_SMALL_TRANSFER_NS": Limit(
        99_999,
        100_001,
        (
            held(
                COMM,
                "too_many_buckets, what they leave exposed",
                "too_many_buckets, longer than the floor",
            ),
        ),
    ),
    "findings.gradients._MAX_SMALL_BUCKET_BYTES": Limit(
        3.99e6,
        4.01e6,
        (
            held(
                COMM,
                "too_many_buckets, all thresholds at once",
                "too_many_buckets, over 4 MB each",
            ),
        ),
    ),
    "findings.gradients._MIN_COPY_SHARE_OF_STEP": Limit(
        0.00099, 0.00101, (on_both_sides(DEVICE, "grad_copy, a thousandth of step time"),)
    ),
    "findings.gradients._MIN_MANY_COPIED_BYTES": Limit(
        15.9e6,
        16.1e6,
        (
            held(
                DEVICE,
                "grad_copy, a thousandth of step time",
                "grad_copy, less than 16 MB, not quite",
            ),
        ),
    ),
    "findings.gradients._MIN_COPY_SHARE_OF_STEP_OF_FEW_BYTES": Limit(
        0.00499, 0.00501, (on_both_sides(DEVICE, "grad_copy, less than 16 MB"),)
    ),
    "findings.gradients._MIN_EXPOSED_SHARE_TO_COMPRESS": Limit(
        0.099,
        0.101,
        (
            on_both_sides(COMM, "compress_gradients, a tenth of step time"),
            held(
                OF_GRADIENTS,
                "test_unknown_all_reduces_of_10_percent_of_a_step_are_not_judged",
                "test_unknown_all_reduces_of_less_than_10_percent_are_no_matter",
            ),
        ),
    ),
    "findings.idle.MIN_IDLE_SHARE_OF_STEP": Limit(
        0.019,
        0.0201,
        (
            on_both_sides(DEVICE, "input_bound, 2 % of step time"),
            on_both_sides(DEVICE, "launch_bound, 2 % of step time"),
            on_both_sides(DEVICE, "sync_bound, 2 % of step time"),
            on_both_sides(MEMORY, "alloc_in_step, 2 % of step time"),
            held(
                DEVICE,
                "launch_bound, 2 % of unknown cause",
                "launch_bound, 1.9 % of unknown cause",
            ),
        ),
    ),
    "findings.memory.MIN_SHARE_OF_STEPS": Limit(
        0.39,
        0.51,
        (
            on_both_sides(MEMORY, "alloc_in_step, half of the steps"),
            on_both_sides(MEMORY, "alloc_in_step, half of the later half"),
        ),
    ),
    "findings.memory.MIN_STEPS": Limit(1, 3, (on_both_sides(MEMORY, "alloc_in_step, two steps"),)),
    "findings.idle._MIN_SHARE_OF_RANK_IN_TURN": Limit(
        0.249,
        0.251,
        (
            held(
                OF_HOST,
                "test_a_rank_with_a_quarter_of_the_idle_time_has_a_turn",
                "test_a_rank_with_less_than_a_quarter_of_the_idle_time_has_no_turn",
            ),
        ),
    ),
    "findings.host._MIN_SHARE_OF_MOSTLY_PAUSES": Limit(
        0.49,
        0.51,
        (
            held(
                OF_HOST,
                "test_idle_time_of_which_half_lies_in_pauses_is_mostly_pauses",
                "test_idle_time_of_which_less_than_half_lies_in_pauses_is_not",
            ),
        ),
    ),
    "findings.host._MIN_SHARE_OF_SOME_PAUSES": Limit(
        0.245,
        0.255,
        (
            held(
                OF_HOST,
                "test_a_quarter_in_pauses_changes_the_advice",
                "test_less_than_a_quarter_in_pauses_changes_no_advice",
            ),
            held(
                OF_HOST,
                "test_a_quarter_in_pauses_asks_for_a_range_around_data_loading",
                "test_less_than_a_quarter_in_pauses_asks_for_no_range",
            ),
        ),
    ),
    "findings.host._MIN_COPY_SHARE_OF_STEP": Limit(
        0.00099,
        0.00101,
        (
            held(
                OF_HOST,
                "test_blocking_copies_of_a_thousandth_of_a_step_are_found",
                "test_blocking_copies_of_less_than_a_thousandth_are_not_found",
            ),
        ),
    ),
    "findings.profiler._MIN_RATIO_OF_DISTORTED_STEP": Limit(
        1.49,
        1.51,
        (
            on_both_sides(DEVICE, "profiler_overhead, half as long again"),
            held(DEVICE, "profiler_overhead, of three ranks a first step of (300, 150, 149)"),
        ),
    ),
    "findings.profiler._MIN_OVERHEAD_SHARE_OF_STEP": Limit(
        0.009, 0.0101, (on_both_sides(DEVICE, "profiler_overhead, 1 % of own work"),)
    ),
    "findings.judge._MIN_SHARE_OF_HIGH_SEVERITY": Limit(
        0.099,
        0.101,
        (
            held(
                "test_limits_judge",
                "test_a_saving_of_10_percent_of_a_step_is_of_high_severity",
                "test_a_saving_of_less_than_10_percent_is_of_medium_severity",
            ),
        ),
    ),
    "findings.judge._MIN_SHARE_OF_MEDIUM_SEVERITY": Limit(
        0.029,
        0.031,
        (
            held(
                "test_limits_judge",
                "test_a_saving_of_3_percent_of_a_step_is_of_medium_severity",
                "test_a_saving_of_less_than_3_percent_is_of_low_severity",
            ),
        ),
    ),
    "findings.lateness.LIMITS.min_share": Limit(
        0.0296,
        0.0304,
        (
            on_both_sides(LATE, "straggler, 3 % of three steps"),
            held(
                OF_LATENESS,
                "test_a_host_that_is_late_by_3_percent_of_all_steps_is_named",
                "test_a_host_that_is_late_by_less_than_3_percent_is_not_named",
            ),
        ),
    ),
    "findings.lateness.LIMITS.min_share_of_few_steps": Limit(
        0.099,
        0.101,
        (
            on_both_sides(LATE, "straggler, 10 % of one step"),
            on_both_sides(LATE, "straggler, 10 % of two steps"),
        ),
    ),
    "findings.lateness.LIMITS.noticeable_share": Limit(
        0.009,
        0.0101,
        (
            on_both_sides(LATE, "straggler, 1 % of most steps"),
            held(
                OF_LATENESS,
                "test_a_rank_that_delays_others_by_1_percent_of_a_step_is_named",
                "test_a_rank_that_delays_others_by_less_than_1_percent_is_not_named",
            ),
            held(
                OF_LATENESS,
                "test_a_step_with_a_delay_of_1_percent_counts_as_held_up",
                "test_a_step_with_a_delay_of_less_than_1_percent_does_not",
            ),
        ),
    ),
    "findings.lateness.LIMITS.min_part_of_delays": Limit(
        0.09,
        0.101,
        (
            held(
                LATE,
                "straggler, 10 % of all delays",
                "straggler, 10 % of all delays, not quite",
            ),
            held(
                OF_LATENESS,
                "test_a_start_that_is_late_by_a_tenth_of_all_delays_is_told",
                "test_a_start_that_is_late_by_less_than_a_tenth_is_not_told",
            ),
        ),
    ),
    "findings.lateness.LIMITS.min_part_behind": Limit(
        0.24, 0.26, (held(LATE, "straggler, one behind the last", "straggler, one hardly behind"),)
    ),
    "findings.lateness.LIMITS.min_slower_share": Limit(
        0.029,
        0.031,
        (
            on_both_sides(LATE, "straggler, 3 % slower to launch"),
            on_both_sides(LATE, "straggler, 3 % slower to compute"),
            held(
                OF_LATENESS,
                "test_a_host_that_launches_3_percent_of_a_step_longer_is_slow",
                "test_a_host_that_launches_less_than_3_percent_longer_is_not_slow",
            ),
            held(
                OF_LATENESS,
                "test_a_host_is_slow_if_its_rank_computes_less_than_3_percent_longer",
                "test_no_host_is_slow_whose_rank_computes_3_percent_longer",
            ),
        ),
    ),
    "findings.model._MIN_EXPOSED_SHARE_OF_STEP": Limit(
        0.049,
        0.051,
        (
            on_both_sides(ROLES, "tensor_comm, 5 % of step time"),
            on_both_sides(ROLES, "shard_prefetch, 5 % of step time"),
            on_both_sides(ROLES, "expert_comm, 5 % of step time"),
            on_both_sides(ROLES, "flat_all_reduce, 5 % of step time"),
        ),
    ),
    "findings.model._MIN_SHARE_OF_NAMED_ROLE": Limit(
        0.66,
        0.67,
        (
            held(
                "test_limits_model",
                "test_a_role_with_two_thirds_of_communication_is_named",
                "test_a_role_with_less_than_two_thirds_is_not_named",
            ),
        ),
    ),
    "findings.model.MAX_BELIEVED_SLOWDOWN": Limit(
        0.97,
        1.03,
        (
            held(
                OF_COMM,
                "test_a_slowdown_below_the_largest_believed_stays",
                "test_a_slowdown_above_the_largest_believed_counts_as_that",
            ),
            held(
                OF_COMM,
                "test_a_bound_takes_a_slowdown_below_the_largest_believed",
                "test_a_bound_takes_no_slowdown_above_the_largest_believed",
            ),
        ),
    ),
    "findings.parallelism._MIN_BUBBLE_SHARE_OF_STEP": Limit(
        0.0495, 0.0505, (on_both_sides(ROLES, "pipeline_bubble, 5 % of step time"),)
    ),
    "findings.parallelism._MIN_SHARE_OF_SECOND_GATHERING": Limit(
        0.24,
        0.26,
        (
            held(
                "test_limits_parallelism",
                "test_a_quarter_of_all_gathers_in_backward_is_a_second_gathering",
                "test_less_than_a_quarter_of_all_gathers_in_backward_is_none",
            ),
        ),
    ),
    "findings.settings._MIN_EXPOSED_SHARE_OF_STEP": Limit(
        0.049,
        0.051,
        (
            on_both_sides(SETTINGS, "serialized_streams, 5 % is exposed"),
            on_both_sides(SETTINGS, "blocking_launches, exposed"),
        ),
    ),
    "findings.settings._MIN_IDLE_SHARE_OF_STEP": Limit(
        0.019, 0.021, (on_both_sides(SETTINGS, "blocking_launches, idle"),)
    ),
    "findings.slow_link._MIN_TRANSFER_SHARE_OF_STEP": Limit(
        0.0498, 0.0502, (on_both_sides(LINK, "slow_link, 5 % of step time"),)
    ),
    "findings.slow_link._MAX_SHARE_OF_NVLINK_IF_SLOW": Limit(
        0.1497, 0.1502, (on_both_sides(LINK, "slow_link, 15 % of NVLink"),)
    ),
    "findings.slow_link._MAX_RATIO_TO_NOMINAL": Limit(
        1.49, 1.51, (on_both_sides(LINK, "slow_link, as much as that"),)
    ),
    "findings.slow_link._MIN_LARGE_MESSAGE_BYTES": Limit(
        15.9e6,
        16.1e6,
        (held(LINK, "slow_link, 15 % of NVLink", "slow_link, small messages"),),
    ),
    "findings.slow_link._MIN_GRADIENT_SHARE_OF_TRANSFER": Limit(
        0.943, 0.953, (held(LINK, "slow_link, a metric is gathered", "slow_link, much else"),)
    ),
    "findings.slow_link._MIN_BUCKET_BYTES": Limit(
        2**20 - 1,
        2**20 + 1,
        (
            held(
                LINK,
                "slow_link, as much as closed buckets hold",
                "slow_link, less than they hold",
            ),
        ),
    ),
    "findings.longer_phase.MIN_PART_OF_PHASE": Limit(
        0.599,
        0.605,
        (
            held(LATE, "straggler, 60 % in forward", "straggler, more than 60 % in forward"),
            held(
                OF_LATENESS,
                "test_input_with_more_than_60_percent_of_the_excess_is_named",
                "test_input_with_60_percent_of_the_excess_is_not_named",
            ),
        ),
    ),
    "findings.straggler.MIN_PART_OF_HOST": Limit(
        0.59, 0.61, (on_both_sides(LATE, "straggler, 60 % idle for launches"),)
    ),
}

# Limits of other modules that rules decide by.
LIMITS |= {
    "analysis.kernels.ENOUGH_COMPARED": Limit(
        29,
        31,
        (
            held(COMM, "comm_slows_compute, 30 kernels", "comm_slows_compute, 29 kernels"),
            held(
                OF_COMM,
                "test_30_compared_kernels_are_enough_for_one_fix",
                "test_29_compared_kernels_are_too_few_for_that_fix",
            ),
        ),
    ),
    "analysis.kernels.MIN_OVERLAP_SHARE_OF_STEP": Limit(
        0.019, 0.021, (on_both_sides(COMM, "comm_slows_compute, 200 of 1000, 20 hidden"),)
    ),
    "analysis.launching.MIN_SLOWER_SHARE": Limit(
        0.029,
        0.031,
        (
            held(
                DEVICE,
                "launch_bound, a slower host, for which others wait",
                "launch_bound, a host hardly slower",
            ),
        ),
    ),
    "analysis.steps.FEW_STEPS": Limit(
        2,
        4,
        (
            held(
                LATE,
                "straggler, 3 % of three steps",
                "straggler, 10 % of two steps, not quite",
            ),
        ),
    ),
    "analysis.traffic.SMALL_BYTES": Limit(
        65_535,
        65_537,
        (
            held(
                OF_GRADIENTS,
                "test_a_small_message_of_one_backward_pass_is_left_out",
                "test_a_message_that_is_not_small_counts_in_its_backward_pass",
            ),
            held(
                OF_GRADIENTS,
                "test_unknown_all_reduces_of_small_messages_are_no_gradients",
                "test_unknown_all_reduces_of_larger_messages_may_be_gradients",
            ),
        ),
    ),
}

SHOWN = "how many rows or names are shown"
NO_LIMITS = {
    "model.names.LONGEST_CALL": "how many letters are shown",
    "findings.communication._MAX_SHOWN_KERNELS": SHOWN,
    "findings.gradients.BUCKET_MB": "a size that is advised",
    "findings.gradients.LARGE_BUCKET_MB": "a size that is advised",
    "findings.host._MAX_SHOWN_CALLS": SHOWN,
    "findings.host._MAX_SHOWN_RANKS": SHOWN,
    "findings.profiler._MAX_SHOWN_RANKS": SHOWN,
    "findings.late_node._NEVER_NS": "a time that no rank has",
    "findings.model.BOUND_OVER_MEASURED": "a factor of what was measured",
    "findings.host_lines._NS_PER_S": "a unit",
    "findings.host_lines._PLACES_PER_LINE": "counts the line and the code behind it",
    "findings.slow_link._NS_PER_S": "a unit",
    "findings.straggler._MAX_NAMED_RANKS": SHOWN,
}
