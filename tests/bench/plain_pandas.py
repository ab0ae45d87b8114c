"""The obvious way to the same totals: SQLAlchemy, pandas.read_sql, merge. Prints them per report as JSON."""

import json
import sys

import pandas as pd
import sqlalchemy as sa

# Columns that are read, by table.
COLUMNS_INPUT = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, correlationId, globalPid, demangledName, shortName",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start AS launch, correlationId, globalTid",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, correlationId, copyKind, bytes",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid, domainId",
    "StringIds": "id, value",
}


def totals(path: str) -> dict[str, int]:
    engine = sa.create_engine(f"sqlite:///{path}")
    kernels, launches, copies, ranges, strings = (
        pd.read_sql(sa.text(f"SELECT {columns} FROM {table}"), engine)
        for table, columns in COLUMNS_INPUT.items()
    )
    kernels = kernels.merge(launches, on="correlationId").merge(
        strings, left_on="demangledName", right_on="id"
    )
    copies = copies.merge(launches, on="correlationId")
    kernels["is_comm"] = kernels["value"].str.startswith("nccl")
    ranges = ranges.merge(strings, how="left", left_on="textId", right_on="id")
    ranges["text"] = ranges["text"].fillna(ranges["value"])
    steps = (
        ranges[ranges["text"].str.match(r"step \d+")].sort_values("start").reset_index(drop=True)
    )
    steps["step"] = steps.index
    kernels = inside(kernels, steps, "step")
    first = int(kernels.dropna(subset="step").groupby("step")["start"].min().iloc[0])
    opened, closed = steps["start"].iloc[-1], steps["end"].iloc[-1]
    launched = [
        one[(one["launch"] >= opened) & (one["launch"] < closed)] for one in (kernels, copies)
    ]
    last = max(int(one["end"].max()) for one in launched)
    phases = ranges[ranges["text"] == "backward"].sort_values("start").reset_index(drop=True)
    phases["phase"] = phases.index
    kernels = inside(kernels, phases, "phase")
    compute, comm = kernels[~kernels["is_comm"]], kernels[kernels["is_comm"]]
    backward, dtod = compute[compute["phase"].notna()], copies[copies["copyKind"] == 8]
    total = {
        name: covered(pd.concat(parts), first, last)
        for name, parts in {
            "compute": [compute],
            "comm": [comm],
            "busy": [kernels],
            "all": [kernels, copies],
            "dtod": [dtod],
            "busy or dtod": [kernels, dtod],
            "backward": [backward],
            "comm or backward": [comm, backward],
        }.items()
    }
    counted = dtod[(dtod["start"] >= first) & (dtod["start"] < last)]
    return {
        "wall_ns": last - first,
        "compute_ns": total["compute"],
        "comm_ns": total["comm"],
        "exposed_comm_ns": total["busy"] - total["compute"],
        "exposed_memory_ns": total["all"] - total["busy"],
        "idle_ns": last - first - total["all"],
        "dtod_ns": total["dtod"],
        "dtod_bytes": int(counted["bytes"].sum()),
        "n_dtod": len(counted),
        "exposed_dtod_ns": total["busy or dtod"] - total["busy"],
        "overlap_compute_ns": total["comm"] + total["compute"] - total["busy"],
        "overlap_backward_ns": total["comm"] + total["backward"] - total["comm or backward"],
        "n_collectives": int(((comm["start"] >= first) & (comm["start"] < last)).sum()),
    }


def inside(kernels: pd.DataFrame, ranges: pd.DataFrame, column: str) -> pd.DataFrame:
    opened = ranges[["start", "end", column]].rename(columns={"start": "opened", "end": "closed"})
    found = pd.merge_asof(
        kernels.sort_values("launch"), opened, left_on="launch", right_on="opened"
    )
    found[column] = found[column].where(found["launch"] < found["closed"])
    return found.drop(columns=["opened", "closed"])


def covered(rows: pd.DataFrame, low: int, high: int) -> int:
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
