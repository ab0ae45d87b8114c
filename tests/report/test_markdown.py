"""`--markdown`: what one pastes into a pull request; names stay text in GitHub's Markdown, whatever they hold."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import nsyspipe
from nsyspipe.model.names import printable
from nsyspipe.report.markdown import escaped, markdown, prose, run_id_of_markdown
from nsyspipe.report.overview import recommendations_of
from tests.build.across import every_step, load, reports
from tests.build.tools import Changed, finding
from tests.build.trace import KERNEL, steady_rank
from tests.cli.sick_run import LOG, TOPOLOGY, write_sick
from tests.markdown_page import Page

MOST_LINES = 60


def test_findings_are_a_table_with_options_in_code_font(tmp_path, worded):
    run = nsyspipe.load(write_sick(tmp_path), nccl_log=[LOG], topology=TOPOLOGY)
    page = Page(markdown(run))
    _, *rows = page.tables[-1]
    found = recommendations_of(run)
    assert [row[1] for row in rows] == [
        f"{one.finding.action} [{one.finding.id}]" for one in found.alternatives
    ]
    # 485 ns of late launches of steps of 1000, and 300 of communication that they expose.
    assert found.first.saved_share == pytest.approx(0.785, abs=0.001)
    worded([*page.texts, *page.codes])


def test_a_finding_without_a_bound_has_none(steady_run):
    source = markdown(Changed(steady_run, findings=[finding(1) | {"saving_ns_per_step": None}]))
    assert Page(source).tables[-1][1][2:] == ["-", "-"]


def test_equal_problems_of_several_ranks_are_one_line_with_what_mends_them(steady_run, worded):
    rows = [{"message": "no x_y", "fix": "--trace=cuda", "rank": rank} for rank in range(6)]
    rows += [{"message": "half a file", "severity": "error", "report": "a_b.sqlite"}]
    rows += [{"message": f"by the way {n}", "severity": "info"} for n in range(3)]
    worded(markdown(Changed(steady_run, problems=rows)).rpartition("\n### ")[2], "all severities")
    worded(markdown(Changed(steady_run, problems=rows[-1:])).splitlines()[-1], "info alone")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Return a run of 12 ranks, three of which stand out.

    Per step a kernel hides [400, 500) of the all-reduce [400, 520): 20 are exposed. Rank 3 arrives
    at 450, and the others wait 50 for it. Rank 7 lacks that kernel: 120 are exposed. Step 3 of rank
    11 starts 30 later than on the others, so that its step 2 takes 1030 instead of 1000.
    """
    found = reports(12)
    for rank, builder in enumerate(found):
        for at in range(0, 4000, 1000) if rank != 7 else ():
            builder.kernel(at + 400, at + 500, launch=at + 15)
    found[11].rows[KERNEL][3]["start"] += 30
    every_step(found, *(450 if rank == 3 else 400 for rank in range(12)), end=520)
    return load(found, tmp_path_factory.mktemp("many"))


@pytest.mark.slow
def test_of_many_ranks_those_that_matter_are_shown(many, worded):
    page = Page(markdown(many))
    rows = {row[0]: row for row in page.tables[1][1:]}
    assert len(rows) == 8
    # The most waited for by 50 ns, the most exposed by 120, and the slowest.
    assert (rows["3"][-1], rows["7"][3]) == ("0.0001", "0.0001")
    assert "11" in rows
    worded([text for text in page.texts if "8 of 12" in text])


@pytest.mark.slow
def test_the_longest_page_has_60_lines_at_most_and_says_what_it_left_out(many, tmp_path, worded):
    link = nsyspipe.load(write_sick(tmp_path), nccl_log=[LOG], topology=TOPOLOGY).link
    findings = [finding(number) for number in range(30)]
    problems = [{"message": "x" * n, "fix": "mend it", "rank": n} for n in range(40)]
    problems += [{"message": "by the way", "severity": "info"}]
    source = markdown(Changed(many, findings=findings, problems=problems, link=link))
    assert len(source.splitlines()) <= MOST_LINES
    page = Page(source)
    # The first stands above the table of the others.
    assert [row[1].strip(" []") for row in page.tables[-1][1:]] == [
        f"rule-{n}" for n in range(1, 8)
    ]
    worded(source)


def test_the_same_reports_give_the_same_page_in_any_order(tmp_path):
    paths = [steady_rank(rank).write(tmp_path / f"r_{rank}.sqlite") for rank in range(2)]
    assert markdown(nsyspipe.load(paths)) == markdown(nsyspipe.load(paths[::-1]))


