"""Secrets in command lines, variables, nsys's messages and reports: nothing that is written down or said holds them."""

import json
import os
import re
import shlex
import shutil
import subprocess

import pyarrow.parquet as pq
import pytest

from nsyspipe.capture.sidecar import (
    Place,
    Surroundings,
    gather_surroundings,
    program_directory,
    sidecar_document,
)
from nsyspipe.nsys.command_words import Mask, recorded_command, without_words
from nsyspipe.nsys.secrets import HashKey, main
from nsyspipe.reader.sidecar import parse_sidecar
from nsyspipe.redact.redact import redact
from nsyspipe.report.redaction import redaction_text
from tests.build.planted import SHOWN, found_in, plant
from tests.build.programs import program
from tests.build.tools import edit
from tests.build.trace import KERNEL, steady_rank
from tests.cli.tools import nsyspipe_here
from tests.launchers.conftest import machine, reports  # noqa: F401 - a fixture, and what it needs
from tests.launchers.jobs import ddp

S = "Zx81-plant3d"
KEY = HashKey(b"k" * 32)
NOTHING = Surroundings(None, (), None, None, None, None, None, "3.11.9", None, None)

# Tokens as services make them (none is real): the secret is the whole of each.
TOKENS = (
    "nvapi-aB3dE6gH9jK2mN5pQ8sT1vW4yZ7",
    "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "sk-proj-aB3dE6gH9jK2mN5p",
    "sk-ant-api03-aB3dE6gH9jK2",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0aBcDeFgHiJkL",
    "glpat-aB3dE6gH9jK2mN5pQ8sT",
    "xoxb-123456789012-123456789012-aB3dE6gH9jK2",
    "xapp-1-A0123-456-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AIzaSyA-aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3d",
    "ya29.a0AfH6SMBaB3dE6gH9jK2",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN",
    "npm_aB3dE6gH9jK2mN5pQ8sT1vW4yZ7",
    "pypi-AgEIcHlwaS5vcmcCJDU",
    "dckr_pat_aB3dE6gH9jK2mN5p",
    "dop_v1_0123456789abcdef0123456789abcdef",
    "r8_aB3dE6gH9jK2mN5pQ8sT1vW4yZ7",
    "pk.eyJ1IjoibWUifQ.aB3dE6gH9jK2",
    "rk_live_aB3dE6gH9jK2mN5p",
    "SG.aB3dE6gH9jK2.mN5pQ8sT1vW4yZ7",
    "EAACEdEose0cBAaB3dE6",
    "0123456789abcdef0123456789abcdef01234567",
    "550e8400-e29b-41d4-a716-446655440000",
    "c2VjcmV0cGFzc3dvcmQ=",
    "c2VjcmV0cGFzc3dvcmQ==",
    "correct horse battery staple",
    "hunter-two-three",
    "Tr0ub4dor&3",
    "пароль-и-соль",
    "AGE-SECRET-KEY-1QQQQQQQQQQQQ",
    "-----BEGIN PRIVATE KEY-----MIIEvQIBADANBg",
)
# Numbers that are secrets.
NUMBERS = (
    "4111111111111111",
    "123-45-6789",
    "+14155550123",
    "4111,1111,1111,1111",
    "87654321",
    "0042",
    "007",
    "482910377",
)
# Names whose values are never written, not even 4 digits.
NAMES = [
    "pin",
    "jwt",
    "pw",
    "pwd",
    "pass",
    "passwd",
    "password",
    "passphrase",
    "passcode",
    "token",
    "tok",
    "access-token",
    "refresh_token",
    "auth",
    "authorization",
    "api-key",
    "apikey",
    "api_key",
    "apiKey",
    "APIKey",
    "key",
    "secret",
    "client-secret",
    "sk",
    "ak",
    "otp",
    "totp",
    "mfa-code",
    "2fa-code",
    "cookie",
    "session",
    "session-id",
    "sig",
    "signature",
    "sas",
    "psk",
    "cred",
    "creds",
    "credential",
    "credentials",
    "webhook",
    "webhook-url",
    "private-key",
    "license",
    "licence",
    "account",
    "account-id",
    "user",
    "username",
    "login",
    "dsn",
    "proxy",
    "url",
    "endpoint",
    "bearer",
    "nonce",
    "salt",
    "cert",
    "pem",
    "ssh-key",
    "gpg-key",
    "phone",
    "email",
    "card",
    "cvv",
    "ssn",
    "iban",
    "wandb-api-key",
    "hf.token",
    "db_pass",
    "db.pw",
    "trainer.logger.api_key",
    "aws_secret_access_key",
    "oauth",
    "invite-code",
    "pat",
    *(
        "new-pass",
        "max-pass",
        "total-pass",
        "new-key",
        "seq-key",
        "limit-token",
        "new-token",
        "batch-pin",
    ),
    *(
        "pincode",
        "otpcode",
        "dbpw",
        "adminpw",
        "wandbpw",
        "dbpass",
        "userpass",
        "sshpass",
        "PGPASS",
    ),
    *(
        "wifipsk",
        "apitok",
        "usertok",
        "otps",
        "smspin",
        "simpin",
        "2fa",
        "pword",
        "pswd",
        "psw",
        "puk",
    ),
    *(
        "tan",
        "kennwort",
        "mdp",
        "vault",
        "unlock",
        "serial",
        "badge",
        "cardnumber",
        "verification",
        "seed-phrase",
    ),
    *[
        "csc",
        "cvn",
        "security",
        "sesame",
        "watchword",
        "combo",
        "first-name",
        "lastName",
        "firstname",
        "nick",
    ],
]
# How a value may stand in a command; %s is it.
FORMS = [
    shlex.split(form)
    for form in (
        "train.py %s",
        "train.py --data %s",
        "train.py --data=%s",
        "train.py --data:%s",
        "train.py --lr 0.1 %s",
        "train.py --x 1 %s 2",
        "train.py -d %s",
        "train.py -d=%s",
        "train.py -p%s",
        "train.py -Dkey=%s",
        "train.py -D%s=1",
        "train.py --token --%s",
        "train.py --token -%s",
        "train.py --token --password %s",
        "train.py --keys a %s b %s",
        "train.py --%s",
        "train.py --%s=1",
        "train.py -%s",
        "train.py x=%s",
        "train.py +a.b=%s",
        "train.py ++a.b=%s",
        "train.py ~%s",
        "train.py --set=a.b=%s",
        "train.py --env=A=1,B=%s",
        "train.py --env A=%s",
        "train.py @%s",
        "train.py --config @/run/%s/args",
        "train.py --config /home/%s/c.yaml",
        "/home/%s/bin/python3 /home/%s/train.py",
        'train.py \'{"api_key": "%s", "lr": 0.1}\'',
        "train.py '{'\"'\"'api_key'\"'\"':'\"'\"'%s'\"'\"'}'",
        'train.py \'--override={"a": ["%s"]}\'',
        "train.py [%s,1]",
        "train.py --list=[adamw,%s]",
        "train.py https://me:%s@example.org/data",
        "train.py https://hooks.example.org/services/T00/B00/%s",
        "train.py --logger=https://example.org/hook?token=%s&b=2",
        "train.py https://example.org/%s/c.yaml",
        "train.py https://example.org/c.yaml?sig=%s",
        "train.py s3://%s@bucket/c.json",
        "train.py postgres://me:p/%s@example.org/runs",
        "train.py me:%s@host:/data/c.yaml",
        "curl -H 'Authorization: Bearer %s'",
        "curl -H X-Auth:%s",
        "curl -H Authorization: Bearer %s",
        "curl -u me:%s",
        "curl -ume:%s",
        "mysql -p%s runs",
        "docker run -e HF_TOKEN=%s",
        "docker run --env=HF_TOKEN=%s",
        "env WANDB_API_KEY=%s train.py",
        "env NCCL_P2P_LEVEL=%s train.py",
        "env NCCL_COMM_ID=%s train.py",
        "env PYTHONPATH=/home/%s train.py",
        "bash -c 'export TOKEN=%s; python train.py --steps 3'",
        "bash -c 'python train.py --passwd '\"'\"'%s'\"'\"''",
        "python -c 'd['\"'\"'token'\"'\"'] = '\"'\"'%s'\"'\"''",
        "python -m %s",
        "torchrun --rdzv_id=%s --rdzv-endpoint=%s:29500 train.py",
        "nsys profile --env-var=A=%s --output=/home/%s/x python3 train.py",
        "nsys profile --trace=cuda,%s train.py",
        "train.py 'a\n--lr=%s'",
        "train.py -- --data %s",
        "train.py --verbose --no-color %s",
        "train.py %s.txt",
        "train.py --x=/a/%s.bin",
    )
]
# Plain words with dashes are the name of an option, whoever meant them as something else.
NAME_LIKE = "hunter-two-three"


