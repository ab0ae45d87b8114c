"""nsys and other programs: how they are found, which they are, what they list, and what they print before a deadline."""

import os
import subprocess
from pathlib import Path

import pytest

from nsyspipe.errors import NsysFailedError, NsysNotFoundError
from nsyspipe.nsys.programs import (
    Output,
    Program,
    ask,
    find,
    find_importer,
    find_nsys,
    numbers,
    telling_lines,
)
from tests.build.fake_nsys import NEW_OPTIONS, fake_nsys
from tests.build.programs import HELP, program


@pytest.mark.parametrize(
    "words", [(), ("nsys",), ("./nsys",), (".",), ("{folder}",), ("{folder}/nsys",)]
)
def test_nsys_is_found_and_tells_its_version(tmp_path, monkeypatch, words):
    path = fake_nsys(tmp_path / "bin dir")
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    monkeypatch.chdir(path.parent)
    found = find(*(word.format(folder=path.parent) for word in words))
    assert found.path == path  # absolute: it holds from other directories too
    assert (found.version_text, numbers(found.version_text)) == ("2024.2.3.38", (2024, 2, 3, 38))


def test_what_is_no_program_is_not_found_and_one_that_is_no_nsys_is_refused(tmp_path, worded):
    for name in ("", "no-such-program-at-all", "/no/such/nsys", "/tmp", "/etc/passwd"):
        with pytest.raises(NsysNotFoundError) as caught:
            find(name)
        assert caught.value.fix, name
    path = program(tmp_path, "nsys", "")
    scripts = {
        "status 127": "#!/bin/sh\nexit 127",
        "another program": "#!/bin/sh\necho word",
        "another processor": "\x7fELF of another machine",
    }
    for case, script in scripts.items():
        path.write_text(script)
        with pytest.raises(NsysFailedError) as caught:
            find(str(path))
        assert caught.value.subject == str(path), case
        worded(caught.value.problem, case)


def test_what_it_traces_and_its_options_are_read_from_its_help(tmp_path):
    found = find(str(fake_nsys(tmp_path / "old")))
    assert found.trace_values() == ("cuda", "nvtx", "cublas-verbose", "osrt", "python-gil", "none")
    names = ("--lazy", "--type", "--include-blobs", "--laz")
    assert [found.has("export", one) for one in names] == [True, True, False, False]
    found = find(
        str(
            fake_nsys(
                tmp_path, options=NEW_OPTIONS, profile=HELP.replace("'osrt'", "'osrt', 'nccl'")
            )
        )
    )
    assert found.has("export", "--include-blobs")
    assert "nccl" in found.trace_values()


def test_the_help_is_asked_for_once_and_one_that_fails_lists_nothing(tmp_path):
    found = find(
        str(
            program(tmp_path, "nsys", '[ "$1" = --version ] && echo version 2030.1 && exit; exit 3')
        )
    )
    assert (found.trace_values(), found.has("export", "--lazy")) == ((), False)
    path = fake_nsys(tmp_path, profile=HELP)
    path.write_text(path.read_text().replace("case", 'echo "$1" >> "$0.asked"\ncase', 1))
    found = find(str(path))
    assert found.has("export", "--lazy") and found.has("export", "--quiet")  # noqa: PT018
    assert (tmp_path / "nsys.asked").read_text().split() == ["--version", "export"]


@pytest.mark.parametrize(
    ("said", "n", "told"),
    [
        (
            "Generating 'a'\n[1/1] [0%   ]\r[1/1] [=====  40%] a\nError: no space left\nbye\n",
            3,
            ["Error: no space left"],
        ),
        ("Generating 'a'\n[====100%] a\nbye\n", 1, ["bye"]),
        ("\n[1/1] [0%   ]\n", 3, []),
        ("cannot a\ncannot b\ncannot c\ncannot c\n", 3, ["cannot b", "cannot c"]),
        ("\x1b[31mfailed\x1b[0m\x07 " + "x" * 900, 3, ["failed " + "x" * 193]),
    ],
)
def test_lines_with_an_error_come_first_and_once(said, n, told):
    assert telling_lines(said, n) == told


