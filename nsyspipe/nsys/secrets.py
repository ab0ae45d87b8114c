"""The key for hashes in sidecars, a random file that only the user can read.

The file is ``$XDG_STATE_HOME/nsyspipe/hash-key``, else ``~/.local/state/nsyspipe/hash-key``. If it
cannot be used, each capture has its own key.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsyspipe.nsys.command_words import PER_CAPTURE, Mask, recorded_command, recorded_environment
from nsyspipe.nsys.files import opened

_N_KEY_BYTES = 32
_N_HASH_CHARS = 8
_FILE = "hash-key"
_ACCESSIBLE_TO_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022


class _UnusableError(Exception):
    """A key file cannot be trusted, for the reason in the message."""


@dataclass(frozen=True)
class HashKey(Mask):
    """A key for hashes of values."""

    key: bytes = field(repr=False)
    # A hash that identifies the key, or ``capture`` if only this capture has the key.
    key_id: str | None = PER_CAPTURE
    # A note for the user if only this capture has the key.
    note: str | None = None

    def hide(self, name: str, value: str) -> str:
        """Return ``hmac:`` and 8 characters of HMAC-SHA256.

        The hash depends on the option too, so that equal values of two options are not seen.
        """
        text = f"value\0{name}\0{value}".encode("utf-8", "surrogatepass")
        return f"hmac:{_digest(self.key, text)}"


def hash_key(environment: Mapping[str, str] | None = None) -> HashKey:
    """Return the user's key, which is made at the first use.

    If the key cannot be used, or others could read or change it, return a key for this capture
    only. `environment` has the variables that name the directory; None stands for those of this
    process.
    """
    variables = os.environ if environment is None else environment
    folder = _state_directory(variables)
    if folder is None:
        return _key_of_capture("a state directory", "HOME is not set")
    try:
        key = _users_key(folder)
    except OSError as error:
        return _key_of_capture(f"{folder / _FILE}", error.strerror or "unusable")
    except _UnusableError as error:
        return _key_of_capture(f"{folder / _FILE}", str(error))
    return HashKey(key, key_id=_digest(key, b"which key"))


def _state_directory(variables: Mapping[str, str]) -> Path | None:
    """Return the directory of the key; None if no variable names one."""
    state_home = Path(variables.get("XDG_STATE_HOME", ""))
    default = Path(variables.get("HOME", ""), ".local", "state")
    for folder in (state_home, default):
        # The XDG specification says to ignore relative paths.
        if folder.is_absolute():
            return folder / "nsyspipe"
    return None


def _key_of_capture(where: str, reason: str) -> HashKey:
    """Return a new key for this capture only, with a note about it.

    The note says that there is no key of the user in the place `where`, and the reason.
    """
    consequence = (
        "nsyspipe cannot compare hashed values of this capture with other captures, so diff "
        "reports that they may have changed"
    )
    note = f"note: no key in {where} ({reason}): {consequence}"
    return HashKey(secrets.token_bytes(_N_KEY_BYTES), note=note)


def _users_key(folder: Path) -> bytes:
    """Return the user's key in a directory. Directory and key are made if they do not exist.

    Raises OSError or `_UnusableError` if the key cannot be used.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as directory:
        _check(os.fstat(directory), refused_bits=_WRITABLE_BY_OTHERS, subject="its directory")
        with contextlib.suppress(FileNotFoundError):
            return _read(directory)
        _make(directory)
        # Another process may have made the key first.
        return _read(directory)


def _read(directory: int) -> bytes:
    """Return the key in an open directory, after a check of its file."""
    with opened(_FILE, os.O_RDONLY | os.O_NOFOLLOW, directory) as file:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise _UnusableError("it is not an ordinary file")
        _check(state, refused_bits=_ACCESSIBLE_TO_OTHERS, subject="it")
        # One more byte, so that a longer file is seen.
        key = os.read(file, _N_KEY_BYTES + 1)
    if len(key) != _N_KEY_BYTES:
        raise _UnusableError(f"it does not have {_N_KEY_BYTES} bytes, so remove it")
    return key


def _make(directory: int) -> None:
    """Write a new key into an open directory.

    The file gets its name only when it is complete. If another process has made a key meanwhile,
    the key of that process stays.
    """
    draft = f".{_FILE}-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(draft, flags | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with open(file, "wb") as writing:  # noqa: PTH123 - a descriptor
            os.fchmod(file, 0o600)
            writing.write(secrets.token_bytes(_N_KEY_BYTES))
            writing.flush()
            os.fsync(file)
        with contextlib.suppress(FileExistsError):
            os.link(draft, _FILE, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        os.unlink(draft, dir_fd=directory)


def _check(state: os.stat_result, *, refused_bits: int, subject: str) -> None:
    """Raise `_UnusableError` if a file is another user's, or its mode has one of some bits.

    `subject` is the file in the message of the error.
    """
    if state.st_uid != os.geteuid():
        raise _UnusableError(f"{subject} belongs to another user")
    if state.st_mode & refused_bits:
        access = "read it" if refused_bits == _ACCESSIBLE_TO_OTHERS else "write there"
        raise _UnusableError(f"others can {access}, so run chmod go-rwx")


def _digest(key: bytes, text: bytes) -> str:
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:_N_HASH_CHARS]


def main(words: Sequence[str] | None = None) -> int:
    """Print words as they may be recorded, for example those of a command.

    ``--environment`` in front of them adds the variables of this process that may be recorded.
    Without a key of the user, ``***`` replaces what would be hashed.
    """
    command = list(sys.argv[1:] if words is None else words)
    key = hash_key()
    # A key with a note is no key of the user.
    mask = key if key.note is None else Mask()
    printed_words = []
    if command[:1] == ["--environment"]:
        command = command[1:]
        variables = recorded_environment(os.environ, mask)
        printed_words += [f"{name}={value}" for name, value in variables.items()]
    printed_words += recorded_command(command, mask)
    text = "".join(f"{shlex.quote(word)} " for word in printed_words)
    print(text, end="")  # noqa: T201 - for the launcher
    return 0


if __name__ == "__main__":
    sys.exit(main())
