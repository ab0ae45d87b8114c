"""CPU time and peak memory of a new command against an old one, in interleaved runs on the same reports.

    python tests/bench/old_and_new.py 'OLD/bin/nsyspipe analyze -j 1' 'NEW/bin/nsyspipe analyze -j
    1' REPORT...

The commands run in turns (old, new, old, new, ...), so what else the machine does falls on both.
Printed are the median of the ratios new / old of the pairs, with a bootstrap 95 % interval, and the
median of each command. Without a report the commands run as they are, as for `nsyspipe --help`.
Modules are compiled before, as in an installed program.
"""

import argparse
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_PAIRS = 15
N_RESAMPLES = 10_000
SEED = 7


@dataclass(frozen=True)
class Cost:
    """What one run of a command took."""

    cpu_s: float  # user and system time, with that of its workers
    peak_mib: float  # of its largest process


def main() -> None:
    """Run both commands in turns, and print what they cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="the old command, as one argument")
    parser.add_argument("new", help="the new command, as one argument")
    parser.add_argument("reports", nargs="*", metavar="REPORT", help="what both are asked about")
    parser.add_argument("--pairs", type=int, default=N_PAIRS, help="pairs of runs (%(default)s)")
    options = parser.parse_args()
    commands = [[*shlex.split(one), *options.reports] for one in (options.old, options.new)]
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for command in commands:  # the first run compiles modules and brings files into memory
            cost_of(command, environment)
        pairs = [
            [cost_of(command, environment) for command in commands] for _ in range(options.pairs)
        ]
    cpu_s = np.array([[cost.cpu_s for cost in pair] for pair in pairs])
    peak_mib = np.array([[cost.peak_mib for cost in pair] for pair in pairs])
    print(f"CPU time: {ratio_in_words(cpu_s)}, {medians_in_words(cpu_s, 's', 3)}")
    print(f"peak memory: {ratio_in_words(peak_mib)}, {medians_in_words(peak_mib, 'MiB', 1)}")


def cost_of(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a command to its end; return what it and the workers that it waited for took."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    errors = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code:
        raise SystemExit(f"{shlex.join(command)}: exit code {exit_code}\n{errors.decode()}")
    return Cost(cpu_s=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024)


def ratio_in_words(pairs: NDArray[np.float64]) -> str:
    """Return the median of the ratios new / old of pairs (old, new), with its bootstrap interval."""
    ratios = pairs[:, 1] / pairs[:, 0]
    picks = np.random.default_rng(SEED).integers(0, ratios.size, (N_RESAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[picks], axis=1), (2.5, 97.5))
    median = np.median(ratios)
    return f"new / old {median:.3f} (95 %: {low:.3f} to {high:.3f}; {ratios.size} pairs)"


def medians_in_words(pairs: NDArray[np.float64], unit: str, digits: int) -> str:
    """Return the median of the old and of the new command."""
    old, new = np.median(pairs, axis=0)
    return f"old {old:.{digits}f} {unit}, new {new:.{digits}f} {unit}"


if __name__ == "__main__":
    main()
