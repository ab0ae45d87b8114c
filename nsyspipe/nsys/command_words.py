"""What of a command line and of variables may be written down: what is known to be harmless, nothing else.

Names of options are; a value only if it is a number, a switch, the name of a Python or settings
file, or a word of training. Everything else is replaced by a hash, which says that it changed and
not what it is.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MASK = "***"
BETWEEN_VALUES = " | "  # stands between values of one variable in different processes
# What versions and names look like that are shown as a sidecar has them: nothing else may stand in
# their place.
VERSION = re.compile(
    r"(?=.{1,80}\Z)\d{1,5}(?:\.\d{1,8}){0,4}(?:[.-]?(?:a|b|c|rc|alpha|beta|post|dev|git)\d{0,8})*(?:-\d{4,16}v\d{1,3})?"
    r"(?:\+[A-Za-z0-9]{0,40}(?:[._-][A-Za-z0-9]{1,16}){0,4})?",
    re.ASCII,
)
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
GPU_NAME = re.compile(r"(?:[A-Za-z0-9().+-]{1,24}(?: |\Z)){1,10}", re.ASCII)
CAPTURE_NAME = re.compile(r"[^/\\<>&\"'`\x00-\x1f]{1,255}")
CAPTURE_RANGE = re.compile(r"[A-Za-z]{1,40}", re.ASCII)
TRACED = CAPTURE_RANGE  # what nsys calls kinds of events, and how it traced CUDA graphs
HASHED = re.compile(
    r"hmac:[0-9a-f]{8}(?![0-9A-Za-z])"
)  # a hashed value, as `secrets.hash_key` writes it
# Between the values of one variable in different processes, and what stands for a process that does
# not have it.
JOINT = " | "
NOT_SET = "not set"
PER_CAPTURE = "capture"  # what a sidecar names as its key where each capture has one of its own
_MOST_WORDS = 1000
_LONGEST_WORD = 4096
_MORE = "\N{HORIZONTAL ELLIPSIS}"
_LEAST_QUOTED = 3
_LEAST_INSIDE = 6
# Where a part of a word may begin and end that a message quotes: nowhere, at signs, at more of
# them, at a suffix.
_ENDS = tuple(
    map(
        re.compile,
        (r"\Z", r"[=:,\s\"']+", r"[=:,\s\"'/@?&;#{}()\[\]\\]+", r"[=:,\s\"'/]+|\.[a-z]{1,4}\Z"),
    )
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What starts programs, and ours; free words else never stand.
_PROGRAMS = _words(
    "env python python3 torchrun nsys srun mpirun mpiexec accelerate deepspeed bash sh numactl "
    "profile launch run "
    "ddp.sh baseline.sh torch.distributed.run torch.distributed.launch nsyspipe.capture.rank "
    "nsyspipe.capture.job"
)
_PYTHON = re.compile(r"python3\.\d{1,2}", re.ASCII)
_WORDS = _words(
    # switches
    "true false yes no on off none null "
    # data types and precision
    "fp32 fp16 bf16 fp8 fp4 tf32 float32 float16 bfloat16 float64 float8 float8_e4m3fn "
    "float8_e5m2 e4m3 e5m2 mxfp8 nvfp4 "
    "int8 int4 half single double 32-true 16-mixed bf16-mixed bf16-true 16-true mixed amp "
    "highest high medium low "
    # optimizers and schedules
    "adam adamw adamax adagrad adafactor sgd rmsprop lamb lars lion muon shampoo sophia nadam "
    "radam adamw_torch "
    "adamw_torch_fused adamw_fused fused foreach cosine linear constant step multistep "
    "exponential polynomial wsd onecycle "
    "inverse_sqrt plateau warmup "
    # backends, devices, parallelism
    "nccl gloo mpi ucc ucx cuda cuda:0 cpu gpu auto xla c10d static etcd etcd-v2 fork spawn "
    "forkserver "
    "ddp fsdp fsdp2 fsdp1 dp tp pp cp ep sp hsdp tpu zero zero1 zero2 zero3 deepspeed megatron "
    "full_shard shard_grad_op "
    "hybrid_shard no_shard hybrid 1f1b gpipe interleaved zbv dualpipev powersgd "
    "batched_powersgd bf16_compress "
    "fp16_compress allreduce all_reduce all_gather reduce_scatter forward_prefetch "
    "backward_pre backward_post "
    # compilation, kernels, layers
    "inductor eager aot_eager cudagraphs default reduce-overhead max-autotune "
    "max-autotune-no-cudagraphs sdpa flash "
    "flash_attention_2 flash_attention_3 flex mem_efficient math cudnn cublas triton xformers "
    "gelu relu silu swiglu layernorm "
    "rmsnorm batchnorm full selective block uniform train eval test tiny small base large xl "
    "xxl nano loader synthetic mock "
    # nsys
    "nvtx osrt cublas-verbose cusparse cudaprofilerapi nsyspipe.capture stop stop-shutdown "
    "process-tree system-wide graph node "
    "sqlite"
)
_FILE = re.compile(r"(?=.{4,64}\Z)([A-Za-z0-9_][A-Za-z0-9_.\-]*)\.(?:py|ya?ml|toml|json)", re.ASCII)
_NO_PATH = re.compile(r"[^\w./~+\-]|:", re.ASCII)
# Longer runs are made by machines: identifiers, keys, hashes.
_LONGEST_RUN = 20
_LONGEST_RUN_WITH_DIGITS = 12
_MOST_DIGITS_OF_NAME = 8
_LEAST_MIXED = 8
_RUN = re.compile(r"[A-Za-z0-9]+", re.ASCII)
# From letters to digits or back: h100x8 has three.
_CHANGE = re.compile(r"(?<=\d)(?=[A-Za-z])|(?<=[A-Za-z])(?=\d)", re.ASCII)
_MOST_CHANGES = 3
# How services' tokens begin; what follows in a file's name is words then.
_TOKEN = re.compile(
    r"(?:hf|[sprg]k|gsk|gh[opsur]|github_pat|glpat|xox[a-z]|xapp|npm|pypi|dckr|dop_v1|nvapi|r8)[_\-](.*)",
    re.ASCII,
)
_WORD = r"(?:[A-Z]?[a-z]{1,20}\d{0,2}|\d{1,2}[a-z]{0,4})"
_OF_WORDS = re.compile(rf"{_WORD}(?:[_.\-]{_WORD})*", re.ASCII)
_NUMBER = re.compile(
    r"[+\-]?(0|[1-9]\d{0,2}(?:_\d{3})+|[1-9]\d*|(?=\.\d))(\.\d*)?(e[+\-]?\d{1,3})?"
    r"(?:[kmgtbsh%]|[kmgt]i?b|ms|us|ns|min)?",
    re.ASCII | re.IGNORECASE,
)
# A PIN has 4 digits and may stand behind any option; a telephone number, an account or a card has
# more. So few of them stand anywhere, some behind an option of training, more behind none.
_FEW_DIGITS = 3
_MOST_DIGITS = 7
_MOST_DIGITS_OF_LIST = 14
_MOST_NUMBERS = 16
# Of a number of more digits, but for a power of two: the first for few digits, where 4712 is no
# such number.
_LARGEST_ODD_PARTS = {_FEW_DIGITS: 16, _MOST_DIGITS: 1000}
_LIST = re.compile(r"([^\[\]()]*)|\[([^\[\]()]*)\]|\(([^\[\]()]*)\)")
_RANKS = re.compile(r"\d{1,3}-\d{1,3}", re.ASCII)
_PART = (
    r"(?:(?:[A-Z]?[a-z]{1,20}|[A-Z]{1,12})(?:[A-Z][a-z]{2,15}|[A-Z]{2,4}s?){0,3}\d{0,2}"
    r"|[A-Za-z]\d[A-Za-z]\d?|\d{1,2}[a-z]{0,4})"
)
_CLEAN_PART = re.compile(_PART, re.ASCII)
_CLEAN = re.compile(rf"(?=.{{1,64}}\Z){_PART}(?:[_.\-/]{_PART})*", re.ASCII)
_SHORT_NAMES = _words(
    "lr bs np wd nproc ngpus gpus nnodes epochs steps batch seed dtype workers config"
)
_GLUED_NUMBER = re.compile(r"-[njNOcsb]\d{1,3}", re.ASCII)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
# Within a part of a name, at its begin or end, or a part.
_SECRET = re.compile(
    r"key|token(?!i[sz])|secret|passw|passphr|passcode|pwd|credential|cred(?:s|\Z)|auth|cookie|signature|jwt|bearer|webhook"
    r"|privat|licen[sc]e|account|login|session|mnemonic|cert(?:s|ific|\Z)|phone|email|pword|pswd|kennwort|phrase|vault"
    r"|unlock|serial(?!i[sz])|badge|cardn|verification"
    r"|\A(?:pw|pass|pin|psk|tok(?!eni[sz])|otp|code)|(?:pw|pass|pin|psk|tok|otp|code|2fa)s?\Z"
)
_SECRET_PARTS = _words(
    "tk ak sk apk api sig pat dsn sas pem ssh gpg pgp user usr username uid owner psw puk tan mdp "
    "salt nonce totp mfa tfa sms card cvv cvc iban ssn tel proxy url uri endpoint invite "
    "header headers connection conn "
    "tenant client csc cvn security sesame watchword combo nick nickname surname forename "
    "firstname lastname fullname"
)
_OF_PERSONS = _words("first last middle full real given family")  # with a name: a person's
_NO_SECRETS = _words("pinned bypass encode decode opcode codebook codec codecs")
# What a number of more than a few digits may stand behind.
_SETTINGS = _words(
    "step steps seed batch batches bs bsz size sizes len length dim dims width height hidden "
    "layer layers head heads epoch "
    "epochs iter iters iteration iterations warmup interval every freq frequency worker "
    "workers rank ranks world node nodes "
    "nproc ngpus nnodes port mb gb bytes tokens vocab sample samples seq ctx context lr rate "
    "decay eps epsilon beta betas "
    "momentum dropout clip scale temperature timeout accumulate accumulation accum bucket "
    "buffer cap offset chunk stage "
    "milestone milestones"
)
_SECRET_LETTERS = frozenset(
    "pPuUkKtaAHiSX"
)  # single letters that mean a password, user, key or token to some program
# Names that count what else is secret: tokens with one of these, and these names.
_COUNTS = _words("max min num n total per seq batch")
_COUNTING = _words(
    "num_keys n_keys key_dim key_dims key_size key_length key_heads num_key_heads "
    "key_value_heads num_key_value_heads "
    "n_key_value_heads key_dropout num_passes n_passes"
)
_FLAGS = _words("use no with without enable disable is has allow skip")
_BYTES = r"\d{1,7}|\d{1,4}[kmg]|" + "|".join(str(2**power) for power in range(20, 34))
# As Linux and Slurm clusters call them; a list of some, or of all others (^), or exactly so (=).
_INTERFACE = r"(?:lo|eth|en[opsx]|ib[sp]?|bond|docker|br|hsn|rdmap?|rocep?|mlx5_(?:bond_)?|bnxt_re|irdma|efa_)"
_INTERFACES = rf"\^?=?(?:{_INTERFACE}(?:\d{{1,4}}(?:[sfdnp]\d{{1,4}}){{0,4}}(?:np?\d{{1,2}})?)?(?::\d)?(?:,|\Z))+"
_ALLOCATOR = (
    r"(?:(?:expandable_segments:(?:true|false)|backend:(?:native|cudaMallocAsync)|max_split_size_mb:\d{1,7}"
    r"|garbage_collection_threshold:0?\.\d{1,3}|roundup_power2_divisions:\d{1,3}"
    r"|pinned_use_cuda_host_register:(?:true|false)|pinned_num_register_threads:\d{1,3})(?:,|\Z))+"
)

# Patterns of whole values that may be written down; every other value of these variables is written
# as its hash.
_NAMES = {
    r"-?[0-2]|true|false": (
        "NCCL_P2P_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE "
        "NCCL_CROSS_NIC CUDA_LAUNCH_BLOCKING "
        "TORCH_NCCL_BLOCKING_WAIT NCCL_NVTX_DISABLE NCCL_NVLS_ENABLE NCCL_COLLNET_ENABLE "
        "NCCL_PXN_DISABLE NCCL_CUMEM_ENABLE "
        "NCCL_GRAPH_MIXING_SUPPORT NCCL_IB_SPLIT_DATA_ON_QPS TORCH_NCCL_AVOID_RECORD_STREAMS "
        "TORCH_NCCL_CUDA_EVENT_CACHE "
        "TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_USE_COMM_NONBLOCKING"
    ),
    r"[0-9]|LOC|NVL|PIX|PXB|PHB|PXN|P2C|C2C|SYS": "NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL",
    _INTERFACES: "NCCL_IB_HCA NCCL_SOCKET_IFNAME",
    r"IB|Socket|AWS Libfabric|OFI|UCX": "NCCL_NET",
    r"none|ofi|aws-ofi|ucx|sharp|spcx": "NCCL_NET_PLUGIN",
    r"-?\d{1,7}": (
        "NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_CGA_CLUSTER_SIZE "
        "CUDA_DEVICE_MAX_CONNECTIONS NCCL_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_SOCKET_NTHREADS "
        "NCCL_IB_QPS_PER_CONNECTION NCCL_IB_GID_INDEX NCCL_IB_TC NCCL_IB_SL NCCL_IB_TIMEOUT"
    ),
    r"[0-9]|default|efficiency|zero": "NCCL_CTA_POLICY",
    _ALLOCATOR: "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",
    r"version|warn|info|abort|trace": "NCCL_DEBUG",
    r"|-1|(?:\d{1,3}(?:,|\Z))+": "CUDA_VISIBLE_DEVICES",
    r"lazy|eager|default": "CUDA_MODULE_LOADING",
    r"\^?(?:(?:tree|ring|collnet|collnetdirect|collnetchain|nvls|nvlstree|pat)(?:,|\Z))+": "NCCL_ALGO",
    r"\^?(?:(?:LL|LL128|simple)(?:,|\Z))+": "NCCL_PROTO",
    _BYTES: "NCCL_BUFFSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_NET_CHUNKSIZE",
    r"parallel|group": "NCCL_LAUNCH_MODE",
    r"off|info|detail": "TORCH_DISTRIBUTED_DEBUG",
    r"[0-3]": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
VARIABLES = {name: values for values, names in _NAMES.items() for name in names.split()}

_OF_LINKS = (
    "P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE SHM_DISABLE IB_DISABLE IB_HCA NET NET_PLUGIN "
    "NET_GDR_LEVEL"
)
OF_LINKS = tuple(f"NCCL_{name}" for name in (*_OF_LINKS.split(), "SOCKET_IFNAME", "CROSS_NIC"))


def allows(name: str, value: str) -> bool:
    """Tell whether a value of one of `VARIABLES` may be written down."""
    return (
        len(value) <= _LONGEST_WORD
        and re.fullmatch(VARIABLES[name], value, re.ASCII | re.IGNORECASE) is not None
    )


class Mask:
    """Hides values whose key is not known (it has no `key_id`): what was hashed before stays."""

    key_id: str | None = None

    def of(self, _name: str, value: str) -> str:
        """Return what stands for the value of an option or variable."""
        return value if HASHED.fullmatch(value) else MASK


@dataclass(frozen=True)
class _Owner:
    """The option that words belong to until the next one; of a secret one nothing stands. It may take any next word."""

    name: str = ""
    is_secret: bool = False
    takes_next: bool = False
    is_letter: bool = False


def recorded_command(words: Iterable[str], mask: Mask) -> list[str]:
    """Return a command's words as they may be written down; what is not known to be harmless is what `mask` makes of it.

    Numbers have at most 3 digits that count (trailing zeros and powers of two do not), 7 behind an
    option with a word of training in its name; files lose their directory; options whose name hints
    at a secret have hashed values only.
    """
    found: list[str] = []
    owner = _Owner()
    for word in words:
        if len(found) == _MOST_WORDS:
            return [*found, _MORE]
        written, owner = _next(word, owner, mask)
        found.append(written)
    return found


def shown_commands(commands: Iterable[Iterable[str]]) -> list[str]:
    """Return distinct commands, quoted and sorted, as they may be written down; none of which every word is hidden."""
    written = [recorded_command(words, Mask()) for words in commands]
    return sorted({shlex.join(words) for words in written if not {*words} <= {MASK}})


def shown_alone(texts: Iterable[str | None], form: re.Pattern[str]) -> list[str]:
    """Return the distinct texts of a form, sorted: nothing else may stand in their place."""
    return sorted({text for text in texts if text is not None and form.fullmatch(text)})


def recorded_environment(environment: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """Return the variables of `VARIABLES`, sorted by name: an allowed value as it is, else what `mask` makes of it.

    Values of several processes stand side by side (`JOINT`), and each is judged by itself.
    """
    given = [(name, environment[name]) for name in sorted(VARIABLES) if name in environment]
    return {
        name: JOINT.join(_recorded(name, one, mask) for one in value.split(JOINT))
        for name, value in given
    }


def _recorded(name: str, value: str, mask: Mask) -> str:
    return value if value == NOT_SET or allows(name, value) else mask.of(name, value)


def joined_environments(environments: Iterable[Mapping[str, str] | None]) -> dict[str, str] | None:
    """Join what processes recorded of their environments, sorted by name; None where none recorded its own.

    Different values stand side by side, sorted; `NOT_SET` stands last where a process that recorded
    its environment does not have the variable.
    """
    known = [environment for environment in environments if environment is not None]
    if not known:
        return None
    joined: dict[str, str] = {}
    for name in sorted(set().union(*known)):
        values = {value for one in known if name in one for value in one[name].split(JOINT)}
        is_everywhere = all(name in one for one in known)
        absent = [] if is_everywhere and NOT_SET not in values else [NOT_SET]
        joined[name] = JOINT.join([*sorted(values - {NOT_SET}), *absent])
    return joined


def recorded_settings(settings: Mapping[str, Iterable[str]], mask: Mask) -> dict[str, str]:
    """Return what may be written of variables with a value per process, as `recorded_environment` does; values are joined."""
    found = {}
    for name, values in settings.items():
        written = {
            one for value in values for one in recorded_environment({name: value}, mask).values()
        }
        if written:
            found[name] = BETWEEN_VALUES.join(sorted(written))
    return dict(sorted(found.items()))


def without_words(text: str, words: Sequence[str]) -> str:
    """Return a text without what it quotes of a command that may not be written down, as an error message does."""
    hidden: set[str] = set()
    for word, written in zip(words, recorded_command(words, Mask()), strict=False):
        if word != written:
            whole = word.lstrip("-")
            parts = {part for end in _ENDS for part in (*end.split(whole), *end.split(whole[1:]))}
            hidden |= {part for part in parts if len(part) >= _LEAST_QUOTED and part not in written}
    for part in sorted(hidden, key=len, reverse=True):
        # A short one is replaced where it stands alone: other words would be torn apart.
        form = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])" if len(part) < _LEAST_INSIDE else "{}"
        text = re.sub(form.format(re.escape(part)), MASK, text)
    return text


def _next(word: str, owner: _Owner, mask: Mask) -> tuple[str, _Owner]:
    """Return a word as it may be written down, and whose value the next one may be."""
    if word in ("", "-", "--", _MORE):
        return word, _Owner() if word == "--" else owner
    if owner.takes_next:
        return mask.of(owner.name, word), _Owner(owner.name, is_secret=True)
    if _is_number(word):
        return _value(word, owner, mask), owner
    if word.startswith("--"):
        return _long_option(word, mask)
    if word.startswith("-"):
        return _short_option(word, mask)
    return _word(word, owner, mask), owner


def _long_option(word: str, mask: Mask) -> tuple[str, _Owner]:
    name, sign, value = [*re.split("([=:])", word[2:], maxsplit=1), "", ""][:3]
    if not _is_clean(name):
        return mask.of("", word), _Owner(is_secret=True)
    is_secret = _hints_at_secret(name)
    if sign:
        return f"--{name}{sign}{_nested(value, _Owner(name, is_secret), mask)}", _Owner(
            name, is_secret
        )
    return word, _Owner(
        name, is_secret, takes_next=is_secret and not (_parts(name) & _FLAGS or _is_count(name))
    )


def _short_option(word: str, mask: Mask) -> tuple[str, _Owner]:
    name, sign, value = [*re.split("([=:])", word[1:], maxsplit=1), "", ""][:3]
    if name in _SHORT_NAMES or (len(name) == 1 and name.isascii() and name.isalpha()):
        owner = _Owner(name, len(name) == 1 and name in _SECRET_LETTERS, is_letter=len(name) == 1)
        return (f"-{name}{sign}{_nested(value, owner, mask)}" if sign else word), owner
    if _GLUED_NUMBER.fullmatch(word):
        return word, _Owner()
    if not name[:1].isascii() or not name[:1].isalpha():
        return mask.of("", word), _Owner(is_secret=True)
    # What follows the letter may be its value, as in mysql -pPASSWORD.
    return f"-{name[0]}={mask.of(name[0], word[2:])}", _Owner(name[0], is_secret=True)


def _word(word: str, owner: _Owner, mask: Mask) -> str:
    """Return a word that is no option: a value, NAME=VALUE as Hydra has them, or a free word."""
    path, equals, value = word.partition("=")
    name = path.lstrip("+~")
    is_assignment = value.strip("=") and len(path) - len(name) <= len("++") and _is_clean(name)
    if equals and is_assignment and (not owner.is_secret or _is_count(owner.name)):
        return f"{path}={_nested(value, _Owner(name, _hints_at_secret(name)), mask)}"
    return _value(word, owner, mask)


def _nested(value: str, owner: _Owner, mask: Mask) -> str:
    name, equals, inner = value.partition("=")
    if equals and inner.strip("=") and not owner.is_secret and _is_clean(name):
        return f"{name}={_value(inner, _Owner(name, _hints_at_secret(name)), mask)}"
    return _value(value, owner, mask) if value else value


def _value(value: str, owner: _Owner, mask: Mask) -> str:
    stands = None if len(value) > _LONGEST_WORD else _allowed(value, owner)
    return mask.of(owner.name, value) if stands is None else stands


def _allowed(value: str, owner: _Owner) -> str | None:
    """Return what of a value may be written down, None for nothing."""
    if owner.name in VARIABLES:
        return value if allows(owner.name, value) else None
    file = _file_name(value)
    if owner.is_secret:
        if owner.is_letter and file is not None and file.endswith(".py"):
            return file
        # What -P of our own command is followed by, too.
        is_ours = owner.is_letter and value in _PROGRAMS and value.startswith("nsyspipe.")
        most = _MOST_DIGITS if "tokens" in _parts(owner.name) else _FEW_DIGITS
        return value if is_ours or (_is_count(owner.name) and _is_number(value, most)) else None
    program = value.rpartition("/")[2]
    if not _NO_PATH.search(value) and (program in _PROGRAMS or _PYTHON.fullmatch(program)):
        return program
    most = _MOST_DIGITS if _parts(owner.name) & _SETTINGS else _FEW_DIGITS
    return value if owner.name and (_is_number(value, most) or _is_list(value, most)) else file


def _file_name(value: str) -> str | None:
    mark, path = (value[:1], value[1:]) if value.startswith("@") else ("", value)
    if _NO_PATH.search(path):
        return None
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return f"{mark}{found[0]}" if found and _is_plain(found[1]) else None


def _is_plain(stem: str) -> bool:
    runs = _RUN.findall(stem)
    token = _TOKEN.fullmatch(stem)
    if token is not None and not _OF_WORDS.fullmatch(token[1]):
        return False
    # As many small and capital letters are a token's, but in words that begin with capitals.
    mixed = [
        run for run in runs if len(run) >= _LEAST_MIXED and run not in (run.lower(), run.upper())
    ]
    return (
        sum(map(str.isdigit, stem)) <= _MOST_DIGITS_OF_NAME
        and all(
            len(run) <= (_LONGEST_RUN if run.isalpha() else _LONGEST_RUN_WITH_DIGITS)
            for run in runs
        )
        and all(len(_CHANGE.findall(run)) <= _MOST_CHANGES for run in runs)
        and all(map(_CLEAN_PART.fullmatch, mixed))
    )


def _is_list(value: str, most_digits: int) -> bool:
    """Tell whether a value is words of training or numbers, one or several with commas between."""
    found = _LIST.fullmatch(value)
    parts = [part.strip(" ") for part in found[found.lastindex or 0].split(",")] if found else []
    if not 0 < len(parts) <= _MOST_NUMBERS:
        return False
    if all(part.lower() in _WORDS for part in parts):
        return True
    are_numbers = all(_is_number(part, most_digits) or _RANKS.fullmatch(part) for part in parts)
    return are_numbers and sum(map(_n_digits, parts)) <= _MOST_DIGITS_OF_LIST


def _is_number(value: str, most_digits: int = _MOST_DIGITS) -> bool:
    """Tell whether a value is a number that says no more than a setting does: of so many digits that count."""
    found = _NUMBER.fullmatch(value) if len(value) <= _LONGEST_RUN + 4 else None
    if found is None or _n_digits(value) <= most_digits:
        return found is not None
    if found[2] or found[3] or not found[1]:
        return False
    number = int(found[1].replace("_", ""))
    return (
        number // (number & -number) < _LARGEST_ODD_PARTS[most_digits]
    )  # a few times a power of two


def _n_digits(value: str) -> int:
    """Return how many digits of a number count: neither zeros around it nor its exponent."""
    return len("".join(filter(str.isdigit, value.lower().partition("e")[0])).strip("0"))


def _is_clean(name: str) -> bool:
    return len(name) <= _LONGEST_RUN * 4 and _CLEAN.fullmatch(name) is not None


def _parts(name: str) -> set[str]:
    return {part.lower().rstrip("0123456789") for part in _HUMP.split(name) if part}


def _hints_at_secret(name: str) -> bool:
    parts = _parts(name)
    if "pin" in parts and parts & {"memory", "mem"}:
        return False
    if "name" in parts and parts & _OF_PERSONS:
        return True
    parts -= _NO_SECRETS
    return bool(parts & _SECRET_PARTS) or any(_SECRET.search(part) for part in parts)


def _is_count(name: str) -> bool:
    """Tell whether a name counts tokens or keys: nothing else in it hints at a secret."""
    parts = _parts(name)
    if "_".join(filter(None, _HUMP.split(name))).lower() in _COUNTING:
        return True
    return (
        "tokens" in parts
        and bool(parts & _COUNTS)
        and not _hints_at_secret("_".join(parts - {"tokens"}))
    )
