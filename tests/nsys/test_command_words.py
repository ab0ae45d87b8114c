"""What may be written down of a command line and an environment; the key of hashed values. Secrets: tests/attack/test_sidecar_secrets.py."""

import os
import shlex
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given, strategies as st

from nsyspipe.nsys import command_words
from nsyspipe.nsys.command_words import (
    MASK,
    Mask,
    command_without_launcher,
    recorded_command,
    recorded_environment,
    without_words,
)
from nsyspipe.nsys.secrets import HashKey, hash_key, main

KEY = HashKey(b"k" * 32)


def of(*words):
    return recorded_command(words, Mask())


# Zeros at the end of a number do not count, nor do powers of two.
STAND, HIDDEN, NAMES, NUMBERS = (
    text.split()
    for text in (
        """0 1 -1 +2 64 123 1_000_000 0.1 .5 3. 1e-4 2.5E+10 25MB 4k 10% 100000000000 0.00001 1073741824 41943040 0.000123
        true False NONE off adamw BF16 bf16-mixed cuda:0 max-autotune cuda,nvtx [0.9,0.95] (1,2) 1,2,4,8 0-3,7 [adamw,sgd]
        a.yaml train_v2.py ds_config.json hf_train.py hf_llama3_8b.yaml hf_config.json npm_run.json sk-learn.py
        ResNet50.py ds_zero3.json Llama3_8B_Pretrain.yaml trainDDPModel.yaml h100x8_bs4k.yaml""",
        """1234 4712 1234567 1234,5 -4711 12345678 1.23456789 007 00 1234567891 [1,2 (1,2] 1,2, 1-2-3 1234-5678 1.2.3 0x1f
        4111,1111,1111,1111 word adamw2 adamw;sgd runs/model.pt a.txt x.yaml.bak ١٢ deadbeefdeadbeefdeadbeef.yaml
        20261121-083012-4711.json 04d1ae4e.json x:y.json $HOME * {} hmac:0123abcd0""",
        """lr batch-size nproc_per_node learningRate numGPUs optim.lr trainer.model/lr bf16 P2P BS load-in-4bit fp8-e4m3
        adam_beta1 gradient-as-bucket-view zero3.stage 2d""",
        "1234 1234567 -4711 0.0012345 [1234,5678] 12345678 4111,1111,1111,1111",
    )
)
NO_NAMES = [
    "aB3dE6gH",
    "a" * 65,
    "abcdefghijklmnopqrstuvwxyz",
    "x y",
    "é",
    "12345",
    "a__b",
    "-a",
    "a$",
]
OF_TRAINING = ("steps", "seed", "optim.lr", "adam_beta1", "maxSteps", "lr")  # may have seven digits
COMMANDS = [
    *([f"--{name}={number}" for number in NUMBERS] for name in OF_TRAINING),
    *([f"--{name}", "1", f"--{name}=1", f"--{name}:1", f"+{name}=1"] for name in NAMES),
    # What is no name is hidden with what follows.
    *([f"--{name}" if name else "--=1", "1", "2", "--lr", "3"] for name in (*NO_NAMES, "")),
    ["/home/me/train.py", "--config=../me/a.yaml", "x=@/me/b.json", "--config=/a/hf_train.py"],
    # Free words are hidden, even numbers and words of training.
    ["python3", "train.py", "4711", "adamw", "true"],
    *(["--steps", "3", "4"], ["--steps", "3", "--", "4"]),
    # A short option may have its value with it.
    ["-n8", "-x", "-x=1", "-lr", "0.1"],
    *(["-p2", "-n1234", "-verbose"], ["-verbose", "1", "-é"]),
    # What follows an option of a secret is hidden, whatever it is.
    ["--token", "--lr", "1", "--steps", "3"],
    *(["--use-auth", "--lr", "1"], ["python", "-u", "train.py"], ["-u", "1000", "-p", "80"]),
    # How many tokens there are is no secret.
    [
        "--max-tokens",
        "512",
        "--num-keys=3",
        "max_new_tokens=64",
        "--key-dim",
        "64",
        "--total-tokens=8472615",
    ],
    [
        "--key-dim=8472615",
        "--new-tokens=8",
        "--max-tokens=abc",
        "--token-id",
        "5",
        "--max-api-tokens=7",
    ],
]


