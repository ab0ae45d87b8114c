"""What may be written down of a command line and of an environment; secrets: tests/attack/test_sidecar_secrets.py."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given, strategies as st

from nsyspipe.nsys import command_words
from nsyspipe.nsys.command_words import HASHED, MASK, Mask, recorded_command, recorded_environment, without_words
from nsyspipe.nsys.secrets import HashKey

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
NO_NAMES = ["aB3dE6gH", "a" * 65, "abcdefghijklmnopqrstuvwxyz", "x y", "é", "12345", "a__b", "-a", "a$"]
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
    ["--max-tokens", "512", "--num-keys=3", "max_new_tokens=64", "--key-dim", "64", "--total-tokens=8472615"],
    ["--key-dim=8472615", "--new-tokens=8", "--max-tokens=abc", "--token-id", "5", "--max-api-tokens=7"],
]


def test_words_are_written_down_like_this(pinned):
    told = "".join(f"{shlex.join(words)}\n  {shlex.join(of(*words))}\n" for words in COMMANDS)
    pinned("launchers/words.txt", told)


@pytest.mark.parametrize(("texts", "is_hidden"), [(STAND, False), ([*HIDDEN, "a b.yaml"], True)])
def test_numbers_switches_files_and_words_of_training_stand_and_nothing_else(texts, is_hidden):
    for text in texts:
        written = MASK if is_hidden else text
        assert of(f"--x={text}", f"a.b={text}") == [f"--x={written}", f"a.b={written}"]
        assert of("--x", text) == ["--x", written]


def test_a_value_has_one_hash_per_name_and_key():
    first, again, other, elsewhere = recorded_command(["--a=word", "--a=word", "--a=word2", "--b=word"], KEY)
    assert HASHED.fullmatch(first.partition("=")[2])
    assert first == again
    # HMAC-SHA256 of b"value\0a\0word" with 32 bytes k, by another implementation (openssl dgst -mac).
    assert first == "--a=hmac:21a847f8"
    assert len({first.partition("=")[2], other.partition("=")[2], elsewhere.partition("=")[2]}) == 3
    assert recorded_command(["--a=word"], HashKey(b"l" * 32)) != [first]
    # Of long commands the begin is kept.
    assert of(*["--lr"] * 2000) == [*["--lr"] * 1000, "…"]
    assert of("--x=" + "1" * 5000) == [f"--x={MASK}"]


@given(st.lists(st.text() | st.from_regex(r"-{0,2}[a-z]{0,3}[=:]?[\w.,/+-]{0,9}", fullmatch=True)))
def test_who_reads_what_was_written_hides_nothing_more(words):
    written = recorded_command(words, KEY)
    assert recorded_command(written, Mask()) == written
    assert all(word.isascii() or word == "…" for word in written)
    assert len(written) == len(words)


@pytest.mark.parametrize("word", [
    "a" * 4000, "--" + "aA" * 2000, "a.-" * 1300, "=" * 4000, "a=" * 2000, "1," * 2000, "[" * 4000, "_1a" * 1300,
], ids=lambda word: word[:10])  # fmt: skip
def test_no_word_makes_it_slow(word):
    start = time.process_time()
    of(*[word] * 200, f"--{word}", f"--x={word}", "x" * 2_000_000)
    assert time.process_time() - start < 5


def test_of_a_message_only_what_it_quotes_is_hidden():
    words = ["nsys", "profile", "--output=/me/x", "python3", "train.py", "--data", "plan", "--lr", "0.1", "-pabcdefg"]
    said = "cannot write /me/x.nsys-rep for train.py --data plan --lr 0.1 -pabcdefg as planned"
    assert without_words(said, words) == ("cannot write ***.nsys-rep for train.py --data *** --lr 0.1 -*** as planned")
    assert without_words("No space left on device", words) == "No space left on device"


def test_each_variable_stands_once_with_values_that_compile():
    names = list(command_words.VARIABLES)
    assert len(names) == 54
    assert {*command_words.OF_LINKS} < {*names}
    assert all(name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "CUDA_", "PYTORCH_")) for name in names)
    assert not [one for one in names if command_words.allows(one, "Zx81-plant3d")]
    # Other variables are not there at all.
    others = "HOME PATH HF_TOKEN NCCL_PSK NCCL_DEBUG_FILE NCCL_COMM_ID OMP_NUM_THREADS SLURM_NNODES CUDA_HOME nccl_algo"
    found = recorded_environment(dict.fromkeys(others.split(), "1") | {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}, KEY)
    assert list(found.items()) == [("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "INFO")]


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("NCCL_P2P_DISABLE", ["0", "1"], ["11", "x", ""]),
    ("NCCL_P2P_LEVEL", ["NVL", "sys", "5"], ["NVLX", "55"]),
    ("NCCL_ALGO", ["Ring", "Tree,Ring", "^NVLS,NVLSTree"], ["Ringo", "Ring;Tree", "allreduce:ring"]),
    ("NCCL_IB_HCA", ["mlx5_0", "=mlx5_0:1,mlx5_1:1", "^mlx5_2"], ["secret_0", "mlx5_abc"]),
    ("NCCL_SOCKET_IFNAME", ["eth0", "^lo,docker0", "enp0s31f6", "ib0,ib1", "=bond0"], ["me", "eth0;x"]),
    ("NCCL_BUFFSIZE", ["4194304", "4M", "1048576"], ["41943041", "4X"]),
    ("CUDA_VISIBLE_DEVICES", ["", "-1", "0,1,2,3"], ["GPU-1a2b", "0 1"]),
    ("PYTORCH_CUDA_ALLOC_CONF", ["expandable_segments:True,max_split_size_mb:512"], ["a:b", "x"]),
    ("TORCH_DISTRIBUTED_DEBUG", ["DETAIL"], ["DETAILS"]),
])  # fmt: skip
def test_a_variable_has_its_own_values(name, good, bad):
    for text in good:
        assert recorded_environment({name: text}, Mask()) == {name: text}
        assert of(f"{name}={text}") == [f"{name}={text}"] or not text
    for text in bad:
        assert recorded_environment({name: text}, Mask()) == {name: MASK}
