"""What pages are made of: the library as published, colours that all can tell apart, data that stay data, an identity."""

import base64
import hashlib
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html import page
from nsyspipe.report.html.page import (
    LIBRARY,
    MOST_LETTERS,
    RUN_ID,
    as_json,
    csp,
    cut,
    read_asset,
    run_id_of_page,
)

ASSETS = Path(page.__file__).parent / "assets"
CATEGORIES = ("compute", "exposed", "hidden", "waiting", "copies", "idle", "transfer", "launch")
PHASES = ("data", "forward", "backward", "optimizer")
# Of lines of Python, which have a lane of their own.
LINES = ("l-1", "l-2", "l-3", "l-4", "l-5", "l-other")
# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def test_echarts_has_the_documented_version_and_its_licenses():
    named = re.search(r"sha256 of `echarts.min.js`: `([0-9a-f]{64})`", read_asset("README.md"))
    assert hashlib.sha256((ASSETS / LIBRARY).read_bytes()).hexdigest() == named[1]
    for name in ("LICENSE", "NOTICE", "LICENSE-d3"):
        assert (ASSETS / "echarts-licenses" / name).stat().st_size > 100, name


def test_scripts_and_styles_load_nothing_from_outside():
    own = "".join(path.read_text() for path in ASSETS.glob("*.js") if path.name != LIBRARY)
    for text in (own, *(path.read_text() for path in ASSETS.glob("*.css"))):
        assert not re.search(
            r"https?://(?!www\.w3\.org/)|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket", text
        ), text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", own)


def test_the_policy_allows_these_scripts_and_no_others():
    digest = base64.b64encode(hashlib.sha256(b"let a = 1;").digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in csp(("let a = 1;",)).split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def colours(theme: int) -> dict[str, np.ndarray]:
    """Return the categories' linear RGB, light (0) or dark (1)."""
    tokens = read_asset("tokens.css")
    found = {}
    for name in (
        *(f"c-{one}" for one in CATEGORIES),
        *(f"p-{one}" for one in PHASES),
        *LINES,
        "page",
        "ink",
        "ink-2",
        "ink-3",
        "accent",
        "bad",
        "warn",
        "surface",
    ):
        both = re.search(rf"--{name}: light-dark\((#[0-9a-f]{{6}}), (#[0-9a-f]{{6}})\)", tokens)
        assert both, name
        value = np.array([int(both[theme + 1][at : at + 2], 16) / 255 for at in (1, 3, 5)])
        found[name.removeprefix("c-").removeprefix("p-")] = np.where(
            value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4
        )
    return found


def lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (to_xyz @ np.clip(linear, 0, 1)) / [0.95047, 1.0, 1.08883]
    fx, fy, fz = (
        one ** (1 / 3) if one > (6 / 29) ** 3 else one / (3 * (6 / 29) ** 2) + 4 / 29
        for one in (x, y, z)
    )
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    low, high = sorted(float(linear @ [0.2126, 0.7152, 0.0722]) for linear in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_categories_are_told_apart_with_any_colour_vision(theme, deficiency):
    found = colours(theme)
    seen = {
        name: lab(np.array(DEFICIENCIES[deficiency]) @ found[name])
        for name in (*CATEGORIES, *PHASES)
    }
    # 2.3 is a just noticeable difference; 20 is told apart at a glance.
    for one, other in itertools.combinations(CATEGORIES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)
    # Phases stand in lanes of their own, with their names; there is no idle lane beside them.
    for one, other in itertools.product(PHASES, {*CATEGORIES} - {"idle"}):
        assert np.linalg.norm(seen[one] - seen[other]) > 17, (one, other)
    for one, other in itertools.pairwise(PHASES):
        assert np.linalg.norm(seen[one] - seen[other]) > 10, (one, other)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_lines_of_python_are_told_apart_with_any_colour_vision(theme, deficiency):
    found = colours(theme)
    seen = {name: lab(np.array(DEFICIENCIES[deficiency]) @ found[name]) for name in LINES}
    for one, other in itertools.combinations(LINES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "ink-2", "ink-3", "accent", "bad", "warn"])
def test_text_has_the_contrast_of_wcag_aa(theme, ink):
    found = colours(theme)
    assert min(contrast(found[ink], found[ground]) for ground in ("page", "surface")) >= 4.5
    lanes = (
        "transfer",
        "launch",
        "compute",
        "exposed",
        *(("hidden", "idle", "copies") if theme else ()),
    )
    assert min(contrast(found[lane], found["surface"]) for lane in lanes) >= 3


def test_page_data_cannot_end_a_script_element():
    names = ["</script>", "<!--", "a & b", "line\u2028end\u2029"]
    assert not set(as_json(names)) & set("<>&\u2028\u2029")
    assert json.loads(as_json(names)) == [*map(cut, names)]
    assert as_json({"b": 1, "a": [1, 2.5, None]}) == '{"a":[1,2.5,null],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json([float("nan")])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        # NUL, escape, right-to-left override, zero-width joiner, a lone surrogate.
        ("a\x00b\x1b[c\u202ed\u200de\udc80", "a\ufffdb\ufffd[c\ufffdd\ufffde\ufffd"),
        ("x" * 10_000, "x" * (MOST_LETTERS - 1) + "…"),
        ("x" * MOST_LETTERS, "x" * MOST_LETTERS),
    ],
)
def test_a_name_is_shown_without_what_directs_it_and_not_at_any_length(name, shown):
    assert cut(name) == shown


HEAD = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'


@pytest.mark.parametrize(
    ("content", "run_id", "store"),
    [
        (f'{HEAD}<meta name="{RUN_ID}" content="2026&#34;x">\n', '2026"x', None),
        (f'{HEAD}<meta name="nsyspipe-store" content="s">\n', None, "s"),
        (f'{HEAD}<title>x</title><meta name="{RUN_ID}" content="run-1">\n', None, None),
        *((content, None, None) for content in ("", "\0\xff\xfe", "<html>", '{"run": {}}')),
    ],
)
def test_an_identity_is_read_from_the_head_of_a_page_and_of_no_other_file(
    tmp_path, content, run_id, store
):
    path = tmp_path / "a.html"
    assert run_id_of_page(path) is None
    path.write_bytes(content.encode("latin-1"))
    assert (run_id_of_page(path), identity_of_page(path, "nsyspipe-store")) == (run_id, store)