def test_words_are_written_down_like_this(pinned):
    pinned(
        "launchers/words.txt",
        "".join(f"{shlex.join(words)}\n  {shlex.join(of(*words))}\n" for words in COMMANDS),
    )


@pytest.mark.parametrize(("texts", "is_hidden"), [(STAND, False), ([*HIDDEN, "a b.yaml"], True)])
def test_numbers_switches_files_and_words_of_training_stand_and_nothing_else(texts, is_hidden):
    for text in texts:
        written = MASK if is_hidden else text
        assert of(f"--x={text}", f"a.b={text}") == [f"--x={written}", f"a.b={written}"], text
        assert of("--x", text) == ["--x", written], text


def test_a_value_has_one_hash_per_name_and_key():
    first, again, other, elsewhere = recorded_command(
        ["--a=word", "--a=word", "--a=word2", "--b=word"], KEY
    )
    assert command_words.HASHED.fullmatch(first.partition("=")[2])
    assert first == again
    # HMAC-SHA256 of b"value\0a\0word" with 32 bytes k, by another implementation (openssl dgst
    # -mac).
    assert first == "--a=hmac:21a847f8"
    assert len({first.partition("=")[2], other.partition("=")[2], elsewhere.partition("=")[2]}) == 3
    assert recorded_command(["--a=word"], HashKey(b"l" * 32)) != [first]
    # Of long commands the begin is kept.
    assert of(*["--lr"] * 2000) == [*["--lr"] * 1000, "…"]
    assert of("--x=" + "1" * 5000) == [f"--x={MASK}"]


@pytest.mark.slow
@given(st.lists(st.text() | st.from_regex(r"-{0,2}[a-z]{0,3}[=:]?[\w.,/+-]{0,9}", fullmatch=True)))
def test_who_reads_what_was_written_hides_nothing_more(words):
    written = recorded_command(words, KEY)
    assert recorded_command(written, Mask()) == written
    assert all(word.isascii() or word == "…" for word in written)
    assert len(written) == len(words)


@pytest.mark.parametrize(
    "word",
    [
        "a" * 4000,
        "--" + "aA" * 2000,
        "a.-" * 1300,
        "=" * 4000,
        "a=" * 2000,
        "1," * 2000,
        "[" * 4000,
        "_1a" * 1300,
    ],
    ids=lambda word: word[:10],
)
def test_no_word_makes_it_slow(word):
    start = time.process_time()
    of(*[word] * 200, f"--{word}", f"--x={word}", "x" * 2_000_000)
    assert time.process_time() - start < 5


def test_of_a_message_only_what_it_quotes_is_hidden():
    words = [
        "nsys",
        "profile",
        "--output=/me/x",
        "python3",
        "train.py",
        "--data",
        "plan",
        "--lr",
        "0.1",
        "-pabcdefg",
    ]
    said = "cannot write /me/x.nsys-rep for train.py --data plan --lr 0.1 -pabcdefg as planned"
    assert without_words(said, words) == (
        "cannot write ***.nsys-rep for train.py --data *** --lr 0.1 -*** as planned"
    )
    assert without_words("No space left on device", words) == "No space left on device"


