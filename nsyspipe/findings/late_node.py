"""The host all of whose ranks come late to collectives alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.traffic import own_lateness
from nsyspipe.model.names import listed, printable, ranges
from nsyspipe.model.table import Int64

# The time of a rank that takes no part: later than all others, or negative before all others.
_NEVER_NS = 2**62


class LateNode(Struct, frozen=True):
    """The host that is the latest in most steps."""

    host: str
    ranks: tuple[int, ...]
    # For each step in which it is the latest: how long after the last rank of all other hosts its
    # first rank comes.
    late_ns: Int64

    @property
    def text(self) -> str:
        """The host and its ranks, in words."""
        return f"node {printable(self.host)} (ranks {listed(ranges(self.ranks))})"


class _Hosts(NamedTuple):
    """The hosts of ranks. A host is its index among the names."""

    names: list[str]
    # In ascending order, and the host of each.
    ranks: Int64
    host_by_rank: Int64

    def find_hosts(self, ranks: Int64) -> Int64:
        """Return the host of each of some ranks."""
        return self.host_by_rank[np.searchsorted(self.ranks, ranks)]

    def count_ranks(self) -> Int64:
        """Return the number of ranks of each host."""
        return np.bincount(self.host_by_rank, minlength=len(self.names))

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Return the ranks of a host, in ascending order."""
        return tuple(self.ranks[self.host_by_rank == host].tolist())


class _HostDelays(NamedTuple):
    """How late hosts are in steps: a row per step and host."""

    host: Int64
    late_ns: Int64


def find_late_node(
    collectives: pa.Table, hosts_of: Mapping[int, str], clock_error_ns: int | None
) -> LateNode | None:
    """Return the host that is late by the most in all steps together.

    None if no host is late, if hosts have one rank each, or if clocks were not compared.

    In a collective, a host is late by the time from the last rank of the other hosts to its own
    first rank, if that exceeds the error of clocks. In a step, a rank is late by the most of its
    collectives, and a host by the least of its ranks.
    """
    hosts = _number_hosts(hosts_of)
    if len(hosts.names) <= 1 or clock_error_ns is None:
        return None
    rows = own_lateness(collectives.filter(pc.is_valid(collectives["wait_ns"])))
    # The other rows are of ranks that another stage of a pipeline kept waiting.
    rows = rows.filter(pc.equal(rows["inherited_ns"], 0))
    if not rows.num_rows or not _are_hosts_known(rows, hosts_of):
        return None
    host = hosts.find_hosts(rows["rank"].to_numpy())
    late_ns = _measure_late_hosts(rows, host, len(hosts.names))
    late_ns = np.where(late_ns > clock_error_ns, late_ns, 0)
    delays = _delays_by_step(rows, host, late_ns, hosts.count_ranks())
    total_ns = np.bincount(delays.host, delays.late_ns, len(hosts.names))
    if not total_ns.any():
        return None
    latest = int(total_ns.argmax())
    is_latest = (delays.host == latest) & (delays.late_ns > 0)
    late_ns = delays.late_ns[is_latest]
    return LateNode(hosts.names[latest], hosts.ranks_of(latest), late_ns)


def _are_hosts_known(rows: pa.Table, hosts_of: Mapping[int, str]) -> bool:
    ranks = rows["rank"].unique().to_pylist()
    return all(rank in hosts_of for rank in ranks)


def _number_hosts(hosts_of: Mapping[int, str]) -> _Hosts:
    names = sorted(set(hosts_of.values()))
    ranks = sorted(hosts_of)
    numbers = {name: number for number, name in enumerate(names)}
    host_by_rank = [numbers[hosts_of[rank]] for rank in ranks]
    return _Hosts(names, np.array(ranks), np.array(host_by_rank))


def _measure_late_hosts(rows: pa.Table, host: Int64, n_hosts: int) -> Int64:
    """Return for each operation how late its host is in the collective.

    0 unless its first rank comes after the ranks of all other hosts.
    """
    start_ns = rows["start_ns"].to_numpy()
    collective = number_collectives(rows)
    shape = (int(collective.max()) + 1, n_hosts)
    first_ns = np.full(shape, _NEVER_NS)
    np.minimum.at(first_ns, (collective, host), start_ns)
    last_ns = np.full(shape, -_NEVER_NS)
    np.maximum.at(last_ns, (collective, host), start_ns)
    takes_part = first_ns < _NEVER_NS
    latest = np.where(takes_part, first_ns, -_NEVER_NS).argmax(axis=1)
    each = np.arange(shape[0])
    last_ns[each, latest] = -_NEVER_NS
    last_of_others_ns = last_ns.max(axis=1)
    late_ns = first_ns[each, latest] - last_of_others_ns
    late_ns = np.where(last_of_others_ns == -_NEVER_NS, 0, late_ns)
    return np.where(host == latest[collective], late_ns[collective], 0)


def number_collectives(rows: pa.Table) -> Int64:
    """Return a number for the collective of each operation.

    The operations of a collective have the same step, communicator and last start.
    """
    key = collective_keys(rows)
    collective: Int64 = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    return collective


def collective_keys(rows: pa.Table) -> Int64:
    """Return step, communicator and last start of the collective of each operation, as rows."""
    comm_ids = pc.fill_null(rows["comm_id"].cast(pa.string()), "")
    comm = comm_ids.combine_chunks().dictionary_encode().indices.to_numpy()
    last_start_ns = rows["start_ns"].to_numpy() + rows["wait_ns"].to_numpy()
    return np.stack((rows["step"].to_numpy(), comm, last_start_ns))


def _delays_by_step(
    rows: pa.Table, host: Int64, late_ns: Int64, n_ranks_of_host: Int64
) -> _HostDelays:
    """Return how late hosts are in each step; 0 if they have one rank, or not all are late."""
    table = rows.select(["step", "rank"]).append_column("host", pa.array(host))
    table = table.append_column("late_ns", pa.array(late_ns))
    by_rank = table.group_by(["step", "host", "rank"], use_threads=False)
    late_ranks = by_rank.aggregate([("late_ns", "max")])
    by_host = late_ranks.group_by(["step", "host"], use_threads=False)
    late_hosts = by_host.aggregate([("late_ns_max", "min"), ("rank", "count")])
    host_of_row = late_hosts["host"].to_numpy()
    n_ranks = n_ranks_of_host[host_of_row]
    has_all_ranks = late_hosts["rank_count"].to_numpy() == n_ranks
    is_late = has_all_ranks & (n_ranks > 1)
    least_ns = late_hosts["late_ns_max_min"].to_numpy()
    return _HostDelays(host_of_row, np.where(is_late, least_ns, 0))