def tried(form):
    is_name = any(word.startswith(("--%s", "-%s")) for word in form) and "--token" not in form
    return [one for one in (S, *TOKENS) if not (is_name and one == NAME_LIKE)]


def pieces(secret):
    """Return what of a secret must not be found: the whole, and any long part of it."""
    return {secret, *(secret[at : at + 8] for at in range(len(secret) - 7))}


def sidecar(words, environment=None, surroundings=NOTHING):
    words = words.split() if isinstance(words, str) else words
    given = {"command": words, "environment": environment or {}, "surroundings": surroundings}
    return sidecar_document(Place("run"), **given, key=KEY)


def leaks(words, secret):
    """Return what of a secret a sidecar of a command holds, and what is read of it."""
    document = sidecar(words)
    text = json.dumps(document, ensure_ascii=False)
    again = parse_sidecar(text.encode("utf-8", "replace"), None).facts.command
    assert again == document["command"]  # who reads it hides nothing more, and nothing less
    return sorted(one for one in pieces(secret) if one in text)


FILE_FORMS = [["--cfg=%s.json"], ["--cfg", "/a/%s.yaml"], ["%s.py"], ["x=@%s.toml"]]
SHORT = (
    "hf_Hj2tEOIj37Cx",
    "hf_aBcDeFgH",
    "sk-ab12cd34",
    "ghp_16C7e42F",
    "xK3mQ9pL",
    "run-7bT4kWq2",
)