TAGS = {"", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code"}
NAME = "<img src=x onerror=alert(1)> @octocat #12 `a` |b| **c** [d](http://e.example) -->\n# f"


def test_hostile_names_stay_text(tmp_path):
    for rank in range(2):
        builder = steady_rank(rank)
        for row in builder.rows["StringIds"]:
            row["value"] = row["value"].replace("step ", f"{NAME} ")
        builder.gpu(0, f"H200 {NAME}").write(tmp_path / f"a{NAME[:25]}_{rank}.sqlite")
    run = nsyspipe.load(tmp_path, run_id=NAME, label=NAME)
    rows = [finding(1) | {"title": NAME, "advice": NAME}]
    source = markdown(
        Changed(run, findings=rows, problems=[{"message": NAME, "fix": NAME, "report": NAME}])
    )
    page = Page(source)
    assert not page.links
    assert not page.reached
    assert page.html == source.splitlines()[:2]
    assert [text for text in page.texts if NAME.replace("\n", "\N{REPLACEMENT CHARACTER}") in text]
    assert page.texts[0].startswith("<img src=x onerror=alert(1)> @octocat #12 `a` |b| **c** [d]")
    assert page.tags <= TAGS | {"h3"}


@pytest.mark.parametrize(
    "run_id",
    [
        "r1",
        "20261120T2215-38",
        "a b",
        "-->",
        "--!>",
        "->",
        ">",
        "---",
        "a--",
        "a--b",
        "--> <b>",
        "<!--",
        "%2D",
        "é\n\t",
        "\udce9",
        "",
    ],
)
def test_a_run_id_is_found_again_and_cannot_end_its_comment(steady_run, tmp_path, run_id):
    text = markdown(Changed(steady_run, header=replace(steady_run.header, run_id=run_id)))
    assert "--" not in text.splitlines()[1].removeprefix("<!--").removesuffix("-->")
    path = tmp_path / "comment.md"
    path.write_text(text, encoding="utf-8")
    assert run_id_of_markdown(path) == run_id


def test_a_page_keeps_its_run_id_through_a_web_form(steady_run, tmp_path):
    path = tmp_path / "notes.md"
    assert run_id_of_markdown(path) is None
    assert run_id_of_markdown(tmp_path) is None
    head = "<!-- nsyspipe:analyze -->"
    key = "<!-- nsyspipe:run_id=a -->"
    for text in (
        "",
        "# notes",
        head,
        f"# notes\n{head}\n{key}",
        f"<!-- nsyspipe:whatif -->\n{key}",
    ):
        path.write_text(text)
        assert run_id_of_markdown(path) is None, text
    path.write_bytes(b"\xff\xfe\x00")
    assert run_id_of_markdown(path) is None
    path.write_bytes(markdown(steady_run).replace("\n", "\r\n").encode())
    assert run_id_of_markdown(path) == "r1"


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
    (shown,) = page.tables[0][1] if page.tables else page.texts
    assert printable(text).strip() in shown
    assert not page.links
    assert not page.reached
    assert set(page.html) <= {"<span>", "</span>"}
    assert page.tags <= TAGS
    assert write is prose or not page.codes
    assert source.count("\n") == frame.count("\n")


PIECES = st.sampled_from(
    [
        *"\\`*_~[]()<>&|$@#:!-+=.^{}'\" ab1\n\t",
        "www.",
        "http://",
        "GH-",
        "&#64;",
        "a_b",
        "x=1",
        "f()",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_shown_as_it_is(text):
    for write in (escaped, prose):
        page = Page(f"x {write(text)} y\n\n| h |\n| --- |\n| x {write(text)} y |\n")
        assert page.texts == [f"x {printable(text)} y"], write
        assert page.tables == [[["h"], [f"x {printable(text)} y"]]], write
        assert not page.links, write
        assert not page.reached, write


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("lower bucket_cap_mb, then no_sync()", ["bucket_cap_mb", "no_sync()"]),
        ("(DDP bucket_cap_mb=...)", ["bucket_cap_mb"]),
        ("DDP(bucket_cap_mb=...), 25 is", ["DDP(bucket_cap_mb=...)"]),
        ("or .to(device, non_blocking=True)", [".to(device, non_blocking=True)"]),
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
    assert (page.codes, page.texts) == (codes, [f"x {text}"])


def test_long_text_is_cut_before_it_is_escaped():
    assert escaped("*" * 301) == "\\*" * 297 + "..."
    assert escaped("*" * 300) == "\\*" * 300
    assert prose("a_b c", 4) == "a..."
