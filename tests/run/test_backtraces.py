"""Captures that backtraces slow down say so, as far as the report records them."""

import pytest

import nsyspipe
from nsyspipe.redact.redact import redact
from tests.build.tools import codes, run_of
from tests.build.trace import TraceBuilder, steady_rank

CHAINS = {"id": "INTEGER", "symbol": "INTEGER", "stackDepth": "INTEGER"}
SAMPLES = "PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES"
CODES = {"cuda-backtraces", "python-backtraces"}


def with_chains(*rows) -> TraceBuilder:
    builder = steady_rank(0, world_size=1)
    builder.schema = builder.schema | {"CUDA_CALLCHAINS": CHAINS}
    for number, symbol in enumerate(rows):
        builder.add("CUDA_CALLCHAINS", id=number, symbol=symbol, stackDepth=0)
    return builder


def with_setting(name, value) -> TraceBuilder:
    builder = steady_rank(0, world_size=1)
    return builder.add("META_DATA_CAPTURE", name=name, value=value)


@pytest.mark.parametrize(
    ("builder", "code"),
    [
        (with_chains(1, 2), {"cuda-backtraces"}),
        (with_chains(), set()),
        (with_setting(SAMPLES, "true"), {"python-backtraces"}),
        (with_setting(SAMPLES, "false"), set()),
        (with_setting("OS_RUNTIME_OPTIONS:COLLECT_BACKTRACES", "true"), set()),  # of system calls
        (steady_rank(0, world_size=1), set()),
    ],
)
def test_backtraces_that_were_recorded_are_told(tmp_path, builder, code):
    assert CODES & set(codes(run_of(tmp_path, builder))) == code


def test_a_redacted_copy_tells_of_pythons_backtraces_too(tmp_path):
    path = with_setting(SAMPLES, "true").write(tmp_path / "a_0.sqlite")
    redact(str(path), tmp_path / "out")
    assert CODES & set(codes(nsyspipe.load(tmp_path / "out", jobs=1))) == {"python-backtraces"}
