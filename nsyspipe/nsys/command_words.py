"""Decides which parts of a command line and of variables are harmless and may be recorded.

Names of options are recorded. A value is recorded only if it is a number, a switch, the name of a
Python or settings file, or a word of training. Everything else is replaced by a hash, which shows
whether the value changed, but not the value.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MASK = "***"
# Separates the values of one setting in different processes.
BETWEEN_VALUES = " | "
# The forms of versions and names that are shown as they are in a sidecar. Values of other forms are
# not shown.
VERSION = re.compile(
    r"(?=.{1,80}\Z)\d{1,5}(?:\.\d{1,8}){0,4}"
    r"(?:[.-]?(?:a|b|c|rc|alpha|beta|post|dev|git)\d{0,8})*(?:-\d{4,16}v\d{1,3})?"
    r"(?:\+[A-Za-z0-9]{0,40}(?:[._-][A-Za-z0-9]{1,16}){0,4})?",
    re.ASCII,
)
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
GPU_NAME = re.compile(r"(?:[A-Za-z0-9().+-]{1,24}(?: |\Z)){1,10}", re.ASCII)
CAPTURE_NAME = re.compile(r"[^/\\<>&\"'`\x00-\x1f]{1,255}")
CAPTURE_RANGE = re.compile(r"[A-Za-z]{1,40}", re.ASCII)
# The names that nsys has for kinds of events, and for how it traced CUDA graphs.
TRACED = CAPTURE_RANGE
# Samples of Python per second, or that there are none.
PYTHON_IS_NOT_SAMPLED = "off"
PYTHON_SAMPLING = re.compile(rf"{PYTHON_IS_NOT_SAMPLED}|\d{{1,6}}", re.ASCII)
# A hashed value, as `secrets.hash_key` writes it.
HASHED = re.compile(r"hmac:[0-9a-f]{8}(?![0-9A-Za-z])")
# Separates the values of one variable in different processes.
JOINT = " | "
# Stands for a process that does not have the variable.
NOT_SET = "not set"
# The name of the key in a sidecar if each capture has its own key.
PER_CAPTURE = "capture"
# The supervisor of a rank gets the count of nsys's words, and ``--`` before them.
_NSYS_WORDS = "--nsys-words="
_AFTER_SUPERVISOR = "--"
_A_COUNT = re.compile(r"\d{1,4}", re.ASCII)
_REPORT_NAME = "--output="
_MAX_WORDS = 1000
_MAX_WORD_CHARS = 4096
_MORE = "\N{HORIZONTAL ELLIPSIS}"
# Shorter parts of a word are not searched in messages.
_MIN_QUOTED_CHARS = 3
# Shorter parts are replaced only where they are whole words, or other words would be torn apart.
_MIN_CHARS_INSIDE_WORDS = 6
# Where a message may cut a word that it quotes: nowhere, at some signs, at more signs, at a suffix.
_SEPARATORS = tuple(
    map(
        re.compile,
        (r"\Z", r"[=:,\s\"']+", r"[=:,\s\"'/@?&;#{}()\[\]\\]+", r"[=:,\s\"'/]+|\.[a-z]{1,4}\Z"),
    )
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Programs that start others, and those of nsyspipe. No other free words are recorded.
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
# Longer runs of letters and digits are made by machines, for example identifiers, keys and hashes.
_MAX_RUN_CHARS = 20
# A number may have a sign, a point and an exponent besides its digits.
_MAX_NUMBER_CHARS = _MAX_RUN_CHARS + 4
# Hydra writes at most two signs before a name.
_MAX_SIGNS = 2
_MAX_RUN_CHARS_WITH_DIGITS = 12
_MAX_DIGITS_OF_NAME = 8
# Longer runs with small and capital letters must be words that begin with capitals.
_MIN_MIXED_CHARS = 8
_RUN = re.compile(r"[A-Za-z0-9]+", re.ASCII)
# A change from letters to digits or back. For example, h100x8 has three.
_CHANGE = re.compile(r"(?<=\d)(?=[A-Za-z])|(?<=[A-Za-z])(?=\d)", re.ASCII)
_MAX_CHANGES = 3
# How tokens of services begin. In the name of a file, only words may follow.
_TOKEN = re.compile(
    r"(?:hf|[sprg]k|gsk|gh[opsur]|github_pat|glpat|xox[a-z]|xapp|npm|pypi|dckr|dop_v1|nvapi|r8)"
    r"[_\-](.*)",
    re.ASCII,
)
_WORD = r"(?:[A-Z]?[a-z]{1,20}\d{0,2}|\d{1,2}[a-z]{0,4})"
_OF_WORDS = re.compile(rf"{_WORD}(?:[_.\-]{_WORD})*", re.ASCII)
_NUMBER = re.compile(
    r"[+\-]?(0|[1-9]\d{0,2}(?:_\d{3})+|[1-9]\d*|(?=\.\d))(\.\d*)?(e[+\-]?\d{1,3})?"
    r"(?:[kmgtbsh%]|[kmgt]i?b|ms|us|ns|min)?",
    re.ASCII | re.IGNORECASE,
)
# A PIN has 4 digits and may follow any option. Telephone numbers, accounts and cards have more
# digits. Therefore numbers with few digits are recorded anywhere, numbers with some digits after an
# option of training, and numbers with more digits nowhere.
_FEW_DIGITS = 3
_MAX_DIGITS = 7
_MAX_DIGITS_OF_LIST = 14
_MAX_NUMBERS = 16
# A number with more digits is recorded if it is a power of two times a factor below these limits,
# by the number of digits that are allowed. For example, 4712 is not such a number.
_ODD_FACTOR_LIMITS = {_FEW_DIGITS: 16, _MAX_DIGITS: 1000}
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
# Words that hint at a secret inside a part of a name, or at its begin or end.
_SECRET = re.compile(
    r"key|token(?!i[sz])|secret|passw|passphr|passcode|pwd|credential|cred(?:s|\Z)|auth|cookie"
    r"|signature|jwt|bearer|webhook|privat|licen[sc]e|account|login|session|mnemonic"
    r"|cert(?:s|ific|\Z)|phone|email|pword|pswd|kennwort|phrase|vault"
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
# In front of ``name`` they mean the name of a person.
_OF_PERSONS = _words("first last middle full real given family")
_NO_SECRETS = _words("pinned bypass encode decode opcode codebook codec codecs")
# Parts of options after which a number may have more than a few digits.
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
# Options of one letter that are a password, user, key or token for some program.
_SECRET_LETTERS = frozenset("pPuUkKtaAHiSX")
# Names that are counts and not secrets: ``tokens`` with one of these words, and whole names.
_COUNTS = _words("max min num n total per seq batch")
_COUNTING = _words(
    "num_keys n_keys key_dim key_dims key_size key_length key_heads num_key_heads "
    "key_value_heads num_key_value_heads "
    "n_key_value_heads key_dropout num_passes n_passes"
)
_FLAGS = _words("use no with without enable disable is has allow skip")
_BYTES = r"\d{1,7}|\d{1,4}[kmg]|" + "|".join(str(2**power) for power in range(20, 34))
# Names of network interfaces on Linux and Slurm clusters.
_INTERFACE = (
    r"(?:lo|eth|en[opsx]|ib[sp]?|bond|docker|br|hsn|rdmap?|rocep?|mlx5_(?:bond_)?|bnxt_re|irdma"
    r"|efa_)"
)
_INTERFACE_NUMBER = r"(?:\d{1,4}(?:[sfdnp]\d{1,4}){0,4}(?:np?\d{1,2})?)?(?::\d)?"
# A list of interfaces, of all others (^), or of exact names (=).
_INTERFACES = rf"\^?=?(?:{_INTERFACE}{_INTERFACE_NUMBER}(?:,|\Z))+"
_ALLOCATOR = (
    r"(?:(?:expandable_segments:(?:true|false)|backend:(?:native|cudaMallocAsync)"
    r"|max_split_size_mb:\d{1,7}"
    r"|garbage_collection_threshold:0?\.\d{1,3}|roundup_power2_divisions:\d{1,3}"
    r"|pinned_use_cuda_host_register:(?:true|false)|pinned_num_register_threads:\d{1,3})(?:,|\Z))+"
)
_ALGORITHMS = r"\^?(?:(?:tree|ring|collnet|collnetdirect|collnetchain|nvls|nvlstree|pat)(?:,|\Z))+"

# Patterns of whole values that may be recorded, and the variables that they are for. Other values
# of these variables are recorded as a hash.
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
    _ALGORITHMS: "NCCL_ALGO",
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
    """Tell whether a value of one of `VARIABLES` may be recorded."""
    if len(value) > _MAX_WORD_CHARS:
        return False
    match = re.fullmatch(VARIABLES[name], value, re.ASCII | re.IGNORECASE)
    return match is not None


class Mask:
    """Hides values without a key, so that a hash cannot be made. Hashes of values stay."""

    key_id: str | None = None

    def hide(self, _name: str, value: str) -> str:
        """Return what replaces the value of an option or variable."""
        return value if HASHED.fullmatch(value) else MASK


@dataclass(frozen=True)
class _Owner:
    """The option that words belong to until the next option."""

    name: str = ""
    # No word of a secret option is recorded.
    is_secret: bool = False
    # Whether the next word is a value, whatever it looks like.
    takes_next: bool = False
    # Whether it is an option of one letter.
    is_letter: bool = False


class _Written(NamedTuple):
    """A word as it may be recorded, and the option that the next word may belong to."""

    word: str
    owner: _Owner


def recorded_command(words: Iterable[str], mask: Mask) -> list[str]:
    """Return the words of a command as they may be recorded; `mask` hides all others.

    A recorded number has at most 3 digits, or at most 7 after an option with a word of training in
    its name. Leading and trailing zeros do not count, and powers of two may have more digits. Files
    lose their directory. Options with a name that hints at a secret have only hidden values. Of a
    very long command, the first words are recorded, and an ellipsis stands for the rest.
    """
    recorded: list[str] = []
    owner = _Owner()
    for word in words:
        if len(recorded) == _MAX_WORDS:
            return [*recorded, _MORE]
        written, owner = _write_word(word, owner, mask)
        recorded.append(written)
    return recorded


def command_without_launcher(words: Sequence[str]) -> list[str]:
    """Return a recorded command without the words that differ between captures of our launchers.

    A command of our launchers is: supervisor of the rank, ``--``, nsys with its options, program.
    An option of the supervisor has the number of nsys's words. The words up to ``--`` are left out,
    and so is the option of nsys with the name of the report. Other commands stay as they are.
    """
    option_with_count = next((word for word in words if word.startswith(_NSYS_WORDS)), None)
    if option_with_count is None or _AFTER_SUPERVISOR not in words:
        return list(words)
    digits_of_count = option_with_count.removeprefix(_NSYS_WORDS)
    if not _A_COUNT.fullmatch(digits_of_count):
        return list(words)
    start_of_nsys = words.index(_AFTER_SUPERVISOR) + 1
    start_of_program = start_of_nsys + int(digits_of_count)
    words_of_nsys = words[start_of_nsys:start_of_program]
    without_report = [word for word in words_of_nsys if not word.startswith(_REPORT_NAME)]
    return [*without_report, *words[start_of_program:]]


def shown_commands(commands: Iterable[Iterable[str]]) -> list[str]:
    """Return distinct commands as they may be recorded, quoted and sorted.

    Commands whose words are all hidden are left out.
    """
    recorded = [recorded_command(words, Mask()) for words in commands]
    with_shown_words = [words for words in recorded if set(words) - {MASK}]
    return sorted({shlex.join(words) for words in with_shown_words})


def shown_alone(texts: Iterable[str | None], form: re.Pattern[str]) -> list[str]:
    """Return the distinct texts that have a form as a whole, sorted. Other texts are not shown."""
    distinct_texts = {text for text in texts if text is not None}
    return sorted(filter(form.fullmatch, distinct_texts))


def recorded_environment(environment: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """Return the variables of `VARIABLES`, sorted by name, with values as they may be recorded.

    `mask` hides values that are not allowed. A variable may have the joined values of several
    processes, which are checked one by one.
    """
    recorded = {}
    for name in sorted(VARIABLES):
        if name in environment:
            values_of_processes = environment[name].split(JOINT)
            recorded_values = [_recorded_value(name, value, mask) for value in values_of_processes]
            recorded[name] = JOINT.join(recorded_values)
    return recorded


def _recorded_value(name: str, value: str, mask: Mask) -> str:
    """Return the value of a variable in one process as it may be recorded."""
    if value == NOT_SET or allows(name, value):
        return value
    return mask.hide(name, value)


def joined_environments(environments: Iterable[Mapping[str, str] | None]) -> dict[str, str] | None:
    """Join the environments of processes into one, sorted by name; None if none was recorded.

    Different values of a variable are joined, sorted. `NOT_SET` follows them if a process with a
    recorded environment does not have the variable.
    """
    recorded = [environment for environment in environments if environment is not None]
    if not recorded:
        return None
    joined: dict[str, str] = {}
    for name in sorted(set().union(*recorded)):
        distinct_values: set[str] = set()
        for environment in recorded:
            # The value may be joined already.
            joined_values = environment.get(name, NOT_SET)
            distinct_values.update(joined_values.split(JOINT))
        values_in_order = sorted(distinct_values - {NOT_SET})
        if NOT_SET in distinct_values:
            values_in_order.append(NOT_SET)
        joined[name] = JOINT.join(values_in_order)
    return joined


def recorded_settings(settings: Mapping[str, Iterable[str]], mask: Mask) -> dict[str, str]:
    """Return variables, each with values of several processes, as they may be recorded.

    Values are checked as in `recorded_environment`, and joined. The result is sorted by name.
    Variables that are not among `VARIABLES` are left out.
    """
    joined = {}
    for name, values in settings.items():
        recorded_values: set[str] = set()
        for value in values:
            # This is empty if the variable is not among `VARIABLES`.
            recorded = recorded_environment({name: value}, mask)
            recorded_values.update(recorded.values())
        if recorded_values:
            joined[name] = BETWEEN_VALUES.join(sorted(recorded_values))
    return dict(sorted(joined.items()))


def without_words(text: str, words: Sequence[str]) -> str:
    """Replace, in a text, all parts of a command that may not be recorded.

    The text may be an error message that quotes a word of the command, or a part of a word.
    """
    hidden_parts: set[str] = set()
    recorded_words = recorded_command(words, Mask())
    # A very long command has fewer recorded words.
    for word, recorded_word in zip(words, recorded_words, strict=False):
        if word != recorded_word:
            parts = _quotable_parts(word)
            hidden_parts |= {part for part in parts if part not in recorded_word}
    # A long part may have a short one in it.
    longest_first = sorted(hidden_parts, key=len, reverse=True)
    for part in longest_first:
        pattern = re.escape(part)
        if len(part) < _MIN_CHARS_INSIDE_WORDS:
            pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
        text = re.sub(pattern, MASK, text)
    return text


def _quotable_parts(word: str) -> set[str]:
    """Return the parts of a word that a message may quote, without very short ones."""
    without_dashes = word.lstrip("-")
    # In -pVALUE, the letter is the option, and the rest the value.
    without_letter = without_dashes[1:]
    parts: set[str] = set()
    for separator in _SEPARATORS:
        parts.update(separator.split(without_dashes))
        parts.update(separator.split(without_letter))
    return {part for part in parts if len(part) >= _MIN_QUOTED_CHARS}


def _write_word(word: str, owner: _Owner, mask: Mask) -> _Written:
    """Return a word as it may be recorded, and the option that the next word may belong to.

    `owner` is the option that this word may belong to.
    """
    if word in ("", "-", "--", _MORE):
        # These say nothing. After two dashes, words belong to no option.
        next_owner = _Owner() if word == "--" else owner
        return _Written(word, next_owner)
    if owner.takes_next:
        hidden = mask.hide(owner.name, word)
        # A later word that looks like an option is one.
        return _Written(hidden, _Owner(owner.name, is_secret=True))
    # This precedes the options, because a negative number begins with a dash.
    if _is_number(word):
        return _Written(_value(word, owner, mask), owner)
    if word.startswith("--"):
        return _long_option(word, mask)
    if word.startswith("-"):
        return _short_option(word, mask)
    return _Written(_word(word, owner, mask), owner)


class _Option(NamedTuple):
    """The parts of an option: name, ``=`` or ``:``, and value; empty if the option has none."""

    name: str
    sign: str = ""
    value: str = ""


def _split_option(text: str) -> _Option:
    """Split an option, without its dashes."""
    return _Option(*re.split("([=:])", text, maxsplit=1))


def _long_option(word: str, mask: Mask) -> _Written:
    """Return an option with two dashes as it may be recorded, and the owner of the next word."""
    name, sign, value = _split_option(word[2:])
    if not _is_clean(name):
        # This may be a secret that begins with dashes. Nobody knows what the next word is.
        return _Written(mask.hide("", word), _Owner(is_secret=True))
    is_secret = _hints_at_secret(name)
    if sign:
        owner = _Owner(name, is_secret)
        written_value = _nested(value, owner, mask)
        return _Written(f"--{name}{sign}{written_value}", owner)
    is_flag = bool(_parts(name) & _FLAGS)
    # The word after a secret option is hidden, even if it looks like an option. Flags and options
    # that count do not hide a word.
    takes_next = is_secret and not is_flag and not _is_count(name)
    return _Written(word, _Owner(name, is_secret, takes_next=takes_next))


def _short_option(word: str, mask: Mask) -> _Written:
    """Return an option with one dash as it may be recorded, and the owner of the next word.

    The option is a letter (``-n``), a short word of `_SHORT_NAMES`, or a letter with its value
    right behind it (``-n4``).
    """
    name, sign, value = _split_option(word[1:])
    letter = name[:1]
    begins_with_letter = letter.isascii() and letter.isalpha()
    is_letter = begins_with_letter and len(name) == 1
    if is_letter or name in _SHORT_NAMES:
        is_secret = is_letter and name in _SECRET_LETTERS
        owner = _Owner(name, is_secret, is_letter=is_letter)
        if not sign:
            return _Written(word, owner)
        written_value = _nested(value, owner, mask)
        return _Written(f"-{name}{sign}{written_value}", owner)
    if _GLUED_NUMBER.fullmatch(word):
        return _Written(word, _Owner())
    # The word may be a secret, and nobody knows what the next word is.
    if not begins_with_letter:
        return _Written(mask.hide("", word), _Owner(is_secret=True))
    # What follows the letter may be its value, as in mysql -pPASSWORD.
    hidden = mask.hide(letter, word[2:])
    return _Written(f"-{letter}={hidden}", _Owner(letter, is_secret=True))


def _word(word: str, owner: _Owner, mask: Mask) -> str:
    """Return a word that is not an option as it may be recorded.

    The word is a value of the option before it (`owner`), NAME=VALUE, or a free word.
    """
    signs_and_name, _, value = word.partition("=")
    # Hydra writes signs before the name: ``+NAME=VALUE``, ``++NAME=VALUE`` and ``~NAME=VALUE``.
    name = signs_and_name.lstrip("+~")
    n_signs = len(signs_and_name) - len(name)
    # Signs of equality alone, as at the end of base64, are no value.
    has_value = bool(value.strip("="))
    is_assignment = has_value and n_signs <= _MAX_SIGNS and _is_clean(name)
    # A secret option hides the words after it, unless it counts tokens or keys.
    is_hidden_by_owner = owner.is_secret and not _is_count(owner.name)
    if is_assignment and not is_hidden_by_owner:
        inner_owner = _Owner(name, _hints_at_secret(name))
        return f"{signs_and_name}={_nested(value, inner_owner, mask)}"
    return _value(word, owner, mask)


def _nested(value: str, owner: _Owner, mask: Mask) -> str:
    """Return the value of an option, which may be NAME=VALUE or empty, as it may be recorded."""
    if not value:
        return ""
    name, _, inner_value = value.partition("=")
    # Signs of equality alone, as at the end of base64, are no value.
    has_inner_value = bool(inner_value.strip("="))
    is_assignment = has_inner_value and _is_clean(name)
    if is_assignment and not owner.is_secret:
        inner_owner = _Owner(name, _hints_at_secret(name))
        return f"{name}={_value(inner_value, inner_owner, mask)}"
    return _value(value, owner, mask)


def _value(value: str, owner: _Owner, mask: Mask) -> str:
    """Return the value of an option as it may be recorded."""
    allowed = None if len(value) > _MAX_WORD_CHARS else _allowed(value, owner)
    return mask.hide(owner.name, value) if allowed is None else allowed


def _allowed(value: str, owner: _Owner) -> str | None:
    """Return the part of a value that may be recorded; None if no part may be.

    A path of a program or file loses its directory. `owner` is the option or variable of the value.
    A free word has an owner without a name.
    """
    if owner.name in VARIABLES:
        return value if allows(owner.name, value) else None
    if owner.is_secret:
        return _allowed_of_secret(value, owner)
    _, _, program = value.rpartition("/")
    is_program = program in _PROGRAMS or _PYTHON.fullmatch(program)
    has_only_characters_of_paths = _NO_PATH.search(value) is None
    if is_program and has_only_characters_of_paths:
        return program
    is_of_training = bool(_parts(owner.name) & _SETTINGS)
    max_digits = _MAX_DIGITS if is_of_training else _FEW_DIGITS
    is_number_or_list = _is_number(value, max_digits) or _is_list(value, max_digits)
    # A number without an option may be anything.
    if owner.name and is_number_or_list:
        return value
    return _file_name(value)


def _allowed_of_secret(value: str, owner: _Owner) -> str | None:
    """Return the part of the value of a secret option that may be recorded; None if no part may be.

    An option of one letter may have no value. Then the word after it may be a Python file or a
    program of nsyspipe, which is recorded. An option that counts tokens or keys has a number.
    """
    if owner.is_letter:
        file = _file_name(value)
        if file is not None and file.endswith(".py"):
            return file
        if value in _PROGRAMS and value.startswith("nsyspipe."):
            return value
    max_digits = _MAX_DIGITS if "tokens" in _parts(owner.name) else _FEW_DIGITS
    is_count = _is_count(owner.name) and _is_number(value, max_digits)
    return value if is_count else None


def _file_name(value: str) -> str | None:
    """Return the name of a Python or settings file without its directory.

    None for other values, and if the name does not look like words. An @ in front of the path
    stays.
    """
    at_sign = "@" if value.startswith("@") else ""
    path = value.removeprefix("@")
    if _NO_PATH.search(path):
        return None
    _, _, name = path.rpartition("/")
    file = _FILE.fullmatch(name)
    if file is None:
        return None
    stem = file[1]
    return f"{at_sign}{name}" if _is_plain(stem) else None


def _is_plain(stem: str) -> bool:
    """Tell whether the name of a file looks like words, not like a token or key."""
    token = _TOKEN.fullmatch(stem)
    # What follows the beginning of a token may be words: hf_model.
    if token is not None and not _OF_WORDS.fullmatch(token[1]):
        return False
    n_digits = sum(map(str.isdigit, stem))
    if n_digits > _MAX_DIGITS_OF_NAME:
        return False
    return all(map(_is_plain_run, _RUN.findall(stem)))


def _is_plain_run(run: str) -> bool:
    """Tell whether a run of letters and digits looks like words."""
    max_chars = _MAX_RUN_CHARS if run.isalpha() else _MAX_RUN_CHARS_WITH_DIGITS
    n_changes = len(_CHANGE.findall(run))
    if len(run) > max_chars or n_changes > _MAX_CHANGES:
        return False
    has_one_case = run in (run.lower(), run.upper())
    if has_one_case or len(run) < _MIN_MIXED_CHARS:
        return True
    # Tokens mix small and capital letters. Words mix them only if they begin with capitals.
    return _CLEAN_PART.fullmatch(run) is not None


def _is_list(value: str, max_digits: int) -> bool:
    """Tell whether a value is a list of words of training, or of numbers and ranges of ranks.

    The elements are separated by commas, and may stand in brackets. One element is a list too. A
    number has at most `max_digits` digits, without leading and trailing zeros.
    """
    match = _LIST.fullmatch(value)
    if match is None:
        return False
    # The pattern has a group for each kind of brackets, and one for none. The group that matched
    # has the elements.
    inside_brackets = match[match.lastindex or 0]
    elements = [element.strip(" ") for element in inside_brackets.split(",")]
    if len(elements) > _MAX_NUMBERS:
        return False
    if all(element.lower() in _WORDS for element in elements):
        return True
    n_digits = sum(map(_n_digits, elements))
    if n_digits > _MAX_DIGITS_OF_LIST:
        return False
    return all(_is_number(element, max_digits) or _RANKS.fullmatch(element) for element in elements)


def _is_number(value: str, max_digits: int = _MAX_DIGITS) -> bool:
    """Tell whether a value is a number that looks like a setting.

    Such a number has at most `max_digits` digits, without leading and trailing zeros. Or it is a
    power of two times a small odd factor.
    """
    if len(value) > _MAX_NUMBER_CHARS:
        return False
    match = _NUMBER.fullmatch(value)
    if match is None:
        return False
    if _n_digits(value) <= max_digits:
        return True
    integer, fraction, exponent = match.group(1, 2, 3)
    if fraction or exponent or not integer:
        return False
    # The number is not 0, which has no digits besides zeros.
    number = int(integer.replace("_", ""))
    # The lowest bit of the number.
    largest_power_of_two = number & -number
    odd_factor = number // largest_power_of_two
    return odd_factor < _ODD_FACTOR_LIMITS[max_digits]


def _n_digits(value: str) -> int:
    """Return how many digits of a number count: none of its exponent, no zeros at its ends."""
    mantissa, _, _ = value.lower().partition("e")
    digits = "".join(filter(str.isdigit, mantissa))
    return len(digits.strip("0"))


def _is_clean(name: str) -> bool:
    """Tell whether the name of an option looks like words."""
    if len(name) > 4 * _MAX_RUN_CHARS:
        return False
    return _CLEAN.fullmatch(name) is not None


def _parts(name: str) -> set[str]:
    """Return the words that a name consists of, in small letters and without digits at their ends.

    ``numHeads2`` and ``num-heads`` consist of num and heads.
    """
    parts = filter(None, _HUMP.split(name))
    return {part.lower().rstrip("0123456789") for part in parts}


def _hints_at_secret(name: str) -> bool:
    """Tell whether the name of an option or variable has a word that hints at a secret."""
    parts = _parts(name)
    is_pinned_memory = "pin" in parts and not parts.isdisjoint({"memory", "mem"})
    if is_pinned_memory:
        return False
    # Names of persons are secrets too.
    is_name_of_person = "name" in parts and not parts.isdisjoint(_OF_PERSONS)
    if is_name_of_person:
        return True
    # Some harmless words have a hint at a secret in them: "pinned" begins with "pin".
    suspect_parts = parts - _NO_SECRETS
    has_secret_word = not suspect_parts.isdisjoint(_SECRET_PARTS)
    return has_secret_word or any(map(_SECRET.search, suspect_parts))


def _is_count(name: str) -> bool:
    """Tell whether a name says that the value is a number of tokens or keys, not one of them.

    The name must have no other hint at a secret.
    """
    words = filter(None, _HUMP.split(name))
    snake_case_name = "_".join(words).lower()
    if snake_case_name in _COUNTING:
        return True
    parts = _parts(name)
    counts_tokens = "tokens" in parts and not parts.isdisjoint(_COUNTS)
    if not counts_tokens:
        return False
    other_words = "_".join(parts - {"tokens"})
    return not _hints_at_secret(other_words)
