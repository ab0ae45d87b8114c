"""The key that a user's sidecars hash values with: a random file of the user's own, which nobody else reads.

``$XDG_STATE_HOME/nsyspipe/hash-key``, else ``~/.local/state/nsyspipe/hash-key``; else each capture
has a key of its own.
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

_N_BYTES = 32
_N_SHOWN = 8
_FILE = "hash-key"
_OF_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022


class _UnusableError(Exception):
    """A key file that cannot be trusted; the message says why."""


@dataclass(frozen=True)
class HashKey(Mask):
    """A key; its name is a hash by it, or ``capture`` for one of this capture only, with a note for the user."""

    key: bytes = field(repr=False)
    key_id: str | None = PER_CAPTURE
    note: str | None = None

    def of(self, name: str, value: str) -> str:
        """Return ``hmac:`` and 8 characters of HMAC-SHA256: one value has one hash per option."""
        text = f"value\0{name}\0{value}".encode("utf-8", "surrogatepass")
        return f"hmac:{_digest(self.key, text)}"


def hash_key(environment: Mapping[str, str] | None = None) -> HashKey:
    """Return the user's key, made at the first use; else, or where others could touch it, one of this capture's own."""
    given = os.environ if environment is None else environment
    places = (Path(given.get("XDG_STATE_HOME", "")), Path(given.get("HOME", ""), ".local", "state"))
    place = next(
        (one / "nsyspipe" for one in places if one.is_absolute()), None
    )  # a relative one is to be ignored
    where = "a state directory" if place is None else f"{place / _FILE}"
    reason = "HOME is not set"
    if place is not None:
        try:
            key = _users_key(place)
            return HashKey(key, key_id=_digest(key, b"which key"))
        except (OSError, _UnusableError) as error:
            reason = error.strerror or "unusable" if isinstance(error, OSError) else str(error)
    of_others = (
        "nsyspipe cannot compare hashed values of this capture with other captures, so diff "
        "reports that they may have changed"
    )
    return HashKey(
        secrets.token_bytes(_N_BYTES), note=f"note: no key in {where} ({reason}): {of_others}"
    )


def _users_key(place: Path) -> bytes:
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700, parents=True)
    with opened(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as directory:
        _check(os.fstat(directory), _WRITABLE_BY_OTHERS, "its directory")
        with contextlib.suppress(FileNotFoundError):
            return _read(directory)
        _make(directory)
        return _read(directory)


def _read(directory: int) -> bytes:
    with opened(_FILE, os.O_RDONLY | os.O_NOFOLLOW, directory) as file:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise _UnusableError("it is not an ordinary file")
        _check(state, _OF_OTHERS, "it")
        key = os.read(file, _N_BYTES + 1)
    if len(key) != _N_BYTES:
        raise _UnusableError(f"it does not have {_N_BYTES} bytes, so remove it")
    return key


def _make(directory: int) -> None:
    """Put a new key in its place, whole; the first of several processes wins."""
    draft = f".{_FILE}-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(draft, flags | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with open(file, "wb") as writing:  # noqa: PTH123 - a descriptor
            os.fchmod(file, 0o600)
            writing.write(secrets.token_bytes(_N_BYTES))
            writing.flush()
            os.fsync(file)
        with contextlib.suppress(FileExistsError):
            os.link(draft, _FILE, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        os.unlink(draft, dir_fd=directory)


def _check(state: os.stat_result, refused: int, what: str) -> None:
    if state.st_uid != os.geteuid():
        raise _UnusableError(f"{what} belongs to another user")
    if state.st_mode & refused:
        raise _UnusableError(
            f"others can {'read it' if refused == _OF_OTHERS else 'write there'}, so run chmod "
            "go-rwx"
        )


def _digest(key: bytes, text: bytes) -> str:
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:_N_SHOWN]


def main(words: Sequence[str] | None = None) -> int:
    """Print words as they may be written down, after ``--environment`` variables too; without a user's key ``***``."""
    given = list(sys.argv[1:] if words is None else words)
    key = hash_key()
    mask = key if key.note is None else Mask()
    variables = {}
    if given[:1] == ["--environment"]:
        given = given[1:]
        variables = recorded_environment(os.environ, mask)
    found = [
        *(f"{name}={value}" for name, value in variables.items()),
        *recorded_command(given, mask),
    ]
    print("".join(f"{shlex.quote(word)} " for word in found), end="")  # noqa: T201 - what the launcher asks for
    return 0


if __name__ == "__main__":
    sys.exit(main())
