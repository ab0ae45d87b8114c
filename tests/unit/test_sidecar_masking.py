"""What a sidecar may hold of a command line and of an environment."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st
from nsyspipe.masking import allowed_environment, masked_command

SECRET = "Zx81-plant3d"


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--api-key", SECRET],
        ["train.py", "--api_key", SECRET],
        ["train.py", "-password", SECRET],
        ["train.py", f"--token={SECRET}"],
        ["train.py", f"--token={SECRET},{SECRET}"],
        ["env", f"WANDB_API_KEY={SECRET}", "train.py"],
        ["env", f"My_Secret={SECRET}"],
        ["docker", "run", "-e", f"HF_TOKEN={SECRET}"],
        ["docker", "run", f"--env=HF_TOKEN={SECRET}"],
        ["docker", "run", f"--env=A=1,HF_TOKEN={SECRET}"],
        ["train.py", f"+wandb.credential={SECRET}"],
        ["train.py", f"https://me:{SECRET}@example.org/data"],
        ["train.py", f"--data=s3://{SECRET}@example.org/data"],
        ["train.py", f"https://me:{SECRET}#2@example.org/data"],
        ["train.py", f"https://example.org/data?a=1&access_token={SECRET}&b=2"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["curl", "-H", f"X-Auth:{SECRET}"],
        ["bash", "-c", f"export TOKEN={SECRET}; python train.py"],
        ["bash", "-c", f"TOKEN='{SECRET}' python train.py"],
        ["bash", "-c", f"python train.py --passwd {SECRET} --steps 3"],
        ["train.py", f'{{"api_key": "{SECRET}", "lr": 0.1}}'],
        ["train.py", f"{{'api_key':'{SECRET}'}}"],
        ["train.py", f'{{"api_key": "abc,{SECRET}"}}'],
        ["train.py", f'{{"api_key": "abc {SECRET}"}}'],
        ["train.py", f'{{"api_keys": ["abc", "{SECRET}"]}}'],
        ["bash", "-c", f'train.py "{{\\"api_key\\": \\"abc {SECRET}\\"}}"'],
        ["bash", "-c", f"train.py --token '{SECRET}' --steps 3"],
        ["bash", "-c", f'train.py --token "abc {SECRET}" --steps 3'],
        ["bash", "-c", f"train.py '--token' '{SECRET}'"],
        ["bash", "-c", f'train.py --token=abc"d {SECRET}"'],
        ["bash", "-c", f"train.py --keys a {SECRET} --steps 3"],
        ["bash", "-c", f"train.py --token --password {SECRET}"],
        ["bash", "-c", f"TOKEN=abc,{SECRET} train.py"],
        ["bash", "-c", f"mysql -p{SECRET} runs"],
        ["bash", "-c", f"curl -u me:{SECRET} https://example.org"],
        ["bash", "-c", f"curl -u 'me:a {SECRET}' https://example.org"],
        ["bash", "-c", f'curl -H "Authorization: token {SECRET}" https://example.org'],
        ["bash", "-c", f"curl -H 'Cookie: a=b; c={SECRET}' https://example.org"],
        ["python", "-c", f"d['token'] = 'a {SECRET}'"],
        ["curl", "-H", f"Authorization: token {SECRET}"],
        ["curl", "-H", f"Cookie: a=b; c={SECRET}"],
        ["curl", "-H", "Authorization:", "Bearer", SECRET],
        ["curl", "-u", f"me:{SECRET}"],
        ["curl", f"-ume:{SECRET}"],
        ["mysql", f"-p{SECRET}"],
        ["train.py", f"https://example.org/data?X-Amz-Signature={SECRET}&b=2"],
        ["train.py", f"https://example.org/data?sv=1&sig={SECRET}"],
        ["train.py", f"postgres://me:p/{SECRET}@example.org/runs"],
        ["train.py", "--pwd", SECRET],
        ["train.py", "--pass", SECRET],
        ["train.py", "--db_pass", SECRET],
        ["train.py", "--passphrase", SECRET],
        ["train.py", "--passcode", SECRET],
        ["train.py", "--cookie", SECRET],
        ["train.py", "--token", f"--{SECRET}"],
        ["train.py", "--token", "--password", SECRET],
        ["train.py", "--keys", "a", SECRET, SECRET],
    ],
    ids=" ".join,
)
def test_a_secret_is_masked_wherever_it_stands(words):
    masked = masked_command(words)
    assert SECRET not in " ".join(masked)
    assert len(masked) == len(words)


def test_a_token_of_a_well_known_service_needs_no_name():
    token = "hf_" + "a1B2" * 6
    assert masked_command(["train.py", "login", token, f"x:{token}"]) == [
        "train.py",
        "login",
        "***",
        "x:***",
    ]


def test_the_rest_of_a_command_stays_as_it_was():
    words = [
        "torchrun",
        "--nproc_per_node=2",
        "--rdzv-endpoint",
        "monkey01:29500",
        "--no-python",
        "nsys",
        "profile",
        "--output=x_%q{RANK}",
        "python",
        "train.py",
        "--lr",
        "-0.1",
        "https://example.org/a?b=c",
        "",
    ]
    assert masked_command(words) == words


def test_an_option_that_follows_a_secret_name_is_no_value_of_it():
    assert masked_command(["x", "--use-auth", "--steps", "3"]) == [
        "x",
        "--use-auth",
        "--steps",
        "3",
    ]
    assert masked_command(["x", "--use-auth", "-n", "3"]) == ["x", "--use-auth", "-n", "3"]
    assert masked_command(["x", "--token", "-Abc"]) == ["x", "--token", "***"]


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "5", "--token-dropout", "0.1", "max_tokens=4096", "--n-keys", "3"],
        ["bash", "-c", "train.py --max-tokens 5 --tokens-per-step 4_096 --key-dim=64"],
        ['{"max_tokens": 512, "lr": 0.1}'],
        ["--tokenizer", "gpt2", "--sigma", "0.1", "--n-passes", "2"],
        ["docker", "run", "-u", "1000:1000", "-p", "8080:80", "python", "-u", "train.py"],
        ["mpirun", "-ppn", "8", "-port", "29500", "-path", "x", "-p2"],
    ],
)
def test_numbers_and_names_that_only_sound_alike_stay(words):
    assert masked_command(words) == words


def test_only_the_secret_is_masked_not_what_stands_around_it():
    script = "A=1,TOKEN='a b',B=2 train.py --keys a b -x --pass=c; echo done"
    assert masked_command(["bash", "-c", script]) == [
        "bash",
        "-c",
        "A=1,TOKEN='***',B=2 train.py --keys *** -x --pass=***; echo done",
    ]
    assert masked_command(['{"api_key": "a, b", "lr": 0.1}']) == ['{"api_key": "***", "lr": 0.1}']
    assert masked_command(["--keys", "a", "b", "--lr", "1"]) == [
        *("--keys", "***", "***", "--lr", "1"),
    ]


def test_what_drives_a_terminal_is_replaced_and_long_words_are_cut():
    assert masked_command(["a\x1b[31m\nb", "\udc80"]) == ["a�[31m�b", "�"]
    (word,) = masked_command(["a" * 5000])
    assert word == "a" * 999 + "…"
    assert masked_command(["a"] * 2000) == [*["a"] * 1000, "…"]


@pytest.mark.parametrize(
    "word",
    [
        *("key" * 300_000, "key=" * 250_000, "a.-" * 300_000, "://" * 300_000, '"key" ' * 100_000),
        *("a://b:" * 1000, "a://b:" * 600 + "@a:", "--key " * 1000, "--keys a " * 1000),
        *("key='" * 1000, 'key=\\"' * 700, "\\" * 4000, "-p'" * 1500, "-u a:" * 1000, "-u " * 1500),
        *(
            "key=a,b.c" * 500,
            "key:" + " " * 4000,
            "--use-" * 700,
            "num_" * 1000,
            "--max-tokens " * 300,
        ),
    ],
    ids=lambda word: word[:10],
)
def test_no_word_makes_masking_slow(word):
    start = time.process_time()
    masked_command([word, *[word[:4000]] * 50])
    assert time.process_time() - start < 5


@given(st.lists(st.text()))
def test_any_words_are_masked_once_and_for_all(words):
    masked = masked_command(words)
    assert masked_command(masked) == masked
    assert all(word.isprintable() for word in masked)


# --- environment ----------------------------------------------------------------------------------


def test_of_the_environment_only_what_sets_up_communication_is_kept():
    given_variables = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_DEBUG_FILE": "/home/me/runs/ddp.nccl.%h.%p.log",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "OMP_NUM_THREADS": "8",
        "SLURM_NNODES": "2",
        # and none of these
        "NCCL_SECRET_KEY": SECRET,
        "NCCL_API_TOKEN": SECRET,
        "NCCL_PW": SECRET,
        "NCCL_PSK": SECRET,
        "TORCH_NCCL_PW": SECRET,
        "XNCCL_DEBUG": "1",
        "nccl_debug": "1",
        "NCCL_A B": "1",
        "HF_TOKEN": SECRET,
        "HOME": "/home/me",
        "USER": "me",
        "PATH": "/usr/bin",
        "SLURM_JOB_ACCOUNT": "me",
        "CUDA_HOME": "/usr/local/cuda",
    }
    assert list(allowed_environment(given_variables).items()) == [
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("NCCL_DEBUG_FILE", "ddp.nccl.%h.%p.log"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("NCCL_P2P_DISABLE", "1"),
        ("OMP_NUM_THREADS", "8"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("SLURM_NNODES", "2"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    ]


def test_values_are_short_printable_and_hold_no_secret():
    found = allowed_environment(
        {
            "NCCL_DEBUG": "x" * 500,
            "NCCL_ALGO": "Ring\x1b[2J",
            "NCCL_NET": f"token={SECRET}",
        }
    )
    assert found == {
        "NCCL_ALGO": "Ring�[2J",
        "NCCL_DEBUG": "x" * 199 + "…",
        "NCCL_NET": "token=***",
    }
