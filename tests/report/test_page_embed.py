"""What a page carries: data that cannot leave its element, and an identity that is found again."""

from __future__ import annotations

import json

import pytest

from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.page import MOST_LETTERS, RUN_ID, as_json, cut, run_id_of_page


def page(path, *, name=RUN_ID, content="run-1", before=""):
    head = f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{before}'
    path.write_text(f'{head}<meta name="{name}" content="{content}">\n', encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["</script>", "<!--", "a & b", "line\u2028end\u2029"])
def test_data_holds_nothing_that_ends_a_script_element(name):
    text = as_json({"name": name})
    assert not set(text) & set("<>&\u2028\u2029")


def test_a_name_in_data_is_the_name_again_once_read():
    assert json.loads(as_json(["</script><b>&"])) == ["</script><b>&"]


def test_control_and_direction_characters_of_a_name_are_replaced():
    # NUL, escape, right-to-left override, zero-width joiner, a lone surrogate.
    assert cut("a\x00b\x1b[c\u202ed\u200de\udc80") == "a\ufffdb\ufffd[c\ufffdd\ufffde\ufffd"


def test_of_a_long_name_the_start_is_shown():
    shown = cut("x" * 10_000)
    assert len(shown) == MOST_LETTERS
    assert shown == "x" * (MOST_LETTERS - 1) + "…"


def test_a_name_that_just_fits_is_shown_whole():
    assert cut("x" * MOST_LETTERS) == "x" * MOST_LETTERS


def test_a_number_that_json_has_no_word_for_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json([float("nan")])


def test_data_are_written_in_one_order():
    assert as_json({"b": 1, "a": [1, 2.5, None]}) == '{"a":[1,2.5,null],"b":1}'


def test_the_run_of_a_page_is_read_from_its_head(tmp_path):
    assert run_id_of_page(page(tmp_path / "a.html", content="2026&#34;x")) == '2026"x'


def test_a_page_of_something_else_has_no_run(tmp_path):
    other = page(tmp_path / "a.html", name="nsyspipe-store", content="s")
    assert run_id_of_page(other) is None
    assert identity_of_page(other, "nsyspipe-store") == "s"


def test_an_identity_further_down_is_none(tmp_path):
    later = page(tmp_path / "a.html", before="<title>x</title>")
    assert run_id_of_page(later) is None


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"<html>", b'{"run": {}}'])
def test_any_other_file_has_no_run(tmp_path, content):
    path = tmp_path / "a.html"
    path.write_bytes(content)
    assert run_id_of_page(path) is None


def test_a_file_that_is_not_there_has_no_run(tmp_path):
    assert run_id_of_page(tmp_path / "none.html") is None