def test_each_variable_stands_once_with_values_that_compile():
    names = list(command_words.VARIABLES)
    assert len(names) == 54
    assert {*command_words.OF_LINKS} < {*names}
    assert all(
        name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "CUDA_", "PYTORCH_"))
        for name in names
    )
    assert not [one for one in names if command_words.allows(one, "Zx81-plant3d")]
    # Other variables are not there at all.
    others = (
        "HOME PATH HF_TOKEN NCCL_PSK NCCL_DEBUG_FILE NCCL_COMM_ID OMP_NUM_THREADS SLURM_NNODES "
        "CUDA_HOME nccl_algo"
    )
    found = recorded_environment(
        dict.fromkeys(others.split(), "1") | {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}, KEY
    )
    assert list(found.items()) == [("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "INFO")]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("NCCL_P2P_DISABLE", ["0", "1"], ["11", "x", ""]),
        ("NCCL_P2P_LEVEL", ["NVL", "sys", "5"], ["NVLX", "55"]),
        (
            "NCCL_ALGO",
            ["Ring", "Tree,Ring", "^NVLS,NVLSTree"],
            ["Ringo", "Ring;Tree", "allreduce:ring"],
        ),
        ("NCCL_IB_HCA", ["mlx5_0", "=mlx5_0:1,mlx5_1:1", "^mlx5_2"], ["secret_0", "mlx5_abc"]),
        (
            "NCCL_SOCKET_IFNAME",
            ["eth0", "^lo,docker0", "enp0s31f6", "ib0,ib1", "=bond0"],
            ["me", "eth0;x"],
        ),
        ("NCCL_BUFFSIZE", ["4194304", "4M", "1048576"], ["41943041", "4X"]),
        ("CUDA_VISIBLE_DEVICES", ["", "-1", "0,1,2,3"], ["GPU-1a2b", "0 1"]),
        (
            "PYTORCH_CUDA_ALLOC_CONF",
            ["expandable_segments:True,max_split_size_mb:512"],
            ["a:b", "x"],
        ),
        ("TORCH_DISTRIBUTED_DEBUG", ["DETAIL"], ["DETAILS"]),
    ],
)
def test_a_variable_has_its_own_values(name, good, bad):
    for text in good:
        assert recorded_environment({name: text}, Mask()) == {name: text}, text
        assert of(f"{name}={text}") == [f"{name}={text}"] or not text, text
    for text in bad:
        assert recorded_environment({name: text}, Mask()) == {name: MASK}, text


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state" / "nsyspipe"


def key_of(state):
    return hash_key({"XDG_STATE_HOME": str(state.parent)})


def is_own(key):
    assert (key.key_id == command_words.PER_CAPTURE) == (key.note is not None)
    return key.key_id == command_words.PER_CAPTURE


def test_it_is_made_once_and_readable_by_its_owner_alone(state):
    old = os.umask(0)  # nothing is left to the mask
    try:
        first = key_of(state)
    finally:
        os.umask(old)
    assert not is_own(first)
    file = state / "hash-key"
    assert (file.read_bytes(), len(first.key)) == (first.key, 32)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (file, state)] == [0o600, 0o700]
    assert list(state.iterdir()) == [file]
    again = key_of(state)
    assert (again.key, again.key_id) == (first.key, first.key_id)


def test_its_name_tells_keys_apart_and_nothing_of_them(state, tmp_path):
    first, other = key_of(state), hash_key({"HOME": str(tmp_path), "XDG_STATE_HOME": "relative"})
    # Without XDG it lies where the standard says.
    assert (tmp_path / ".local/state/nsyspipe/hash-key").read_bytes() == other.key
    assert first.key_id != other.key_id
    assert len(first.key_id) == 8
    assert first.key_id not in first.key.hex()
    assert first.hide("", "which key") != f"hmac:{first.key_id}"
    # 33 would be bytes of it in decimal
    assert first.key.hex() not in repr(first)
    assert repr(first.key) not in repr(first)


SIZES_AND_MODES = {
    "short": (31, 0o600),
    "long": (33, 0o600),
    "empty": (0, 0o600),
    "open": (32, 0o644),
    "group": (32, 0o640),
}
OTHERS = ("link", "dangling", "directory", "pipe", "folder link", "folder open", "folder file")


