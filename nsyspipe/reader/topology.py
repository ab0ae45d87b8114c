"""Read what ``nvidia-smi topo -m`` prints: a matrix of paths, affinity columns, legends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsyspipe.errors import InputError
from nsyspipe.model.fabric import Topology
from nsyspipe.model.text import decoded
from nsyspipe.reader.nccl_lines import printed_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


_FIX = "nvidia-smi topo -m > topo.txt, on the host of the run"
_MOST_LINES = 10_000
# Rows of NICs are labelled NIC0 or, by older drivers, with the device's name.
_GPU = re.compile(r"GPU(\d{1,6})$")
_DEVICE = re.compile(r"(?:GPU|NIC)\d{1,6}$|[a-z][a-z0-9]*_[a-z0-9_]*\d$")
_PATH = re.compile(r"NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC")
# SOC is what drivers before 387 called SYS.
_RENAMED = {"SOC": "SYS"}
_CELL = re.compile(rf"(?:{_PATH.pattern}|X|N/A|PSB)$")


def read_topology(path: Path) -> Topology:
    """Read the printed matrix of one host, perhaps among other output: the first matrix counts.

    Only what the file says: a row that was cut leaves its last paths unknown. `InputError` if there is no such matrix.
    """
    lines = [line.text for line in printed_lines(path, most=_MOST_LINES)]
    header = next((at for at, line in enumerate(lines) if _columns(line)), None)
    if header is None:
        raise InputError(decoded(str(path)), "no matrix of nvidia-smi topo -m in it", fix=_FIX)
    columns = _columns(lines[header])
    rows = _rows(lines[header + 1 :])
    paths = _paths(columns, rows)
    if not rows or (not paths and len(columns) > 1):
        raise InputError(
            decoded(str(path)),
            "a matrix without NV#, PIX, PXB, PHB, NODE or SYS, which nvidia-smi topo -m prints",
            fix=_FIX,
        )
    return Topology(
        gpus=tuple(sorted({int(match[1]) for name in columns if (match := _GPU.match(name))})),
        paths=paths,
    )


def _columns(line: str) -> list[str]:
    """Return the devices that a header line names, or nothing: a row has its own name before an X."""
    words = line.split()
    names: list[str] = []
    for word in words:
        if not _DEVICE.match(word):
            break
        names.append(word)
    rest = words[len(names) : len(names) + 1]
    is_header = names and _GPU.match(names[0]) and rest in ([], ["CPU"], ["NUMA"])
    return names if is_header and len(set(names)) == len(names) else []


def _rows(lines: Iterable[str]) -> dict[str, str]:
    """Return the rest of each device's row by its name, up to the legend."""
    rows: dict[str, str] = {}
    for line in lines:
        words = line.split(maxsplit=1)
        if words and words[0].lower().startswith("legend"):
            break
        # A second header ends the first matrix.
        if _columns(line) and len(words) > 1:
            break
        if len(words) > 1 and _DEVICE.match(words[0]):
            rows.setdefault(words[0], words[1])
    return rows


def _paths(columns: Sequence[str], rows: dict[str, str]) -> dict[tuple[str, str], str]:
    """Pair the cells of each row with the columns; the matrix is symmetric, so a row stands in for one that was cut."""
    found: dict[tuple[str, str], str] = {}
    for name, rest in rows.items():
        for column, cell in zip(columns, rest.split(), strict=False):
            if not _CELL.match(cell):
                break
            if column != name and _PATH.fullmatch(cell):
                found[name, column] = _RENAMED.get(cell, cell)
    for (one, other), path in list(found.items()):
        found.setdefault((other, one), path)
    return dict(sorted(found.items()))
