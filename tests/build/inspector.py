"""Lines of NCCL Inspector, as NCCL's repository documents its JSON. No file of a real run was at hand."""

import json

COMM = "0x7"


def line(rank=0, *, comm=COMM, pid=None, host="node0", n_ranks=2, version="v4.2", **part):
    """Return one line of the process of a rank; `part` is ``coll_perf``, ``p2p_perf`` or ``dump_stats``."""
    record = {
        "header": {
            "id": comm,
            "comm_name": "unknown",
            "rank": rank,
            "n_ranks": n_ranks,
            "nnodes": 1,
        },
        "metadata": {
            "inspector_output_format_version": version,
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1748030377748202,
            "hostname": host,
            "pid": 1000 + rank if pid is None else pid,
        },
        **part,
    }
    return json.dumps(record) + "\n"


def call(number, n_bytes, tuning="RING SIMPLE", *, kind="AllReduce", rank=0, **more):
    """Return the line of one collective; `tuning` is algorithm and protocol, or nothing (before v4.2)."""
    collective = {"coll": kind}
    if tuning:
        collective["coll_algo"], collective["coll_proto"] = tuning.split()
    collective |= {"coll_sn": number, "coll_msg_size_bytes": n_bytes, "coll_exec_time_us": 5}
    collective |= {"coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.5}
    return line(rank, coll_perf=collective, **more)


def sent(peer, n_bytes, *, kind="Send", rank=0, **more):
    """Return the line of one send or receive."""
    part = {"p2p": kind, "p2p_sn": 1, "p2p_peer": peer, "p2p_msg_size_bytes": n_bytes}
    return line(rank, p2p_perf=part, **more)


def lost(n_calls, *, n_sends=0, rank=0, **more):
    """Return the line that counts lost records: of collectives, and of sends and receives."""
    stats = {"coll_records": 5, "coll_dropped_total": n_calls, "p2p_records": 0}
    return line(rank, dump_stats=stats | {"p2p_dropped_total": n_sends}, **more)


def write(folder, rank, *lines, host="node0", pid=None):
    """Write the file of a rank as the plugin names it."""
    folder.mkdir(exist_ok=True)
    number = 1000 + rank if pid is None else pid
    path = folder / f"{host}-pid{number}.log"
    path.write_text("".join(lines))
    return path
