"""Ask a run of which every time is known, and read the one answer."""

import contextlib
import sqlite3

import pytest

import nsyspipe
from nsyspipe.errors import in_python
from nsyspipe.replay.answer import whatif
from tests.build.ddp_run import MS, US, Ddp

# Each step: forward 10, four times layer 5 and scaling 0.1, all-reduce 80, four copies of 0.1,
# optimizer 4 ms.
SINGLE = Ddp()
WORK = 10 * MS + 4 * (5 * MS + 100 * US) + 4 * 100 * US + 4 * MS
STEP = WORK + 80 * MS
OVERHEAD = 30 * US  # what an all-reduce takes besides its bytes, as the replay has it
# A bucket that is new and begins while the rank works waits for a place on the GPU: kernels by
# their share of the time, half of each, or of a block of 250 us; 34 ms of a step are in kernels
# that are longer, 0.4 ms in kernels of 100 us.
PLACE = (34 * 250 + 0.4 * 100) / (2 * 34.4) * US


def first_of(n, transfer=80 * MS):
    """Return what the first of n equal new buckets takes more than alone: a place, and 2 % beside work."""
    return PLACE + 0.02 * (OVERHEAD + (transfer - OVERHEAD) / n)


def asked(folder, run, **changes):
    return whatif(nsyspipe.load(run.write(folder)), **changes)


def only(found):
    (scenario,) = found.scenarios
    assert scenario.refused is None, scenario.refused
    assert scenario.low_ns <= scenario.step_time_ns <= scenario.high_ns
    assert scenario.throughput_steps_per_s == pytest.approx(1e9 / scenario.step_time_ns)
    assert scenario.gain_pct == pytest.approx(
        100 * (found.step_time_ns - scenario.step_time_ns) / found.step_time_ns
    )
    return scenario


def refusal(found):
    assert all(one.step_time_ns is None and one.gain_pct is None for one in found.scenarios)
    ((reason, in_options),) = {(one.refused, one.refused_in_options) for one in found.scenarios}
    assert reason == in_python(in_options)
    return in_options


_OF_KERNELS = """where correlationId in (select correlationId from CUPTI_ACTIVITY_KIND_KERNEL
    where shortName = (select id from StringIds where value = ?1)"""


def forget_launches(report, name, n):
    with contextlib.closing(sqlite3.connect(report)) as connection, connection:
        words = f"delete from CUPTI_ACTIVITY_KIND_RUNTIME {_OF_KERNELS} order by start limit ?2)"
        assert connection.execute(words, (name, n)).rowcount == n


def launch_first(report, name, *, every):
    """Let the kernels with that name be launched before all others of their step; hosts begin one in so many ns."""
    with contextlib.closing(sqlite3.connect(report)) as connection, connection:
        times = "start = start / ?2 * ?2 + 500, end = start / ?2 * ?2 + 600"
        connection.execute(
            f"update CUPTI_ACTIVITY_KIND_RUNTIME set {times} {_OF_KERNELS})", (name, every)
        )