@pytest.mark.parametrize("sick", [*SIZES_AND_MODES, *OTHERS])
def test_a_key_that_others_may_know_or_have_put_there_is_refused(state, tmp_path, sick, worded):
    file = state / "hash-key"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "hash-key").write_bytes(b"k" * 32)
    (elsewhere / "hash-key").chmod(0o600)
    state.mkdir(parents=True, mode=0o700)
    if sick in {"folder link", "folder file"}:
        state.rmdir()
    if sick in SIZES_AND_MODES:
        size, mode = SIZES_AND_MODES[sick]
        file.write_bytes(b"k" * size)
        file.chmod(mode)
    else:
        {
            "link": lambda: file.symlink_to(elsewhere / "hash-key"),
            "dangling": lambda: file.symlink_to(tmp_path / "new"),
            "directory": file.mkdir,
            "pipe": lambda: os.mkfifo(file, 0o600),
            "folder link": lambda: state.symlink_to(elsewhere),
            "folder file": state.touch,
            "folder open": lambda: state.chmod(0o777),
        }[sick]()
    key = key_of(state)
    assert is_own(key)
    assert key.key != b"k" * 32
    worded(key.note)
    assert not (tmp_path / "new").exists()
    assert (elsewhere / "hash-key").read_bytes() == b"k" * 32
    assert key_of(state).key != key.key


def test_each_capture_has_its_own_key_without_a_usable_state_directory(state, monkeypatch, worded):
    for environment in ({}, {"HOME": ""}, {"HOME": "x"}, {"HOME": "/dev/null"}, {"HOME": "/proc"}):
        first, second = hash_key(environment), hash_key(environment)
        assert is_own(first), environment
        assert first.key != second.key, environment
        assert first.hide("a", "b") != second.hide("a", "b"), environment
    key_of(state)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    key = key_of(state)
    assert is_own(key)
    worded(key.note)


@pytest.mark.slow
def test_of_several_captures_that_begin_at_once_one_makes_it(state):
    code = "from nsyspipe.nsys.secrets import hash_key; print(hash_key().key_id)"
    variables = os.environ | {"XDG_STATE_HOME": str(state.parent)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE)
        for _ in range(8)
    ]
    assert {process.communicate(timeout=30)[0] for process in started} == {
        f"{key_of(state).key_id}\n".encode()
    }
    assert [path.name for path in state.iterdir()] == ["hash-key"]


def test_words_are_printed_as_they_may_be_written_down(state, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent))
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    words = ["--environment", "ddp.sh", "-n", "2", "--", "--lr", "0.1", "--data", "a b"]
    before = dict(os.environ)
    main(words)
    assert dict(os.environ) == before  # the key goes into no environment
    first = capsys.readouterr().out
    *rest, value = first.split()
    assert rest[-7:] == ["ddp.sh", "-n", "2", "--", "--lr", "0.1", "--data"]
    assert "NCCL_P2P_DISABLE=1" in rest
    assert command_words.HASHED.fullmatch(value)
    main(words)
    assert capsys.readouterr().out == first
    # Hashes by a key that is forgotten would differ each time.
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    main(words[1:])
    assert capsys.readouterr().out == "ddp.sh -n 2 -- --lr 0.1 --data '***' "


SUPERVISOR = ["python3", "-m", "nsyspipe.capture.rank", "--exit-timeout=600"]
NSYS = ["nsys", "profile", "--trace=cuda"]
PROGRAM = ["python3", "train.py", "--output=model"]


def test_a_command_of_a_launcher_is_left_without_supervisor_and_report_name():
    recorded = [*SUPERVISOR, "--nsys-words=4", "--", *NSYS, "--output=hmac:1", *PROGRAM]
    assert command_without_launcher(recorded) == [*NSYS, *PROGRAM]


@pytest.mark.parametrize(
    "recorded",
    [
        PROGRAM,
        [*NSYS, "--output=before", "--", *PROGRAM],
        [*SUPERVISOR, "--nsys-words=4", *NSYS, *PROGRAM],
        [*SUPERVISOR, "--nsys-words=many", "--", *NSYS, *PROGRAM],
        [*SUPERVISOR, "--nsys-words=99999", "--", *NSYS, *PROGRAM],
    ],
)
def test_other_commands_stay_as_they_were_recorded(recorded):
    assert command_without_launcher(recorded) == recorded