@pytest.mark.parametrize("form", [*FORMS, *FILE_FORMS], ids=" ".join)
def test_no_secret_of_any_form_is_written(form, attempts):
    # A token that is named like a file, too.
    secrets = (
        tried(form) if form in FORMS else [*(one for one in TOKENS if one != NAME_LIKE), *SHORT]
    )
    attempts(len(secrets))
    found = {
        secret: leaks([word.replace("%s", secret) for word in form], secret) for secret in secrets
    }
    assert {secret: left for secret, left in found.items() if left} == {}


VALUES = [
    form for form in FORMS if any(word in ("%s", "--data=%s", "x=%s", "--data:%s") for word in form)
]


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_hints_at_a_secret_has_no_value_of_any_kind(name, attempts):
    values = ("4711", "9", "adamw", "true", "0.25", "key.json", "/a/b.yaml", S, ["1", "2"][0])
    forms = (
        "--{n}={v}",
        "--{n}:{v}",
        "{n}={v}",
        "+{n}={v}",
        "--{n} {v}",
        "--{n} 1 {v}",
        "--set={n}={v}",
    )
    attempts(len(values) * len(forms))
    for form in forms:
        for value in values:
            written = recorded_command(["train.py", *form.format(n=name, v=value).split()], KEY)
            # Whatever follows the name is hashes, and nothing but hashes.
            rest = " ".join(written[1:]).replace("--set=", "")
            assert rest.lstrip("-+").removeprefix(name).lstrip("=: ").startswith("hmac:"), written
            assert (
                value not in rest.replace(name, "").replace(KEY.hide(name, value), "")
                or value in "19"
            ), value


