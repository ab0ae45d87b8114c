"""The obvious way to the same totals: SQLAlchemy, pandas.read_sql, merge. Prints them per report as JSON."""

from __future__ import annotations

import json
import sys

import pandas as pd
import sqlalchemy as sa


def totals(path: str) -> dict[str, int]:
    engine = sa.create_engine(f"sqlite:///{path}")
    kernels = pd.read_sql(
        sa.text(
            "SELECT start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ),
        engine,
    )
    launches = pd.read_sql(
        sa.text(
            "SELECT start AS launch, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        ),
        engine,
    )
    copies = pd.read_sql(
        sa.text(
            "SELECT start, end, correlationId, copyKind, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        ),
        engine,
    )
    ranges = pd.read_sql(
        sa.text("SELECT start, end, eventType, text, textId, globalTid, domainId FROM NVTX_EVENTS"),
        engine,
    )
    strings = pd.read_sql(sa.text("SELECT id, value FROM StringIds"), engine)

    kernels = kernels.merge(launches, on="correlationId").merge(
        strings, left_on="demangledName", right_on="id"
    )
    copies = copies.merge(launches, on="correlationId")
    kernels["is_comm"] = kernels["value"].str.startswith("nccl")
    steps = (
        ranges[ranges["text"].fillna("").str.match(r"step \d+")]
        .sort_values("start")
        .reset_index(drop=True)
    )
    steps["step"] = steps.index
    found = pd.merge_asof(kernels.sort_values("launch"), steps[["start", "step"]].rename(columns={"start": "opened"}),
                          left_on="launch", right_on="opened")  # fmt: skip
    first = int(found.dropna(subset="step").groupby("step")["start"].min().iloc[0])
    opened, closed = steps["start"].iloc[-1], steps["end"].iloc[-1]
    last = max(
        int(one.loc[(one["launch"] >= opened) & (one["launch"] < closed), "end"].max())
        for one in (found, copies)
    )
    compute = covered(found[~found["is_comm"]], first, last)
    comm = covered(found[found["is_comm"]], first, last)
    busy = covered(found, first, last)
    return {
        "wall_ns": last - first,
        "compute_ns": compute,
        "comm_ns": comm,
        "exposed_comm_ns": busy - compute,
    }


def covered(rows: pd.DataFrame, low: int, high: int) -> int:
    """Return the union length inside a window."""
    rows = rows.sort_values("start")
    start, end = rows["start"].clip(low, high), rows["end"].clip(low, high)
    group = (start > end.cummax().shift(fill_value=low)).cumsum()
    merged = (
        pd.DataFrame({"start": start, "end": end})
        .groupby(group)
        .agg({"start": "min", "end": "max"})
    )
    return int((merged["end"] - merged["start"]).sum())


if __name__ == "__main__":
    print(json.dumps([totals(path) for path in sys.argv[1:]]))
