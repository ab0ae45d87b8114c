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
from nsyspipe.model.typed_tables import (
    CollectivesTable,
)

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
        ranks = listed(ranges(self.ranks))
        return f"node {printable(self.host)} (ranks {ranks})"


class _Hosts(NamedTuple):
    """The hosts of ranks. A host is its index among the names."""

    names: list[str]
    # In ascending order, and the host of each.
    ranks: Int64
    host_by_rank: Int64

    def find_hosts(self, ranks: Int64) -> Int64:
        """Return the host of each of some ranks."""
        place_of_rank = np.searchsorted(self.ranks, ranks)
        return self.host_by_rank[place_of_rank]

    def count_ranks(self) -> Int64:
        """Return the number of ranks of each host."""
        return np.bincount(self.host_by_rank, minlength=len(self.names))

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Return the ranks of a host, in ascending order."""
        is_on_host = self.host_by_rank == host
        return tuple(self.ranks[is_on_host].tolist())


class _HostDelays(NamedTuple):
    """How late hosts are in steps: a row per step and host."""

    host: Int64
    late_ns: Int64


def find_late_node(
    collectives: CollectivesTable, hosts_of: Mapping[int, str], clock_error_ns: int | None
) -> LateNode | None:
    """Return the host whose delays of all steps together are the largest.

    None if no host is late, if hosts have one rank each, or if clocks were not compared.

    The delay of a host in a collective is the time from the last start of the other hosts to the
    first start of the host. Delays within the error of clocks count as 0. The delay of a rank in a
    step is the largest of the collectives of the rank. The delay of a host in a step is the
    smallest of its ranks.
    """
    hosts = _number_hosts(hosts_of)
    if len(hosts.names) <= 1 or clock_error_ns is None:
        return None
    rows = _own_late_operations(collectives)
    if not rows.num_rows or not _are_hosts_known(rows, hosts_of):
        return None
    delays = _measure_host_delays(rows, hosts, clock_error_ns)
    n_hosts = len(hosts.names)
    total_ns = np.bincount(delays.host, delays.late_ns, n_hosts)
    if not total_ns.any():
        return None
    latest = int(total_ns.argmax())
    is_late = delays.late_ns > 0
    is_latest = is_late & (delays.host == latest)
    late_ns = delays.late_ns[is_latest]
    ranks = hosts.ranks_of(latest)
    return LateNode(hosts.names[latest], ranks, late_ns)


def _own_late_operations(collectives: CollectivesTable) -> pa.Table:
    """Return the operations whose waiting is known, and that no earlier stage has delayed."""
    is_wait_known = pc.is_valid(collectives["wait_ns"])
    rows = own_lateness(collectives.filter(is_wait_known))
    # The other rows are of ranks that another stage of a pipeline kept waiting.
    is_own = pc.equal(rows["inherited_ns"], 0)
    return rows.filter(is_own)


def _measure_host_delays(rows: pa.Table, hosts: _Hosts, clock_error_ns: int) -> _HostDelays:
    """Return how late hosts are in each step. Delays within the error of clocks count as 0."""
    ranks = rows["rank"].to_numpy()
    host = hosts.find_hosts(ranks)
    late_ns = _measure_late_hosts(rows, host, len(hosts.names))
    is_significant = late_ns > clock_error_ns
    significant_ns = np.where(is_significant, late_ns, 0)
    return _delays_by_step(rows, host, significant_ns, hosts.count_ranks())


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
    """Return for each operation how late its host is in the collective, ns.

    `host` is the host of each operation. In a collective, only one host can be late: the one whose
    first rank starts after the first ranks of all other hosts. It is late by the time from the last
    start on the other hosts to its own first start. That is below 0 if another rank starts even
    later. The operations of the other hosts have 0, and so have those of a collective in one host.
    """
    start_ns = rows["start_ns"].to_numpy()
    collective = number_collectives(rows)
    n_collectives = int(collective.max()) + 1
    # A row per collective, and a column per host.
    shape = (n_collectives, n_hosts)
    cell_of_operation = (collective, host)
    first_ns = np.full(shape, _NEVER_NS)
    np.minimum.at(first_ns, cell_of_operation, start_ns)
    last_ns = np.full(shape, -_NEVER_NS)
    np.maximum.at(last_ns, cell_of_operation, start_ns)
    # A host that takes no part never starts, so it must not be the latest.
    takes_part = first_ns < _NEVER_NS
    known_first_ns = np.where(takes_part, first_ns, -_NEVER_NS)
    latest_host = known_first_ns.argmax(axis=1)
    cells_of_latest = (np.arange(n_collectives), latest_host)
    # Without the starts on the latest host, the last start is that of the other hosts.
    last_ns[cells_of_latest] = -_NEVER_NS
    last_of_others_ns = last_ns.max(axis=1)
    late_ns = first_ns[cells_of_latest] - last_of_others_ns
    has_others = last_of_others_ns > -_NEVER_NS
    can_be_late = (host == latest_host[collective]) & has_others[collective]
    return np.where(can_be_late, late_ns[collective], 0)


def number_collectives(rows: pa.Table) -> Int64:
    """Return a number for the collective of each operation.

    The operations of a collective have the same step, communicator and last start.
    """
    key = collective_keys(rows)
    _, number = np.unique(key, axis=1, return_inverse=True)
    collective: Int64 = number.ravel()
    return collective


def collective_keys(rows: CollectivesTable) -> Int64:
    """Return what tells the collectives of operations apart, a column per operation.

    The three rows are the step, the number of the communicator, and the last start of a rank.
    """
    comm_ids = rows["comm_id"].cast(pa.string())
    known_comm_ids = pc.fill_null(comm_ids, "")
    encoded_ids = known_comm_ids.combine_chunks().dictionary_encode()
    comm_number = encoded_ids.indices.to_numpy()
    start_ns = rows["start_ns"].to_numpy()
    # A rank waits until the last rank starts.
    last_start_ns = start_ns + rows["wait_ns"].to_numpy()
    step = rows["step"].to_numpy()
    return np.stack((step, comm_number, last_start_ns))


def _delays_by_step(
    rows: pa.Table, host: Int64, late_ns: Int64, n_ranks_of_host: Int64
) -> _HostDelays:
    """Return how late hosts are in each step.

    A rank is as late as in its latest operation of the step. A host is as late as the rank of it
    that is least late. A host has 0 if it has one rank, or if one of its ranks has no operation in
    the step. `host` and `late_ns` have a value per operation.
    """
    operations = rows.select(["step", "rank"])
    operations = operations.append_column("host", pa.array(host))
    operations = operations.append_column("late_ns", pa.array(late_ns))
    by_rank = operations.group_by(["step", "host", "rank"], use_threads=False)
    delays_of_ranks = by_rank.aggregate([("late_ns", "max")])
    by_host = delays_of_ranks.group_by(["step", "host"], use_threads=False)
    delays_of_hosts = by_host.aggregate([("late_ns_max", "min"), ("rank", "count")])
    host_of_row = delays_of_hosts["host"].to_numpy()
    n_ranks = n_ranks_of_host[host_of_row]
    has_all_ranks = delays_of_hosts["rank_count"].to_numpy() == n_ranks
    can_be_late = has_all_ranks & (n_ranks > 1)
    least_ns = delays_of_hosts["late_ns_max_min"].to_numpy()
    late_host_ns = np.where(can_be_late, least_ns, 0)
    return _HostDelays(host_of_row, late_host_ns)