OTHERS = ["x", "gate", "door", "geheim", "zahl", "combination", "answer", "n", "d", "data"]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_that_nobody_trains_with_are_not_written(number, attempts):
    attempts(len(VALUES))
    for form in VALUES:
        assert number not in " ".join(
            recorded_command([word.replace("%s", number) for word in form], KEY)
        ), form


@pytest.mark.parametrize("name", [*OTHERS, *"pPuUkKta"])
def test_a_number_stands_behind_an_option_of_training_only(name, attempts):
    numbers = ("4711", "4712", "1234", "8472615", "-4711", "84.72615", "4711,15", "8472615k")
    forms = ["{d}{n} {v}", "--{n}={v}", "{n}={v}"]
    if name not in OTHERS:  # letters that mean a password
        numbers, forms = ("4711",), ["-{n} {v}", "-{n}{v}", "-{n}={v}"]
    attempts(len(forms) * len(numbers))
    for number in numbers:
        for form in forms:
            words = form.format(d="-" if len(name) == 1 else "--", n=name, v=number).split()
            assert number not in " ".join(recorded_command(words, KEY)), words


def test_of_the_environment_nothing_but_allowed_values_is_written(attempts):
    names = [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "HOME",
        "USER",
        "PATH",
        "PYTHONPATH",
        "NCCL_SECRET",
        "NCCL_PSK",
        "NCCL_COMM_ID",
        "NCCL_HOSTID",
        "NCCL_DEBUG_FILE",
        "NCCL_TOPO_FILE",
        "NCCL_CONF_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "CUDA_HOME",
        "SLURM_JOB_ACCOUNT",
        "OMP_TOKEN",
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_NET",
        "NCCL_NET_PLUGIN",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "NCCL_P2P_LEVEL",
        "NCCL_DEBUG",
        "NCCL_BUFFSIZE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MODULE_LOADING",
        "TORCH_DISTRIBUTED_DEBUG",
        "NCCL_MAX_CTAS",
    ]
    secrets = (S, *TOKENS, *NUMBERS[:4])
    attempts(len(names) * len(secrets))
    for secret in secrets:
        written = sidecar("train.py", dict.fromkeys(names, secret) | {"NCCL_SHM_DISABLE": "1"})[
            "environment"
        ]
        text = json.dumps(written, ensure_ascii=False)
        assert not [one for one in pieces(secret) if one in text], secret
        assert written["NCCL_SHM_DISABLE"] == "1", secret


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_what_nsys_quotes_of_a_command_is_not_passed_on(form, attempts):
    attempts(len(tried(form)))
    for secret in tried(form):
        words = [word.replace("%s", secret) for word in form]
        quoting = f"nsys failed: unrecognised option in '{' '.join(words)}' and {secret}"
        assert secret not in without_words(quoting, words), secret


@pytest.mark.slow
def test_what_a_sweep_remembers_holds_no_secret(monkeypatch, tmp_path, capsys, attempts):
    attempts(len(TOKENS[::5]) * len(FORMS))
    for state in (str(tmp_path), "/dev/null"):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        monkeypatch.setenv("NCCL_ALGO", S)
        for secret in TOKENS[:: 5 if state == str(tmp_path) else 12]:
            for form in (one for one in FORMS if secret in tried(one)):
                main(["--environment", *(word.replace("%s", secret) for word in form)])
            told = capsys.readouterr().out
            assert secret not in told, secret
            assert S not in told, secret


