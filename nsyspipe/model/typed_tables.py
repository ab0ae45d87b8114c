"""Tables with typed columns: a misspelt column fails the type checker.

`python -m tests.write_table_types` writes this file from `schema` and `canonical`. The types are
there for the type checker alone: at run time each table is a `pyarrow.Table`, and each row a
dictionary. Values of columns that may be null have the type ``Any``.
"""

# ruff: noqa: D101, D102 - the methods are those of pyarrow, and the columns those of `schema`
from collections.abc import Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
)

import pyarrow as pa

if TYPE_CHECKING:
    ColumnT = TypeVar("ColumnT", bound=str)
    RowT = TypeVar("RowT")

    class TypedTable(Generic[ColumnT, RowT]):
        """What this package uses of `pyarrow.Table`, for a table with known columns.

        Only `column` takes a name that is computed.
        """

        num_rows: int
        column_names: list[str]
        schema: pa.Schema
        columns: list[pa.ChunkedArray]
        nbytes: int

        def __len__(self) -> int: ...
        def __getitem__(self, column: ColumnT) -> pa.ChunkedArray: ...
        def column(self, name: str | int) -> pa.ChunkedArray: ...
        def select(self, names: Sequence[ColumnT]) -> Self: ...
        def drop_columns(self, names: ColumnT | Sequence[ColumnT]) -> Self: ...
        def filter(self, mask: object) -> Self: ...
        def take(self, rows: object) -> Self: ...
        def slice(self, offset: SupportsIndex = 0, length: SupportsIndex | None = None) -> Self: ...
        def sort_by(self, order: ColumnT | Sequence[tuple[ColumnT, str]]) -> Self: ...
        def group_by(
            self, keys: ColumnT | Sequence[ColumnT], *, use_threads: bool = True
        ) -> pa.TableGroupBy: ...
        def append_column(self, name: str | pa.Field, values: object) -> pa.Table: ...
        def add_column(self, place: int, name: str | pa.Field, values: object) -> pa.Table: ...
        def set_column(self, place: int, name: str | pa.Field, values: object) -> Self: ...
        def rename_columns(self, names: object) -> pa.Table: ...
        def combine_chunks(self) -> Self: ...
        def drop_null(self) -> Self: ...
        def field(self, column: str | int) -> pa.Field: ...
        def join(self, right: object, keys: object, join_type: str = ...) -> pa.Table: ...
        def unify_dictionaries(self) -> Self: ...
        def cast(self, schema: pa.Schema) -> Self: ...
        def equals(self, other: object) -> bool: ...
        def to_pylist(self) -> list[RowT]: ...
        def to_batches(self, max_chunksize: int | None = None) -> list[pa.RecordBatch]: ...

    Steps0Column: TypeAlias = Literal[
        "rank",
        "step",
        "start_ns",
        "end_ns",
        "wall_ns",
        "compute_ns",
        "comm_ns",
        "exposed_comm_ns",
        "exposed_memory_ns",
        "idle_ns",
        "dtod_ns",
        "dtod_bytes",
        "n_dtod",
        "exposed_dtod_ns",
        "overlap_compute_ns",
        "comm_on_compute_stream_ns",
        "overlap_backward_ns",
        "n_collectives",
        "wait_ns",
        "exposed_wait_ns",
        "transfer_ns",
        "message_bytes",
        "idle_input_ns",
        "idle_launch_ns",
        "idle_blocked_ns",
        "idle_dependency_ns",
        "idle_unknown_ns",
        "idle_between_steps_ns",
        "idle_pause_ns",
        "idle_blocked_by_copies_ns",
        "idle_made_by_input_ns",
        "idle_made_by_calls_ns",
        "idle_made_by_copies_ns",
        "n_blocking_copies",
        "n_pageable_copies",
        "blocking_copy_bytes",
        "exposed_blocking_copy_ns",
        "n_allocs",
        "n_frees",
        "n_failed_allocs",
    ]
    Steps1Column: TypeAlias = Literal[
        "alloc_bytes",
        "freed_bytes",
        "alloc_host_ns",
        "exposed_alloc_ns",
        "idle_blocked_by_allocs_ns",
        "idle_made_by_allocs_ns",
        "host_launch_ns",
        "host_input_ns",
        "host_lead_ns",
        "idle_late_start_ns",
        "exposed_late_comm_ns",
        "grad_copy_ns",
        "exposed_grad_copy_ns",
        "grad_copy_span_ns",
        "grad_copy_bytes",
        "n_grad_copies",
        "comm_delay_ns",
        "overhead_ns",
        "is_complete",
        "tokens",
        "samples",
        "flops",
        "ideal_compute_ns",
        "slow_compute_ns",
        "mfu",
        "in_summary",
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "idle_share",
        "compute_share",
        "exposed_memory_share",
        "wait_share",
        "transfer_share",
    ]
    StepsColumn: TypeAlias = Literal[Steps0Column, Steps1Column]

    class StepsRow(TypedDict):
        rank: int
        step: int
        start_ns: int
        end_ns: int
        wall_ns: int
        compute_ns: Any
        comm_ns: Any
        exposed_comm_ns: Any
        exposed_memory_ns: Any
        idle_ns: Any
        dtod_ns: Any
        dtod_bytes: Any
        n_dtod: Any
        exposed_dtod_ns: Any
        overlap_compute_ns: Any
        comm_on_compute_stream_ns: Any
        overlap_backward_ns: Any
        n_collectives: Any
        wait_ns: Any
        exposed_wait_ns: Any
        transfer_ns: Any
        message_bytes: Any
        idle_input_ns: Any
        idle_launch_ns: Any
        idle_blocked_ns: Any
        idle_dependency_ns: Any
        idle_unknown_ns: Any
        idle_between_steps_ns: Any
        idle_pause_ns: Any
        idle_blocked_by_copies_ns: Any
        idle_made_by_input_ns: Any
        idle_made_by_calls_ns: Any
        idle_made_by_copies_ns: Any
        n_blocking_copies: Any
        n_pageable_copies: Any
        blocking_copy_bytes: Any
        exposed_blocking_copy_ns: Any
        n_allocs: Any
        n_frees: Any
        n_failed_allocs: Any
        alloc_bytes: Any
        freed_bytes: Any
        alloc_host_ns: Any
        exposed_alloc_ns: Any
        idle_blocked_by_allocs_ns: Any
        idle_made_by_allocs_ns: Any
        host_launch_ns: Any
        host_input_ns: Any
        host_lead_ns: Any
        idle_late_start_ns: Any
        exposed_late_comm_ns: Any
        grad_copy_ns: Any
        exposed_grad_copy_ns: Any
        grad_copy_span_ns: Any
        grad_copy_bytes: Any
        n_grad_copies: Any
        comm_delay_ns: Any
        overhead_ns: Any
        is_complete: bool
        tokens: Any
        samples: Any
        flops: Any
        ideal_compute_ns: Any
        slow_compute_ns: Any
        mfu: Any
        in_summary: bool
        comm_share: Any
        exposed_comm_share: Any
        overlap_ratio: Any
        backward_overlap_ratio: Any
        idle_share: Any
        compute_share: Any
        exposed_memory_share: Any
        wait_share: Any
        transfer_share: Any

    StepsTable: TypeAlias = TypedTable[StepsColumn, StepsRow]

    PhasesColumn: TypeAlias = Literal[
        "rank",
        "step",
        "phase",
        "host_ns",
        "n_kernels",
        "compute_ns",
        "comm_ns",
        "exposed_comm_ns",
        "device_ns",
        "n_blocking_copies",
        "idle_ns",
    ]

    class PhasesRow(TypedDict):
        rank: int
        step: int
        phase: str
        host_ns: int
        n_kernels: Any
        compute_ns: Any
        comm_ns: Any
        exposed_comm_ns: Any
        device_ns: Any
        n_blocking_copies: Any
        idle_ns: Any

    PhasesTable: TypeAlias = TypedTable[PhasesColumn, PhasesRow]

    IdleCallsColumn: TypeAlias = Literal[
        "call",
        "blocked_ns_per_step",
        "of_copies_ns_per_step",
    ]

    class IdleCallsRow(TypedDict):
        call: str
        blocked_ns_per_step: float
        of_copies_ns_per_step: Any

    IdleCallsTable: TypeAlias = TypedTable[IdleCallsColumn, IdleCallsRow]

    HostLinesColumn: TypeAlias = Literal[
        "rank",
        "frame",
        "file",
        "line",
        "last_line",
        "mean_depth",
        "function",
        "after_file",
        "after_line",
        "after_function",
        "after_path",
        "path",
        "n_samples",
        "n_idle_samples",
        "n_idle_steps",
        "n_input_samples",
        "n_input_steps",
        "n_launch_samples",
        "n_launch_steps",
        "n_blocked_samples",
        "n_blocked_steps",
    ]

    class HostLinesRow(TypedDict):
        rank: int
        frame: str
        file: str
        line: int
        last_line: Any
        mean_depth: Any
        function: str
        after_file: Any
        after_line: Any
        after_function: Any
        after_path: Any
        path: Any
        n_samples: int
        n_idle_samples: Any
        n_idle_steps: Any
        n_input_samples: Any
        n_input_steps: Any
        n_launch_samples: Any
        n_launch_steps: Any
        n_blocked_samples: Any
        n_blocked_steps: Any

    HostLinesTable: TypeAlias = TypedTable[HostLinesColumn, HostLinesRow]

    CollectivesColumn: TypeAlias = Literal[
        "step",
        "seq",
        "rank",
        "collective",
        "datatype",
        "algorithm",
        "comm_id",
        "start_ns",
        "end_ns",
        "exposed_ns",
        "is_matched",
        "in_summary",
        "n_ranks",
        "arrival_skew_ns",
        "wait_ns",
        "transfer_ns",
        "late_by_ns",
        "held_up_ns",
        "is_significant",
        "is_late_significant",
        "message_bytes",
        "bus_bytes",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
        "counted_bytes_per_s",
        "counted_link",
        "counted_ratio",
        "nccl_algorithm",
        "nccl_protocol",
    ]

    class CollectivesRow(TypedDict):
        step: int
        seq: int
        rank: int
        collective: str
        datatype: Any
        algorithm: Any
        comm_id: str
        start_ns: int
        end_ns: int
        exposed_ns: Any
        is_matched: bool
        in_summary: bool
        n_ranks: Any
        arrival_skew_ns: Any
        wait_ns: Any
        transfer_ns: Any
        late_by_ns: Any
        held_up_ns: Any
        is_significant: Any
        is_late_significant: Any
        message_bytes: Any
        bus_bytes: Any
        algbw_bytes_per_s: Any
        busbw_bytes_per_s: Any
        counted_bytes_per_s: Any
        counted_link: Any
        counted_ratio: Any
        nccl_algorithm: Any
        nccl_protocol: Any

    CollectivesTable: TypeAlias = TypedTable[CollectivesColumn, CollectivesRow]

    StragglersColumn: TypeAlias = Literal[
        "rank",
        "n_arrived_last",
        "wait_caused_ns",
        "lateness_ns",
        "held_up_ns",
        "wait_ns",
    ]

    class StragglersRow(TypedDict):
        rank: int
        n_arrived_last: Any
        wait_caused_ns: Any
        lateness_ns: Any
        held_up_ns: Any
        wait_ns: Any

    StragglersTable: TypeAlias = TypedTable[StragglersColumn, StragglersRow]

    TrafficColumn: TypeAlias = Literal[
        "rank",
        "communicator",
        "collective",
        "role",
        "n_ranks",
        "ranks",
        "calls_per_step",
        "bytes_per_step",
        "comm_ns_per_step",
        "exposed_ns_per_step",
        "exposed_part_ns_per_step",
        "hidden_ns_per_step",
        "wait_ns_per_step",
        "bubble_ns_per_step",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ]

    class TrafficRow(TypedDict):
        rank: Any
        communicator: str
        collective: str
        role: str
        n_ranks: Any
        ranks: str
        calls_per_step: Any
        bytes_per_step: Any
        comm_ns_per_step: Any
        exposed_ns_per_step: Any
        exposed_part_ns_per_step: Any
        hidden_ns_per_step: Any
        wait_ns_per_step: Any
        bubble_ns_per_step: Any
        algbw_bytes_per_s: Any
        busbw_bytes_per_s: Any

    TrafficTable: TypeAlias = TypedTable[TrafficColumn, TrafficRow]

    KernelsColumn: TypeAlias = Literal[
        "rank",
        "phase",
        "name",
        "n_kernels",
        "total_ns",
        "mean_ns",
        "min_ns",
        "max_ns",
        "overlapped_ns",
        "not_overlapped_ns",
        "n_slowed",
        "slowed_ns",
        "free_ns",
        "slowdown_ratio",
        "n_in_summary",
        "in_summary_ns",
        "overlapped_in_summary_ns",
    ]

    class KernelsRow(TypedDict):
        rank: int
        phase: Any
        name: str
        n_kernels: int
        total_ns: int
        mean_ns: int
        min_ns: int
        max_ns: int
        overlapped_ns: int
        not_overlapped_ns: int
        n_slowed: int
        slowed_ns: int
        free_ns: int
        slowdown_ratio: Any
        n_in_summary: Any
        in_summary_ns: Any
        overlapped_in_summary_ns: Any

    KernelsTable: TypeAlias = TypedTable[KernelsColumn, KernelsRow]

    CostsColumn: TypeAlias = Literal[
        "table",
        "name",
        "phase",
        "message_bytes",
        "communicator",
        "role",
        "ranks",
        "n_calls",
        "total_ns",
        "step_share",
        "calls_per_step",
        "time_ns_per_step",
        "beside_comm_ratio",
        "slowdown_ratio",
        "n_slowed",
        "bytes_per_step",
        "exposed_ns_per_step",
        "hidden_ns_per_step",
        "wait_ns_per_step",
        "bubble_ns_per_step",
        "transfer_ns_per_step",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ]

    class CostsRow(TypedDict):
        table: str
        name: str
        phase: Any
        message_bytes: Any
        communicator: Any
        role: Any
        ranks: Any
        n_calls: Any
        total_ns: Any
        step_share: Any
        calls_per_step: Any
        time_ns_per_step: Any
        beside_comm_ratio: Any
        slowdown_ratio: Any
        n_slowed: Any
        bytes_per_step: Any
        exposed_ns_per_step: Any
        hidden_ns_per_step: Any
        wait_ns_per_step: Any
        bubble_ns_per_step: Any
        transfer_ns_per_step: Any
        algbw_bytes_per_s: Any
        busbw_bytes_per_s: Any

    CostsTable: TypeAlias = TypedTable[CostsColumn, CostsRow]

    LinksColumn: TypeAlias = Literal[
        "comm_id",
        "from_rank",
        "to_rank",
        "transport",
        "n_channels",
        "path",
        "kind",
        "nominal_bytes_per_s",
        "nominal_source",
        "algorithms",
    ]

    class LinksRow(TypedDict):
        comm_id: Any
        from_rank: int
        to_rank: int
        transport: Any
        n_channels: Any
        path: Any
        kind: str
        nominal_bytes_per_s: Any
        nominal_source: Any
        algorithms: Any

    LinksTable: TypeAlias = TypedTable[LinksColumn, LinksRow]

    PeersColumn: TypeAlias = Literal[
        "rank",
        "peer_rank",
        "direction",
        "n_calls",
        "message_bytes",
        "is_lower_bound",
    ]

    class PeersRow(TypedDict):
        rank: int
        peer_rank: Any
        direction: str
        n_calls: int
        message_bytes: int
        is_lower_bound: bool

    PeersTable: TypeAlias = TypedTable[PeersColumn, PeersRow]

    EventsColumn: TypeAlias = Literal[
        "rank",
        "step",
        "phase",
        "category",
        "name",
        "device_id",
        "stream_id",
        "start_ns",
        "end_ns",
        "dur_ns",
        "launch_ns",
        "correlation_id",
        "bytes",
        "collective",
        "seq",
    ]

    class EventsRow(TypedDict):
        rank: int
        step: Any
        phase: Any
        category: str
        name: str
        device_id: Any
        stream_id: Any
        start_ns: int
        end_ns: int
        dur_ns: int
        launch_ns: Any
        correlation_id: Any
        bytes: Any
        collective: Any
        seq: Any

    EventsTable: TypeAlias = TypedTable[EventsColumn, EventsRow]

    PhaseRangesColumn: TypeAlias = Literal[
        "rank",
        "step",
        "phase",
        "start_ns",
        "end_ns",
        "n_operations",
        "device_start_ns",
        "device_end_ns",
    ]

    class PhaseRangesRow(TypedDict):
        rank: int
        step: int
        phase: Any
        start_ns: int
        end_ns: int
        n_operations: Any
        device_start_ns: Any
        device_end_ns: Any

    PhaseRangesTable: TypeAlias = TypedTable[PhaseRangesColumn, PhaseRangesRow]

    TimelineColumn: TypeAlias = Literal[
        "step",
        "rank",
        "lane",
        "start_ns",
        "end_ns",
        "busy_ns",
        "exposed_ns",
        "wait_ns",
        "n_operations",
        "name",
        "seq",
    ]

    class TimelineRow(TypedDict):
        step: int
        rank: int
        lane: str
        start_ns: int
        end_ns: int
        busy_ns: int
        exposed_ns: Any
        wait_ns: Any
        n_operations: int
        name: Any
        seq: Any

    TimelineTable: TypeAlias = TypedTable[TimelineColumn, TimelineRow]

    CountersColumn: TypeAlias = Literal[
        "rank",
        "step",
        "phase",
        "window_ns",
        "sampled_ns",
        "sampled_ratio",
        "lag_ns",
        "sm_active_percent",
        "tensor_active_percent",
        "dram_read_percent",
        "dram_read_bytes",
        "dram_read_bytes_per_s",
        "dram_write_percent",
        "dram_write_bytes",
        "dram_write_bytes_per_s",
        "nvlink_rx_percent",
        "nvlink_rx_bytes",
        "nvlink_rx_bytes_per_s",
        "nvlink_tx_percent",
        "nvlink_tx_bytes",
        "nvlink_tx_bytes_per_s",
        "pcie_rx_percent",
        "pcie_rx_bytes",
        "pcie_rx_bytes_per_s",
        "pcie_tx_percent",
        "pcie_tx_bytes",
        "pcie_tx_bytes_per_s",
        "gpc_clock_hz",
    ]

    class CountersRow(TypedDict):
        rank: int
        step: int
        phase: Any
        window_ns: int
        sampled_ns: int
        sampled_ratio: Any
        lag_ns: int
        sm_active_percent: Any
        tensor_active_percent: Any
        dram_read_percent: Any
        dram_read_bytes: Any
        dram_read_bytes_per_s: Any
        dram_write_percent: Any
        dram_write_bytes: Any
        dram_write_bytes_per_s: Any
        nvlink_rx_percent: Any
        nvlink_rx_bytes: Any
        nvlink_rx_bytes_per_s: Any
        nvlink_tx_percent: Any
        nvlink_tx_bytes: Any
        nvlink_tx_bytes_per_s: Any
        pcie_rx_percent: Any
        pcie_rx_bytes: Any
        pcie_rx_bytes_per_s: Any
        pcie_tx_percent: Any
        pcie_tx_bytes: Any
        pcie_tx_bytes_per_s: Any
        gpc_clock_hz: Any

    CountersTable: TypeAlias = TypedTable[CountersColumn, CountersRow]

    CounterBarsColumn: TypeAlias = Literal[
        "step",
        "rank",
        "start_ns",
        "end_ns",
        "sampled_ns",
        "sm_active_percent",
        "tensor_active_percent",
        "dram_read_percent",
        "dram_write_percent",
        "nvlink_rx_percent",
        "nvlink_tx_percent",
        "pcie_rx_percent",
        "pcie_tx_percent",
        "gpc_clock_hz",
    ]

    class CounterBarsRow(TypedDict):
        step: int
        rank: int
        start_ns: int
        end_ns: int
        sampled_ns: int
        sm_active_percent: Any
        tensor_active_percent: Any
        dram_read_percent: Any
        dram_write_percent: Any
        nvlink_rx_percent: Any
        nvlink_tx_percent: Any
        pcie_rx_percent: Any
        pcie_tx_percent: Any
        gpc_clock_hz: Any

    CounterBarsTable: TypeAlias = TypedTable[CounterBarsColumn, CounterBarsRow]

    LineBarsColumn: TypeAlias = Literal[
        "step",
        "rank",
        "start_ns",
        "end_ns",
        "frame",
        "file",
        "line",
        "function",
        "n_samples",
    ]

    class LineBarsRow(TypedDict):
        step: int
        rank: int
        start_ns: int
        end_ns: int
        frame: str
        file: str
        line: int
        function: str
        n_samples: int

    LineBarsTable: TypeAlias = TypedTable[LineBarsColumn, LineBarsRow]

    RanksColumn: TypeAlias = Literal[
        "rank",
        "process_rank",
        "local_rank",
        "report",
        "pid",
        "device_id",
        "device_ids",
        "gpu_name",
        "host",
        "gpu_memory_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "headroom_bytes",
        "n_alloc_retries",
        "peak_datatype",
        "peak_datatype_source",
        "rank_source",
        "n_kernels",
        "compute_stream_id",
        "n_comm",
        "n_dtod",
        "clock_shift_ns",
        "clock_offset_ns",
        "clock_error_ns",
    ]

    class RanksRow(TypedDict):
        rank: int
        process_rank: Any
        local_rank: Any
        report: str
        pid: int
        device_id: Any
        device_ids: str
        gpu_name: Any
        host: Any
        gpu_memory_bytes: Any
        peak_allocated_bytes: Any
        peak_reserved_bytes: Any
        headroom_bytes: Any
        n_alloc_retries: Any
        peak_datatype: Any
        peak_datatype_source: Any
        rank_source: str
        n_kernels: Any
        compute_stream_id: Any
        n_comm: Any
        n_dtod: Any
        clock_shift_ns: int
        clock_offset_ns: Any
        clock_error_ns: Any

    RanksTable: TypeAlias = TypedTable[RanksColumn, RanksRow]

    HostStepsColumn: TypeAlias = Literal[
        "rank",
        "report",
        "pid",
        "step",
        "host_start_ns",
        "host_end_ns",
        "host_ns",
        "data_ns",
        "forward_ns",
        "backward_ns",
        "optimizer_ns",
        "is_complete",
    ]

    class HostStepsRow(TypedDict):
        rank: Any
        report: str
        pid: int
        step: int
        host_start_ns: int
        host_end_ns: int
        host_ns: int
        data_ns: Any
        forward_ns: Any
        backward_ns: Any
        optimizer_ns: Any
        is_complete: bool

    HostStepsTable: TypeAlias = TypedTable[HostStepsColumn, HostStepsRow]

    SummaryColumn: TypeAlias = Literal[
        "n_steps",
        "n_summary_steps",
        "step_time_ns",
        "throughput_steps_per_s",
        "tokens_per_s",
        "samples_per_s",
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "idle_share",
        "compute_share",
        "exposed_memory_share",
        "wait_share",
        "transfer_share",
        "mfu",
        "flops_per_s",
        "dtod_ns_per_step",
        "dtod_bytes_per_step",
        "collectives_per_step",
        "idle_input_ns_per_step",
        "idle_launch_ns_per_step",
        "idle_blocked_ns_per_step",
        "idle_dependency_ns_per_step",
        "idle_unknown_ns_per_step",
        "message_bytes_per_step",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ]

    class SummaryRow(TypedDict):
        n_steps: int
        n_summary_steps: int
        step_time_ns: Any
        throughput_steps_per_s: Any
        tokens_per_s: Any
        samples_per_s: Any
        comm_share: Any
        exposed_comm_share: Any
        overlap_ratio: Any
        backward_overlap_ratio: Any
        idle_share: Any
        compute_share: Any
        exposed_memory_share: Any
        wait_share: Any
        transfer_share: Any
        mfu: Any
        flops_per_s: Any
        dtod_ns_per_step: Any
        dtod_bytes_per_step: Any
        collectives_per_step: Any
        idle_input_ns_per_step: Any
        idle_launch_ns_per_step: Any
        idle_blocked_ns_per_step: Any
        idle_dependency_ns_per_step: Any
        idle_unknown_ns_per_step: Any
        message_bytes_per_step: Any
        algbw_bytes_per_s: Any
        busbw_bytes_per_s: Any

    SummaryTable: TypeAlias = TypedTable[SummaryColumn, SummaryRow]

    RankSummaryColumn: TypeAlias = Literal[
        "rank",
        "step_time_ns",
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "idle_share",
        "compute_share",
        "exposed_memory_share",
        "wait_share",
        "transfer_share",
        "mfu",
        "flops_per_s",
        "dtod_ns_per_step",
        "dtod_bytes_per_step",
        "collectives_per_step",
        "idle_input_ns_per_step",
        "idle_launch_ns_per_step",
        "idle_blocked_ns_per_step",
        "idle_dependency_ns_per_step",
        "idle_unknown_ns_per_step",
        "message_bytes_per_step",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ]

    class RankSummaryRow(TypedDict):
        rank: int
        step_time_ns: Any
        comm_share: Any
        exposed_comm_share: Any
        overlap_ratio: Any
        backward_overlap_ratio: Any
        idle_share: Any
        compute_share: Any
        exposed_memory_share: Any
        wait_share: Any
        transfer_share: Any
        mfu: Any
        flops_per_s: Any
        dtod_ns_per_step: Any
        dtod_bytes_per_step: Any
        collectives_per_step: Any
        idle_input_ns_per_step: Any
        idle_launch_ns_per_step: Any
        idle_blocked_ns_per_step: Any
        idle_dependency_ns_per_step: Any
        idle_unknown_ns_per_step: Any
        message_bytes_per_step: Any
        algbw_bytes_per_s: Any
        busbw_bytes_per_s: Any

    RankSummaryTable: TypeAlias = TypedTable[RankSummaryColumn, RankSummaryRow]

    PhaseSummaryColumn: TypeAlias = Literal[
        "phase",
        "host_ns_per_step",
        "compute_ns_per_step",
        "comm_ns_per_step",
        "exposed_comm_ns_per_step",
        "device_ns_per_step",
        "idle_ns_per_step",
    ]

    class PhaseSummaryRow(TypedDict):
        phase: str
        host_ns_per_step: Any
        compute_ns_per_step: Any
        comm_ns_per_step: Any
        exposed_comm_ns_per_step: Any
        device_ns_per_step: Any
        idle_ns_per_step: Any

    PhaseSummaryTable: TypeAlias = TypedTable[PhaseSummaryColumn, PhaseSummaryRow]

    FindingsColumn: TypeAlias = Literal[
        "id",
        "severity",
        "title",
        "action",
        "advice",
        "saving_ns_per_step",
        "expected_ns_per_step",
        "evidence",
    ]

    class FindingsRow(TypedDict):
        id: str
        severity: str
        title: str
        action: str
        advice: str
        saving_ns_per_step: Any
        expected_ns_per_step: Any
        evidence: str

    FindingsTable: TypeAlias = TypedTable[FindingsColumn, FindingsRow]

    ProblemsColumn: TypeAlias = Literal[
        "code",
        "severity",
        "report",
        "rank",
        "message",
        "fix",
    ]

    class ProblemsRow(TypedDict):
        code: str
        severity: str
        report: Any
        rank: Any
        message: str
        fix: Any

    ProblemsTable: TypeAlias = TypedTable[ProblemsColumn, ProblemsRow]

    Runs0Column: TypeAlias = Literal[
        "run_id",
        "label",
        "n_ranks",
        "n_processes",
        "world_size",
        "gpu_names",
        "hosts",
        "nsys_versions",
        "export_schema_versions",
        "captured_at_utc",
        "reports",
        "step_family",
        "n_steps",
        "n_summary_steps",
        "step_time_ns",
        "throughput_steps_per_s",
        "tokens_per_s",
        "samples_per_s",
        "comm_share",
        "exposed_comm_share",
        "overlap_ratio",
        "backward_overlap_ratio",
        "idle_share",
        "compute_share",
        "exposed_memory_share",
        "wait_share",
        "transfer_share",
        "mfu",
        "flops_per_s",
        "dtod_ns_per_step",
        "dtod_bytes_per_step",
        "collectives_per_step",
        "idle_input_ns_per_step",
        "idle_launch_ns_per_step",
        "idle_blocked_ns_per_step",
        "idle_dependency_ns_per_step",
        "idle_unknown_ns_per_step",
        "message_bytes_per_step",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ]
    Runs1Column: TypeAlias = Literal[
        "link_kind",
        "nccl_version",
        "environment",
        "n_findings",
        "first_finding",
        "first_action",
        "first_saving_ns_per_step",
        "tool_version",
        "schema_version",
        "definitions_version",
        "details",
    ]
    RunsColumn: TypeAlias = Literal[Runs0Column, Runs1Column]

    class RunsRow(TypedDict):
        run_id: str
        label: str
        n_ranks: int
        n_processes: Any
        world_size: Any
        gpu_names: str
        hosts: str
        nsys_versions: str
        export_schema_versions: str
        captured_at_utc: Any
        reports: str
        step_family: Any
        n_steps: int
        n_summary_steps: int
        step_time_ns: Any
        throughput_steps_per_s: Any
        tokens_per_s: Any
        samples_per_s: Any
        comm_share: Any
        exposed_comm_share: Any
        overlap_ratio: Any
        backward_overlap_ratio: Any
        idle_share: Any
        compute_share: Any
        exposed_memory_share: Any
        wait_share: Any
        transfer_share: Any
        mfu: Any
        flops_per_s: Any
        dtod_ns_per_step: Any
        dtod_bytes_per_step: Any
        collectives_per_step: Any
        idle_input_ns_per_step: Any
        idle_launch_ns_per_step: Any
        idle_blocked_ns_per_step: Any
        idle_dependency_ns_per_step: Any
        idle_unknown_ns_per_step: Any
        message_bytes_per_step: Any
        algbw_bytes_per_s: Any
        busbw_bytes_per_s: Any
        link_kind: Any
        nccl_version: Any
        environment: Any
        n_findings: Any
        first_finding: Any
        first_action: Any
        first_saving_ns_per_step: Any
        tool_version: str
        schema_version: int
        definitions_version: Any
        details: str

    RunsTable: TypeAlias = TypedTable[RunsColumn, RunsRow]

    MetricsColumn: TypeAlias = Literal[
        "rank",
        "step",
        "metric",
        "unit",
        "value",
        "in_summary",
    ]

    class MetricsRow(TypedDict):
        rank: Any
        step: Any
        metric: str
        unit: str
        value: Any
        in_summary: Any

    MetricsTable: TypeAlias = TypedTable[MetricsColumn, MetricsRow]

    KernelsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "start_ns",
        "end_ns",
        "device_id",
        "correlation_id",
        "stream_id",
        "name_id",
        "grid",
        "block",
        "is_comm",
    ]

    class KernelsOfReportRow(TypedDict):
        process_id: int
        start_ns: int
        end_ns: int
        device_id: Any
        correlation_id: Any
        stream_id: Any
        name_id: Any
        grid: Any
        block: Any
        is_comm: bool

    KernelsOfReportTable: TypeAlias = TypedTable[KernelsOfReportColumn, KernelsOfReportRow]

    CopiesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "start_ns",
        "end_ns",
        "device_id",
        "correlation_id",
        "copy_kind",
        "bytes",
    ]

    class CopiesOfReportRow(TypedDict):
        process_id: int
        start_ns: int
        end_ns: int
        device_id: Any
        correlation_id: Any
        copy_kind: Any
        bytes: Any

    CopiesOfReportTable: TypeAlias = TypedTable[CopiesOfReportColumn, CopiesOfReportRow]

    LaunchesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "start_ns",
        "correlation_id",
    ]

    class LaunchesOfReportRow(TypedDict):
        process_id: int
        start_ns: int
        correlation_id: int

    LaunchesOfReportTable: TypeAlias = TypedTable[LaunchesOfReportColumn, LaunchesOfReportRow]

    RangesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "thread_id",
        "start_ns",
        "end_ns",
        "text",
        "is_library",
    ]

    class RangesOfReportRow(TypedDict):
        process_id: int
        thread_id: int
        start_ns: int
        end_ns: int
        text: str
        is_library: bool

    RangesOfReportTable: TypeAlias = TypedTable[RangesOfReportColumn, RangesOfReportRow]

    CommCallsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "thread_id",
        "start_ns",
        "end_ns",
        "text",
    ]

    class CommCallsOfReportRow(TypedDict):
        process_id: int
        thread_id: int
        start_ns: int
        end_ns: int
        text: str

    CommCallsOfReportTable: TypeAlias = TypedTable[CommCallsOfReportColumn, CommCallsOfReportRow]

    CalledOfReportColumn: TypeAlias = Literal[
        "process_id",
        "correlation_id",
        "call",
        "is_copy",
        "stream_id",
        "name_id",
    ]

    class CalledOfReportRow(TypedDict):
        process_id: int
        correlation_id: int
        call: int
        is_copy: bool
        stream_id: Any
        name_id: int

    CalledOfReportTable: TypeAlias = TypedTable[CalledOfReportColumn, CalledOfReportRow]

    HostCallsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "thread_id",
        "start_ns",
        "end_ns",
        "correlation_id",
    ]

    class HostCallsOfReportRow(TypedDict):
        process_id: int
        thread_id: int
        start_ns: int
        end_ns: int
        correlation_id: int

    HostCallsOfReportTable: TypeAlias = TypedTable[HostCallsOfReportColumn, HostCallsOfReportRow]

    HostWaitsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "thread_id",
        "start_ns",
        "end_ns",
        "device_id",
        "stream_id",
        "is_whole",
        "copy_end_ns",
    ]

    class HostWaitsOfReportRow(TypedDict):
        process_id: int
        thread_id: int
        start_ns: int
        end_ns: int
        device_id: Any
        stream_id: Any
        is_whole: bool
        copy_end_ns: Any

    HostWaitsOfReportTable: TypeAlias = TypedTable[HostWaitsOfReportColumn, HostWaitsOfReportRow]

    BlockingCallsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "start_ns",
        "end_ns",
        "call",
        "is_of_copy",
        "is_of_memory",
    ]

    class BlockingCallsOfReportRow(TypedDict):
        process_id: int
        start_ns: int
        end_ns: int
        call: str
        is_of_copy: bool
        is_of_memory: bool

    BlockingCallsOfReportTable: TypeAlias = TypedTable[
        BlockingCallsOfReportColumn, BlockingCallsOfReportRow
    ]

    MemoryCallsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "start_ns",
        "end_ns",
        "is_alloc",
        "is_free",
        "is_failed",
        "bytes",
    ]

    class MemoryCallsOfReportRow(TypedDict):
        process_id: int
        start_ns: int
        end_ns: int
        is_alloc: bool
        is_free: bool
        is_failed: Any
        bytes: Any

    MemoryCallsOfReportTable: TypeAlias = TypedTable[
        MemoryCallsOfReportColumn, MemoryCallsOfReportRow
    ]

    BlockingCopiesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "start_ns",
        "end_ns",
        "launch_ns",
        "device_id",
        "bytes",
        "is_pageable",
    ]

    class BlockingCopiesOfReportRow(TypedDict):
        process_id: int
        start_ns: int
        end_ns: int
        launch_ns: int
        device_id: Any
        bytes: Any
        is_pageable: Any

    BlockingCopiesOfReportTable: TypeAlias = TypedTable[
        BlockingCopiesOfReportColumn, BlockingCopiesOfReportRow
    ]

    CommOperationsColumn: TypeAlias = Literal[
        "start_ns",
        "end_ns",
        "member",
        "kind",
        "stream_order",
        "comm_id",
        "seq_number",
        "operation_id",
        "message_bytes",
        "n_calls",
        "called",
        "launched_in",
        "micro_batch",
        "n_before",
    ]

    class CommOperationsRow(TypedDict):
        start_ns: int
        end_ns: int
        member: int
        kind: int
        stream_order: int
        comm_id: Any
        seq_number: Any
        operation_id: Any
        message_bytes: Any
        n_calls: Any
        called: Any
        launched_in: Any
        micro_batch: Any
        n_before: Any

    CommOperationsTable: TypeAlias = TypedTable[CommOperationsColumn, CommOperationsRow]

    PayloadsOfReportColumn: TypeAlias = Literal[
        "process_id",
        "thread_id",
        "start_ns",
        "end_ns",
        "call",
        "comm_id",
        "seq",
        "operation_id",
        "message_bytes",
        "n_ranks",
        "rank",
    ]

    class PayloadsOfReportRow(TypedDict):
        process_id: int
        thread_id: int
        start_ns: int
        end_ns: Any
        call: Any
        comm_id: Any
        seq: Any
        operation_id: Any
        message_bytes: Any
        n_ranks: Any
        rank: Any

    PayloadsOfReportTable: TypeAlias = TypedTable[PayloadsOfReportColumn, PayloadsOfReportRow]

    CommSizesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "comm_id",
        "n_ranks",
    ]

    class CommSizesOfReportRow(TypedDict):
        process_id: int
        comm_id: int
        n_ranks: int

    CommSizesOfReportTable: TypeAlias = TypedTable[CommSizesOfReportColumn, CommSizesOfReportRow]

    LockRangesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "thread_id",
        "start_ns",
        "end_ns",
        "is_wait",
        "is_of_sampler",
    ]

    class LockRangesOfReportRow(TypedDict):
        process_id: int
        thread_id: int
        start_ns: int
        end_ns: int
        is_wait: bool
        is_of_sampler: bool

    LockRangesOfReportTable: TypeAlias = TypedTable[LockRangesOfReportColumn, LockRangesOfReportRow]

    PythonLinesOfReportColumn: TypeAlias = Literal[
        "path",
        "line",
        "function",
        "is_of_program",
    ]

    class PythonLinesOfReportRow(TypedDict):
        path: str
        line: int
        function: str
        is_of_program: bool

    PythonLinesOfReportTable: TypeAlias = TypedTable[
        PythonLinesOfReportColumn, PythonLinesOfReportRow
    ]

    PythonFramesOfReportColumn: TypeAlias = Literal["line"]

    class PythonFramesOfReportRow(TypedDict):
        line: int

    PythonFramesOfReportTable: TypeAlias = TypedTable[
        PythonFramesOfReportColumn, PythonFramesOfReportRow
    ]

    PythonSamplesOfReportColumn: TypeAlias = Literal[
        "process_id",
        "time_ns",
        "innermost",
        "in_program",
        "first_frame",
        "n_frames",
        "held_after",
        "let_go",
    ]

    class PythonSamplesOfReportRow(TypedDict):
        process_id: int
        time_ns: int
        innermost: int
        in_program: int
        first_frame: int
        n_frames: int
        held_after: int
        let_go: int

    PythonSamplesOfReportTable: TypeAlias = TypedTable[
        PythonSamplesOfReportColumn, PythonSamplesOfReportRow
    ]

