"""Names from traces stay text in GitHub's Markdown, whatever they hold."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nsyspipe.model.names import printable
from nsyspipe.report.markdown import escaped, prose, table
from tests.markdown_page import UNPARTED, Page

HOSTILE = [
    "**bold** __bold__ *it* _it_ ~~gone~~ a_b_c __x__ _",
    "`code` ``code`` `",
    "| a | b | \\| c \\\\| d \\",
    "<script>alert(1)</script> <img src=x onerror=y> <!-- --> <https://x.y>",
    "&lt;b&gt; &amp; &#64;octocat &#35;1",
    "[link](https://evil.example) ![image](https://evil.example/x.png) [ref][1] [^1]",
    "@octocat @github/security a@b.example mailto:a@b.example",
    "#123 owner/repo#123 GH-123 gh-7 owner/repo@deadbeef",
    "https://github.com/a/b/issues/1 http://x.y ftp://x.y www.evil.example WWW.x.y",
    ":tada: at::native::add :+1:",
    "$x$ $$x$$ $`x`$",
    "first\nsecond\r\n\n# heading\n- item\u2028\x1b[31m\u202e",
    "--> <!-- nsyspipe:analyze -->",
]


@pytest.mark.parametrize("write", [escaped, prose])
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("frame", ["a {} b", "**a {}.**", "- a: {}", "| h |\n| --- |\n| a {} b |"])
def test_hostile_text_is_shown_as_it_is(write, text, frame):
    source = frame.format(write(text, 500))
    page = Page(source)
    shown = page.tables[0][1] if page.tables else page.texts
    assert len(shown) == 1
    assert printable(text).strip() in shown[0]
    assert not page.links
    assert not page.reached
    assert set(page.html) <= {"<span>", "</span>"}
    assert page.tags <= {"", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code"}  # fmt: skip
    assert write is prose or not page.codes
    assert source.count("\n") == frame.count("\n")


PIECES = st.sampled_from(
    [*"\\`*_~[]()<>&|$@#:!-+=.^{}'\" ab1\n\t", "www.", "http://", "GH-", "&#64;", "a_b", "x=1", "f()"]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_shown_as_it_is(text):
    for write in (escaped, prose):
        page = Page(f"x {write(text)} y\n\n| h |\n| --- |\n| x {write(text)} y |\n")
        assert page.texts == [f"x {printable(text)} y"]
        assert page.tables == [[["h"], [f"x {printable(text)} y"]]]
        assert not page.links
        assert not page.reached


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("lower bucket_cap_mb, then no_sync()", ["bucket_cap_mb", "no_sync()"]),
        ("(DDP bucket_cap_mb=...)", ["bucket_cap_mb"]),
        ("DDP(bucket_cap_mb=...), 25 is", ["DDP(bucket_cap_mb=...)"]),
        ("and .to(device, non_blocking=True)", [".to(device, non_blocking=True)"]),
        ("avoid .item(), print of tensors", [".item()"]),
        ("(fused=True), NCCL_P2P_DISABLE=1.", ["fused=True", "NCCL_P2P_DISABLE=1"]),
        ('torch.compile(mode="reduce-overhead")', ['torch.compile(mode="reduce-overhead")']),
        ("use torch.compile.", ["torch.compile"]),
        ("(--trace=cuda,nvtx, no --sample)", ["--trace=cuda,nvtx", "--sample"]),
        ("ddp-4gpu_0.sqlite ends early", ["ddp-4gpu_0.sqlite"]),
        ("the 3 rank(s) of 0.5 s, e.g. well-known, at 2.5", []),
        ("a@b_c.de /tmp/a_b #a_b", ["b_c.de", "a_b"]),
    ],
)
def test_names_of_programs_are_in_code_font(text, codes):
    page = Page(f"x {prose(text)}")
    assert page.codes == codes
    assert page.texts == [f"x {text}"]


def test_figures_are_aligned_to_the_right_and_keep_their_units_beside_them():
    assert table(["a b", "c"], [["1 ms", "x y"], ["2 ms", "z"]], n_words=1) == [
        "| a b | c |",
        "| --: | --- |",
        f"| 1{UNPARTED}ms | x y |",
        f"| 2{UNPARTED}ms | z |",
    ]


def test_long_text_is_cut_before_it_is_escaped():
    assert escaped("*" * 301) == "\\*" * 297 + "..."
    assert escaped("*" * 300) == "\\*" * 300
    assert prose("a_b c", 4) == "a..."
