"""Reports whose every name tries to leave its place on a page: HTML, script, templates, directions, control characters."""

from pathlib import Path

from tests.build.trace import DEFAULT, RUNTIME, TraceBuilder

# Each would set window.attacked or open a dialog if a page took it for more than text.
HOSTILE = (
    "<script>window.attacked=1;alert(1)</script>",
    "<img src=x onerror=window.attacked=2>",
    "</script><script>window.attacked=3</script>",
    '"><svg onload=window.attacked=4>',
    "' autofocus onfocus='window.attacked=5",
    "{{7*7}}{% raw %}${7*7}",
    "<!--<script>",
    "javascript:window.attacked=6",
    "\u202eesrever\u202c zero\u200bwidth\u2028line\u2029",
    "a\x07b\x1b[31mc\x7f",
    "&lt;b&gt;&amp;&#39;",
)
# Names of kernels lose what looks like template arguments or comes before a space: these stay as
# they are.
HOSTILE_KERNELS = (
    '"onload=window.attacked=7',
    "'onerror=window.attacked=8",
    "{{7*7}}",
    "&lt;script&gt;",
)
LONG = "long_name_" * 1000
_STEP_NS = 1_000_000


def hostile_rank(rank: int, n_steps: int = 3) -> TraceBuilder:
    builder = (
        TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18)
    )
    builder.gpu(name=f"GPU {HOSTILE[1]}").host(f"host {HOSTILE[0]}")
    builder.meta(
        EXPORT_SCHEMA_VERSION=DEFAULT.split(maxsplit=1)[0], EXPORT_PRODUCT_VERSION=HOSTILE[3]
    )
    for step in range(n_steps):
        at = step * _STEP_NS
        builder.range(at, at + 900_000, f"step {step} {HOSTILE[0].replace('1', 'i')}{HOSTILE[8]}")
        builder.range(at + 5, at + 50_000, f"forward {HOSTILE[1]}")
        builder.range(at + 60_000, at + 160_000, f"backward {HOSTILE[2]}")
        names = [*HOSTILE, *HOSTILE_KERNELS, LONG]
        for index, name in enumerate(names):
            start = at + 100_000 + 10_000 * index
            length = (
                9_500 if name in HOSTILE_KERNELS else 9_000
            )  # among the longest, which a page shows
            builder.kernel(start, start + length, name, launch=at + 10_000 + index)
        end = at + 100_000 + 10_000 * len(names)
        name = f"ncclDevKernel_AllReduce_{HOSTILE[1]}"
        builder.nccl(end + 5_000 * rank, end + 50_000, name=name, launch=at + 80_000)
        builder.launch(end + 50_000, api=f"cudaStreamSynchronize{HOSTILE[0]}")
        builder.rows[RUNTIME][-1]["end"] = end + 90_000
        builder.copy(end + 95_000, end + 99_000, launch=at + 90_000)
    return builder


# What NCCL logs of a variable.
SETTING_LOG = "NCCL_SETTING_{} set by environment to {}."


def hostile_log(path: Path) -> Path:
    lines = ["NCCL version 2.21.5+cuda12.4"]
    lines += [SETTING_LOG.format(at, name) for at, name in enumerate(HOSTILE)]
    path.write_text(
        "".join(f"node0:1000:1000 [0] NCCL INFO {line}\n" for line in lines), encoding="utf-8"
    )
    return path


def write_hostile_run(folder: Path) -> list[Path]:
    names = ("<img src=x onerror=alert(7)>", "{{7*7}}<script>attacked=8<")
    return [
        hostile_rank(rank).write(folder / f"{name}_{rank}.sqlite")
        for rank, name in enumerate(names)
    ]
