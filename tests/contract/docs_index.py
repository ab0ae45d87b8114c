"""The index of the docs for agents (``llms.txt``), made from the links of docs/index.md and from the findings."""

import re
from collections.abc import Iterator

from nsyspipe.report.explanations import subjects
from tests.conftest import SAMPLES

DOCS = SAMPLES.parent / "docs"
SUMMARY = (
    "nsyspipe reads the Nsight Systems reports of a multi-GPU PyTorch training run. It shows where "
    "the time of each step goes, names the change that saves most, and measures whether the next "
    "run is faster."
)
NOTE = (
    "Paths are those of the nsyspipe repository. Without the repository, `nsyspipe COMMAND --help` "
    "prints the options of a command, `nsyspipe explain ID` explains a finding, a note or a metric, "
    "and `nsyspipe schema TABLE` explains columns. SKILL.md in the same directory has the questions "
    "that nsyspipe answers."
)
FINDINGS = "Findings"
# Agents leave out this section where space is short.
OF_DEVELOPERS = {"Development": "Optional"}
_LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<path>[^)#]+\.md)\)")
_ROW = re.compile(rf"\| (?P<task>[^|]+) \| {_LINK.pattern} \|")
_ITEM = re.compile(rf"- {_LINK.pattern}(?:: (?P<about>.+))?")


def llms_text() -> str:
    """Return the index of the docs in the form of llms.txt."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    lines = ["# nsyspipe", "", f"> {SUMMARY}", "", NOTE]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        entries = _finding_entries() if heading == FINDINGS else _entries(body)
        lines += ["", f"## {OF_DEVELOPERS.get(heading, heading)}", "", *entries]
    return "\n".join(lines) + "\n"


def _entries(body: str) -> Iterator[str]:
    for line in body.splitlines():
        row, item = _ROW.fullmatch(line), _ITEM.fullmatch(line)
        if row is not None:
            yield _entry(row["title"], row["path"], f"{row['task'].strip()}.")
        elif item is not None:
            yield _entry(item["title"], item["path"], item["about"])


def _finding_entries() -> Iterator[str]:
    for entries in subjects.findings_by_cause().values():
        for entry in entries:
            yield _entry(entry.id, f"findings/{entry.id}.md", f"{entry.title.rstrip('.')}.")


def _entry(title: str, path: str, about: str | None) -> str:
    place = (DOCS / path).resolve().relative_to(DOCS.parent.resolve())
    notes = f": {about}" if about else ""
    return f"- [{title}]({place.as_posix()}){notes}"
