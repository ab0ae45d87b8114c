"""Other programs: where they are found, and what they print before a deadline."""

from __future__ import annotations

import os
import time

import pytest

from nsyspipe.nsys.programs import Output, Program, ask, find_importer, find_nsys
from tests.build.programs import program


@pytest.mark.parametrize(
    ("nsys", "importer"),
    [
        ("usr/bin/nsys", "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter"),
        ("x/bin/nsys", "x/host-linux-x64/QdstrmImporter"),
        ("x/target-linux-x64/nsys", "x/host-linux-x64/QdstrmImporter"),
        ("usr/local/cuda/bin/nsys", "usr/local/cuda/nsight-systems-2024.6.2/host-linux-x64/QdstrmImporter"),
        ("x/bin/nsys", "opt/nvidia/nsight-systems/2024.2.3/host-linux-x64/QdstrmImporter"),
    ],
)  # fmt: skip
def test_the_importer_lies_where_packages_put_it(tmp_path, nsys, importer):
    found = Program(program(tmp_path, nsys, ""), None)
    assert find_importer(found, tmp_path) is None
    expected = program(tmp_path, importer, "")
    assert find_importer(found, tmp_path) == expected


def test_the_importer_of_a_linked_nsys_is_found(tmp_path):
    real = program(tmp_path / "package/target-linux-x64", "nsys", "")
    expected = program(tmp_path / "package/host-linux-x64", "QdstrmImporter", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nsys").symlink_to(real)
    assert find_importer(find_nsys(str(tmp_path / "bin"), tmp_path), tmp_path) == expected


def test_the_importer_is_of_the_nsys_that_was_found(tmp_path):
    for version in ("2024.2.3", "2025.10.1", "2025.9.1"):
        folder = tmp_path / "opt/nvidia/nsight-systems" / version
        program(folder / "bin", "nsys", "")
        program(folder / "host-linux-x64", "QdstrmImporter", "")
    nsys = find_nsys(os.devnull, tmp_path)
    assert nsys.place == "/opt/nvidia/nsight-systems/2025.10.1/bin/nsys"
    assert find_importer(nsys, tmp_path).parts[-3] == "2025.10.1"


def test_a_child_that_keeps_the_output_open_is_not_waited_for(tmp_path):
    command = program(tmp_path, "tool", "sleep 60 &\necho done")
    start = time.monotonic()
    assert ask([str(command)], 20) == Output(0, "done\n")
    assert time.monotonic() - start < 10


def test_a_program_that_prints_without_end_is_cut(tmp_path):
    command = program(tmp_path, "tool", "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done")
    output = ask([str(command)], 1)
    assert output.status is None
    assert len(output.text) < 2**21


def test_a_program_that_closes_its_output_is_given_its_time(tmp_path):
    command = program(tmp_path, "tool", "echo done; exec >&-; sleep 0.2; exit 4")
    assert ask([str(command)], 20) == Output(4, "done\n")


def test_what_is_not_there_cannot_be_asked(tmp_path):
    assert ask([str(tmp_path / "nothing")], 1) is None
    assert find_nsys(os.devnull, tmp_path) is None