PROGRAM = """
import os, pathlib, shutil, sys
there = pathlib.Path(os.environ["NSYSPIPE_STATUS_DIR"])
shutil.copytree(there, "status", ignore=shutil.ignore_patterns("*.new"), dirs_exist_ok=True)
"""


@pytest.mark.slow
def test_no_file_and_no_message_of_a_job_holds_a_secret(machine, attempts):  # noqa: F811
    secrets = [S, *TOKENS]
    attempts(len(secrets))
    machine.variables |= {"HF_TOKEN": S, "NCCL_ALGO": "nvapi-in-the-environment"}
    words = [word for secret in secrets for word in ("--data", secret, f"a={secret}", secret)]
    # Quotes its command, as nsys may, and fails.
    machine.put_nsys('"$@"; echo "Error: cannot write for $*" >&2; : > "$TMPDIR/x.nsys-rep"')
    answer = ddp(machine, "--", *words, "--lr", "0.125", text=PROGRAM)
    assert answer.status == 3, answer.err
    machine.put_nsys()
    answer_2 = ddp(machine, "-o", "whole", "--", *words, "--lr", "0.125", text=PROGRAM)
    assert answer_2.status == 0, answer_2.err
    said = answer.out + answer.err + answer_2.out + answer_2.err
    # In nsys_* programs find their own command, as in /proc; the directory is theirs alone, and
    # goes with the job.
    files = [
        one for one in machine.work.rglob("*") if one.is_file() and not one.name.startswith("nsys_")
    ]
    files = [one for one in files if one.suffix not in {".nsys-rep", ".sqlite", ".py"}]
    written = {path: path.read_bytes().decode("utf-8", "replace") for path in files}
    assert any(path.name == "rank_0.json" for path in written)
    for secret in (*secrets, "nvapi-in-the-environment"):
        assert secret not in said, secret
        assert [path for path, text in written.items() if secret in text] == [], secret
    assert machine.sidecar("whole")["command"][-2:] == ["--lr", "0.125"]
    key = (machine.root / "state" / "nsyspipe" / "hash-key").read_bytes()
    assert not any(form in "".join(written.values()) for form in (key.hex(), repr(key)))


GIT = shutil.which("git")


class Repository:
    """Whoever wrote its configuration wants programs to run."""

    def __init__(self, folder, mark):
        self.folder, self._mark = folder, mark
        folder.mkdir()
        self.git("init", "-q")
        for name in ("train.py", "plain.py"):
            (folder / name).write_text("pass\n")
        (folder / ".gitattributes").write_text("*.py filter=x diff=x\nplain.py -filter\n")

    def git(self, *words):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            [GIT, "-C", self.folder, *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self):
        self.git("add", ".")
        self.git("commit", "-qm", "one")
        return self.git("rev-parse", "HEAD")

    def plant(self, driver="x"):
        """Name the program wherever git takes one; every file looks changed, so that git has to look into it."""
        run = program(self.folder / ".git", "planted", f"echo $0 >> {self._mark}; cat")
        for what in ("clean", "smudge", "process"):
            self.git("config", f"filter.{driver}.{what}", str(run))
        self.git("config", f"filter.{driver}.required", "true")
        for name in ("core.fsmonitor", "diff.x.textconv", "diff.x.command", "diff.external"):
            self.git("config", name, str(run))
        self.git("config", "status.submoduleSummary", "true")
        for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
            program(self.folder / ".git" / "hooks", hook, f"echo $0 >> {self._mark}")
        for path in self.folder.glob("*.py"):
            os.utime(path, (1, 1))

    def dirty(self):
        found = gather_surroundings(self.folder, root=self.folder)
        return found.git_commit, found.git_is_dirty