else:
    StepsTable = pa.Table
    StepsRow = dict
    StepsColumn = str
    PhasesTable = pa.Table
    PhasesRow = dict
    PhasesColumn = str
    IdleCallsTable = pa.Table
    IdleCallsRow = dict
    IdleCallsColumn = str
    HostLinesTable = pa.Table
    HostLinesRow = dict
    HostLinesColumn = str
    CollectivesTable = pa.Table
    CollectivesRow = dict
    CollectivesColumn = str
    StragglersTable = pa.Table
    StragglersRow = dict
    StragglersColumn = str
    TrafficTable = pa.Table
    TrafficRow = dict
    TrafficColumn = str
    KernelsTable = pa.Table
    KernelsRow = dict
    KernelsColumn = str
    CostsTable = pa.Table
    CostsRow = dict
    CostsColumn = str
    LinksTable = pa.Table
    LinksRow = dict
    LinksColumn = str
    PeersTable = pa.Table
    PeersRow = dict
    PeersColumn = str
    EventsTable = pa.Table
    EventsRow = dict
    EventsColumn = str
    PhaseRangesTable = pa.Table
    PhaseRangesRow = dict
    PhaseRangesColumn = str
    TimelineTable = pa.Table
    TimelineRow = dict
    TimelineColumn = str
    CountersTable = pa.Table
    CountersRow = dict
    CountersColumn = str
    CounterBarsTable = pa.Table
    CounterBarsRow = dict
    CounterBarsColumn = str
    LineBarsTable = pa.Table
    LineBarsRow = dict
    LineBarsColumn = str
    RanksTable = pa.Table
    RanksRow = dict
    RanksColumn = str
    HostStepsTable = pa.Table
    HostStepsRow = dict
    HostStepsColumn = str
    SummaryTable = pa.Table
    SummaryRow = dict
    SummaryColumn = str
    RankSummaryTable = pa.Table
    RankSummaryRow = dict
    RankSummaryColumn = str
    PhaseSummaryTable = pa.Table
    PhaseSummaryRow = dict
    PhaseSummaryColumn = str
    FindingsTable = pa.Table
    FindingsRow = dict
    FindingsColumn = str
    ProblemsTable = pa.Table
    ProblemsRow = dict
    ProblemsColumn = str
    RunsTable = pa.Table
    RunsRow = dict
    RunsColumn = str
    MetricsTable = pa.Table
    MetricsRow = dict
    MetricsColumn = str
    KernelsOfReportTable = pa.Table
    KernelsOfReportRow = dict
    KernelsOfReportColumn = str
    CopiesOfReportTable = pa.Table
    CopiesOfReportRow = dict
    CopiesOfReportColumn = str
    LaunchesOfReportTable = pa.Table
    LaunchesOfReportRow = dict
    LaunchesOfReportColumn = str
    RangesOfReportTable = pa.Table
    RangesOfReportRow = dict
    RangesOfReportColumn = str
    CommCallsOfReportTable = pa.Table
    CommCallsOfReportRow = dict
    CommCallsOfReportColumn = str
    CalledOfReportTable = pa.Table
    CalledOfReportRow = dict
    CalledOfReportColumn = str
    HostCallsOfReportTable = pa.Table
    HostCallsOfReportRow = dict
    HostCallsOfReportColumn = str
    HostWaitsOfReportTable = pa.Table
    HostWaitsOfReportRow = dict
    HostWaitsOfReportColumn = str
    BlockingCallsOfReportTable = pa.Table
    BlockingCallsOfReportRow = dict
    BlockingCallsOfReportColumn = str
    MemoryCallsOfReportTable = pa.Table
    MemoryCallsOfReportRow = dict
    MemoryCallsOfReportColumn = str
    BlockingCopiesOfReportTable = pa.Table
    BlockingCopiesOfReportRow = dict
    BlockingCopiesOfReportColumn = str
    CommOperationsTable = pa.Table
    CommOperationsRow = dict
    CommOperationsColumn = str
    PayloadsOfReportTable = pa.Table
    PayloadsOfReportRow = dict
    PayloadsOfReportColumn = str
    CommSizesOfReportTable = pa.Table
    CommSizesOfReportRow = dict
    CommSizesOfReportColumn = str
    LockRangesOfReportTable = pa.Table
    LockRangesOfReportRow = dict
    LockRangesOfReportColumn = str
    PythonLinesOfReportTable = pa.Table
    PythonLinesOfReportRow = dict
    PythonLinesOfReportColumn = str
    PythonFramesOfReportTable = pa.Table
    PythonFramesOfReportRow = dict
    PythonFramesOfReportColumn = str
    PythonSamplesOfReportTable = pa.Table
    PythonSamplesOfReportRow = dict
    PythonSamplesOfReportColumn = str