@pytest.mark.parametrize(
    ("nsys", "importer"),
    [
        ("usr/bin/nsys", "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter"),
        ("x/bin/nsys", "x/host-linux-x64/QdstrmImporter"),
        ("x/target-linux-x64/nsys", "x/host-linux-x64/QdstrmImporter"),
        (
            "usr/local/cuda/bin/nsys",
            "usr/local/cuda/nsight-systems-2024.6.2/host-linux-x64/QdstrmImporter",
        ),
        ("x/bin/nsys", "opt/nvidia/nsight-systems/2024.2.3/host-linux-x64/QdstrmImporter"),
    ],
)
def test_the_importer_lies_where_packages_put_it(tmp_path, nsys, importer):
    found = Program(program(tmp_path, nsys, ""), None)
    assert find_importer(found, tmp_path) is None
    expected = program(tmp_path, importer, "")  # written before it is looked for
    assert find_importer(found, tmp_path) == expected


def test_the_importer_is_of_the_nsys_that_was_found_also_by_a_link(tmp_path):
    real = program(tmp_path / "package/target-linux-x64", "nsys", "")
    expected = program(tmp_path / "package/host-linux-x64", "QdstrmImporter", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nsys").symlink_to(real)
    assert find_importer(find_nsys(str(tmp_path / "bin"), tmp_path), tmp_path) == expected
    for version in ("2024.2.3", "2025.10.1", "2025.9.1"):
        folder = tmp_path / "opt/nvidia/nsight-systems" / version
        program(folder / "bin", "nsys", "")
        program(folder / "host-linux-x64", "QdstrmImporter", "")
    nsys = find_nsys(os.devnull, tmp_path)
    assert nsys.place == "/opt/nvidia/nsight-systems/2025.10.1/bin/nsys"
    assert find_importer(nsys, tmp_path).parts[-3] == "2025.10.1"


@pytest.mark.slow
def test_endless_output_of_a_program_is_cut_off(tmp_path):
    assert ask([str(tmp_path / "tool")], 20) is None
    # A child that keeps the output open is not waited for; who has closed it is still given its
    # time.
    for script, status in (
        ("sleep 60 &\necho done", 0),
        ("echo done; exec >&-; sleep 0.2; exit 4", 4),
    ):
        assert ask([str(program(tmp_path, "tool", script))], 20) == Output(status, "done\n"), script
    output = ask(
        [str(program(tmp_path, "tool", "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done"))],
        0.3,
    )
    assert output.status is None
    assert len(output.text) < 2**21


SCRIPT = Path(__file__).parents[2] / ".ci" / "install-nsys"


def run(folder, *words):
    """Run it where nothing can be downloaded (it says so where it would begin to); return its status and streams."""
    program(folder / "bin", "apt-get", "exit 1")
    variables = os.environ | {
        "HOME": str(folder),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    options = {"cwd": folder, "env": variables, "capture_output": True, "text": True, "timeout": 30}
    done = subprocess.run([SCRIPT, *words], check=False, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["--prefix=x"], ["-v"], ["a", "b"], [""], ["a", "-v"]]
)
def test_help_and_unknown_words_make_nothing(tmp_path, words):
    status, out, err = run(tmp_path, *words)
    if words == ["--help"]:
        assert (status, ".ci/install-nsys [PREFIX]" in out, err) == (0, True, "")
    else:
        assert (status, out, err.startswith("error: "), "fix: " in err) == (2, "", True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize("name", ["mine", "mine/", "mine/thesis.txt"])
def test_other_files_are_never_replaced(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    status, _, err = run(tmp_path, name)
    assert status == 2
    assert "is there, and no nsys that this has installed" in err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_missing_or_broken_nsys_leads_to_the_download(
    tmp_path,
):
    for there in ("", "x", "x/usr/lib/nsight-systems"):
        (tmp_path / there).mkdir(parents=True, exist_ok=True)
        status, _, err = run(tmp_path, "x")
        assert status == 1, there
        assert "could not be downloaded" in err or "no apt-get" in err, there
    program(tmp_path / "an nsys" / "bin", "nsys", "echo NVIDIA Nsight Systems version 2024.2.3")
    err = f"to use it: export PATH={tmp_path}/an\\ nsys/bin:$PATH\n"
    assert run(tmp_path, "an nsys") == (0, f"{tmp_path}/an nsys/bin/nsys\n", err)
