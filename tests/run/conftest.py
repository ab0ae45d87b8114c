"""Reports that the tests of a file write several times, read once."""

import functools
import hashlib
import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from nsyspipe.run import gather


@pytest.fixture(scope="module")
def digested_once():
    """Digest reports with equal bytes once per test file, because most tests of a file write the same few reports.

    A digest depends on the bytes of the report and on the other arguments alone, except for the
    state of the file, which is that of the file at hand.
    """
    digest_report = gather.digest_report
    digests = {}

    @functools.wraps(digest_report)
    def digest_once(path, *arguments, **options):
        content = hashlib.blake2b(Path(path).read_bytes()).digest()
        key = content, pickle.dumps((arguments, options))
        if key not in digests:
            digests[key] = digest_report(path, *arguments, **options)
        status = Path(path).stat()
        state = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        digest = digests[key]
        return replace(digest, facts=replace(digest.facts, file_state=state))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "digest_report", digest_once)
        yield