@pytest.mark.slow
@pytest.mark.skipif(GIT is None, reason="no git on this machine")
def test_no_program_that_a_repository_names_is_started(tmp_path):
    mark = tmp_path / "mark"
    outer = Repository(tmp_path / "code", mark)
    inner = Repository(outer.folder / "inner", mark)
    inner.commit()
    commit = outer.commit()  # holds the inner one as a submodule
    inner.plant()
    outer.plant()
    assert outer.dirty() == (commit, False)
    # Of submodules the commit counts; what a filter makes of a changed file only that filter knows.
    for changed, is_dirty in (
        ((inner, "train.py"), False),
        ((outer, "train.py"), None),
        ((outer, "plain.py"), True),
    ):
        (changed[0].folder / changed[1]).write_text("1\n")
        assert outer.dirty() == (commit, is_dirty), changed
    outer.plant("a=b")  # a name that cannot be switched off
    assert outer.dirty() == (commit, None)
    assert not mark.exists()
    subprocess.run([GIT, "-C", outer.folder, "status"], capture_output=True, check=False)
    assert mark.exists()  # the trap works


@pytest.mark.skipif(GIT is None, reason="no git on this machine")
def test_a_command_without_a_file_has_no_commit_of_where_it_was_started(tmp_path, monkeypatch):
    Repository(tmp_path / "code", tmp_path / "mark").commit()
    monkeypatch.chdir(tmp_path / "code")
    for words, is_there in ((["train"], False), (["python3", "train.py"], True)):
        document = sidecar(words, surroundings=gather_surroundings(program_directory(words)))
        assert (document["git_commit"] is not None) == is_there, words
        assert (document["git_is_dirty"] is not None) == is_there, words


@pytest.mark.parametrize(
    "words",
    [
        (
            "torchrun --standalone --nproc_per_node=8 --no-python python3 -P -m "
            "nsyspipe.capture.rank --nsys-words=9 --"
        ),
        (
            "python3 -P run_module.py nsyspipe.capture.rank --nsys-words=9 -- python3 train.py "
            "--seed 1234567 --master-port=29517"
        ),
        (
            "train.py --pinned-memory 1 --decode-steps 1234 --codebook-size 1536 "
            "--max-steps=123456 --tokenizer-workers 2"
        ),
        (
            "nsys profile --trace=cuda,nvtx,nccl,osrt --sample=none --cpuctxsw=none "
            "--capture-range=cudaProfilerApi"
        ),
        (
            "python3 -u train.py --lr 1e-4 --batch-size 64 --epochs=3 --seed 1234 --warmup 10 "
            "--weight-decay=0.01"
        ),
        (
            "train.py --dtype bfloat16 --optimizer adamw --backend nccl --precision bf16-mixed "
            "--strategy fsdp"
        ),
        (
            "train.py --bucket-cap-mb 25 --gradient-as-bucket-view --static-graph --hook bf16 "
            "--accumulate 4"
        ),
        (
            "train.py --config base.yaml trainer.lr=1e-4 +model.dtype=bf16 ++data.workers=8 "
            "optim/name=adamw"
        ),
        (
            "train.py --betas 0.9 0.95 --eps 1e-8 --milestones=[30000,60000] --sizes 1,2,4 --size "
            "25MB --ratio .5"
        ),
        (
            "train.py --max-tokens 4096 --num-keys=16 --tokens-per-step 4_096 --key-dim=64 "
            "--pin-memory true"
        ),
        (
            "train.py --buffer 1073741824 --total-tokens 100000000000 --chunk 33554432 --offset -1 "
            "-n8 -lr 0.1"
        ),
        (
            "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json --zero-stage 3 --bf16 "
            "--fp8=false --P2P"
        ),
        "env NCCL_P2P_DISABLE=1 NCCL_SOCKET_IFNAME=eth0 torchrun train.py --ranks 0-3,7",
    ],
)
def test_what_explains_a_step_time_is_written_as_it_is(words):
    written = sidecar(words)["command"]
    assert sorted(written) == sorted(words.split())  # variables come in the order of their names
    assert recorded_command(written, Mask()) == written


