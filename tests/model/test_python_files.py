"""Which files are the user's program, and how files are shown."""

import pytest

from nsyspipe.model.python_files import is_of_program, short_names


@pytest.mark.parametrize(
    ("path", "is_program"),
    [
        ("/home/me/job/train.py", True),
        ("train.py", True),
        ("/home/me/torch_models/train.py", True),
        ("/home/me/job/torch/model.py", True),
        ("/home/me/lib/train.py", True),
        ("<frozen runpy>", False),
        ("<string>", False),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", False),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", False),
        ("/usr/lib/python3.12/threading.py", False),
        ("/usr/lib64/python3.9/json/decoder.py", False),
        ("/opt/pytorch/torch/nn/modules/module.py", False),
        ("/opt/pytorch/torch/utils/data/dataloader.py", False),
    ],
)
def test_the_program_is_what_nobody_installed(path, is_program):
    assert is_of_program(path) is is_program


def test_files_of_the_program_are_relative_to_their_common_folder():
    paths = ["/home/me/job/train.py", "/home/me/job/data/read.py"]
    assert short_names(paths) == {paths[0]: "train.py", paths[1]: "data/read.py"}


def test_a_single_file_is_shown_by_its_name():
    assert short_names(["/home/me/job/train.py"]) == {"/home/me/job/train.py": "train.py"}


def test_other_files_begin_with_their_package():
    paths = {
        "/home/me/venv/lib/python3.12/site-packages/torch/nn/linear.py": "torch/nn/linear.py",
        "/usr/lib/python3.12/json/decoder.py": "json/decoder.py",
        "/home/me/pytorch/torch/nn/linear.py": "torch/nn/linear.py",
        "<frozen runpy>": "<frozen runpy>",
    }
    assert short_names(paths) == paths


def test_folders_without_anything_in_common_are_shown_whole():
    assert short_names(["/a/b.py", "/c/d.py"]) == {"/a/b.py": "a/b.py", "/c/d.py": "c/d.py"}
    assert short_names(["train.py", "/c/d.py"]) == {"train.py": "train.py", "/c/d.py": "c/d.py"}
