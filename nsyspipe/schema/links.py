"""The table of what connects the ranks."""

from __future__ import annotations

from nsyspipe.schema.model import FLOAT, INT, TEXT, Column, TableSchema

__all__ = ["LINKS", "LINK_KINDS"]

# From the fastest to the slowest; what is not known stands last.
LINK_KINDS = ("nvlink", "p2p", "p2p_pcie", "shm", "net", "unknown")

LINKS = TableSchema(
    "links",
    "One row per directed edge of the rings of the largest communicator; without an NCCL log one per pair of GPUs.",
    ("from_rank", "to_rank"),
    (
        Column(
            "comm_id",
            TEXT,
            "id",
            "communicator; null without an NCCL log: the row is a pair, not an edge",
            "NCCL log",
            nullable=True,
        ),
        Column("from_rank", INT, "id", "sender's rank in the communicator", "NCCL log"),
        Column("to_rank", INT, "id", "receiver's rank in the communicator", "NCCL log"),
        Column(
            "transport",
            TEXT,
            "text",
            "what NCCL set up, in its words; null when no line says so",
            "NCCL log",
            nullable=True,
        ),
        Column(
            "n_channels",
            INT,
            "count",
            "channels of collectives on this edge; null when no line of this communicator says so",
            "NCCL log",
            nullable=True,
        ),
        Column(
            "path",
            TEXT,
            "text",
            "what lies between the two GPUs: NV#, PIX, PXB, PHB, NODE, SYS; null across hosts",
            "nvidia-smi topo -m",
            nullable=True,
        ),
        Column(
            "kind",
            TEXT,
            "text",
            "nvlink, p2p_pcie, p2p (direct, the topology does not say over what), shm (host memory), net, unknown;"
            " of several transports the slowest",
            "transport and path",
        ),
        Column(
            "nominal_bytes_per_s",
            FLOAT,
            "bytes/s",
            "what the data sheet promises per direction; of path when the transport is not known; null for"
            " networks and unknown models",
            "GPU model, transport and path",
            nullable=True,
        ),
        Column(
            "nominal_source",
            TEXT,
            "text",
            "what that figure is: generation, number of links, GPU model",
            "data sheet",
            nullable=True,
        ),
    ),
)