SECRET = "hunter-2-Pa55phrase"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    secrets = {}
    for rank in range(2):
        secrets = plant(folder / f"run_{rank}.sqlite", rank=rank)
    return folder, {place: one for place, one in secrets.items() if place not in SHOWN}


def said(done):
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).encode("utf-8", "surrogateescape")


def cells(folder):
    """Return every value of a dataset as one text; what is stored is compressed."""
    tables = [pq.read_table(path, partitioning=None) for path in sorted(folder.rglob("*.parquet"))]
    assert tables
    return "\n".join(
        repr(table.schema.metadata) + repr(table.to_pydict()) for table in tables
    ).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "analyze",
        "analyze --json -",
        "analyze --markdown -",
        "analyze --findings all",
        "doctor",
        "redact",
    ],
)
def test_no_secret_is_in_what_a_command_says(planted, tmp_path, command):
    folder, secrets = planted
    name, *options = command.split()
    text = said(
        nsyspipe_here(name, folder, *options, *([tmp_path / "out"] if name == "redact" else []))
    )
    assert name != "analyze" or b"step" in text
    assert found_in(text, secrets) == []


@pytest.mark.slow
def test_no_secret_is_in_what_analyze_writes(planted, tmp_path):
    folder, secrets = planted
    files = {
        "json": "run.json",
        "markdown": "run.md",
        "html": "run.html",
        "perfetto": "run.pftrace",
    }
    options = [word for name, file in files.items() for word in (f"--{name}", tmp_path / file)]
    options += ["--out", tmp_path / "store", "--events"]
    assert found_in(said(nsyspipe_here("analyze", folder, *options)), secrets) == []
    for file in files.values():
        data = (tmp_path / file).read_bytes()
        assert b"step" in data, file
        assert found_in(data, secrets) == [], file
    assert found_in(cells(tmp_path / "store"), secrets) == []
    assert found_in(b"".join(str(one).encode() for one in tmp_path.rglob("*")), secrets) == []
    page = tmp_path / "runs.html"
    assert found_in(said(nsyspipe_here("dashboard", tmp_path / "store", "-o", page)), secrets) == []
    assert found_in(page.read_bytes(), secrets) == []


@pytest.mark.parametrize("command", ["analyze", "doctor", "redact"])
def test_an_error_about_a_text_among_numbers_does_not_quote_it(tmp_path, command):
    path = steady_rank(0).domain("NCCL", 1).write(tmp_path / "a.sqlite")
    edit(
        path,
        *(
            f"UPDATE {name} = '{SECRET}' WHERE rowid = 1"
            for name in ("StringIds SET id", f"{KERNEL} SET start")
        ),
    )
    done = nsyspipe_here(command, path, *[tmp_path / "copy.sqlite"] if command == "redact" else [])
    assert "Traceback" not in done.stderr
    assert found_in((done.stdout + done.stderr).encode(), {"it": SECRET}) == []


ADA = {"HOME": "/home/ada/", "USER": "ada"}


@pytest.mark.parametrize(
    ("texts", "variables", "n"),
    [
        (["load /home/ada/data.pt"], ADA, 1),
        (["load /home/ada/data.pt", "job of ADA", "on node0"], ADA, 3),
        (["canada", "step 1", "node01"], ADA, 0),
        (["a b a", "root of all"], {"USER": "a", "LOGNAME": "root"}, 0),  # short names find nothing
    ],
)
def test_kept_texts_with_a_removed_name_are_counted(tmp_path, texts, variables, n):
    built = steady_rank(0).env(**variables)
    for at, text in enumerate(texts):
        built.range(at, at + 1, text, inline=at % 2 == 1)
    done = redact(str(built.write(tmp_path / "r.sqlite")), tmp_path / "out.sqlite")
    assert done.removed.n_named == n
    warnings = re.findall(r"^ *warning: (\d+)", redaction_text(done, tmp_path), re.MULTILINE)
    assert warnings == ([str(n)] if n else [])
