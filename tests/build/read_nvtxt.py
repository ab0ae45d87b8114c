"""Reads the NVTXT that nsyspipe writes: the ranges of each thread, by its name."""

import re

_NAME = re.compile(r'NameOsThread, (\d+), (\d+), "([^"\\]*)"')
_START = re.compile(r'RangePush, (-?\d+), (\d+), (\d+), (\w+), "([^"\\]*)"')
_END = re.compile(r"RangePop, (-?\d+), (\d+), (\d+)")


def read_nvtxt(text):
    """Return the (start, end, text) of each lane, in order of their ends. Each line must be one that is known."""
    lanes, names, open_ranges = {}, {}, {}
    head, _, body = text.partition("\nNameOsThread")
    assert head.splitlines()[0] == "SetFileDisplayName, nsyspipe"
    for line in f"NameOsThread{body}".splitlines() if body else []:
        if named := _NAME.fullmatch(line):
            names[named[1], named[2]] = named[3]
            lanes[named[3]] = []
        elif start := _START.fullmatch(line):
            open_ranges.setdefault((start[2], start[3]), []).append((int(start[1]), start[5]))
        else:
            end = _END.fullmatch(line)
            began, message = open_ranges[end[2], end[3]].pop()
            lanes[names[end[2], end[3]]].append((began, int(end[1]), message))
    assert not any(open_ranges.values())
    return lanes
