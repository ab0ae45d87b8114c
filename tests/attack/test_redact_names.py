"""Names that a redaction removes, and that kept texts still hold: counted."""

from __future__ import annotations

import pytest

from nsyspipe.redact.redact import redact
from nsyspipe.report.redaction import redaction_text
from tests.build.trace import steady_rank


def redacted(tmp_path, *texts, **variables):
    built = steady_rank(0).env(**variables)
    for at, text in enumerate(texts):
        built.range(at, at + 1, text, inline=at % 2 == 1)
    path = built.write(tmp_path / "r.sqlite")
    return redact(str(path), tmp_path / "out.sqlite")


@pytest.mark.parametrize(
    ("texts", "n"),
    [
        (["load /home/ada/data.pt"], 1),
        (["load /home/ada/data.pt", "job of ADA", "on node0"], 3),
        (["canada", "step 1", "node01"], 0),
    ],
)
def test_kept_texts_with_a_removed_name_are_counted(tmp_path, texts, n):
    done = redacted(tmp_path, *texts, HOME="/home/ada/", USER="ada")
    assert done.removed.n_named == n
    assert ("still hold" in redaction_text(done, tmp_path)) == bool(n)


def test_short_names_find_nothing(tmp_path):
    done = redacted(tmp_path, "a b a", "root of all", USER="a", LOGNAME="root")
    assert done.removed.n_named == 0
