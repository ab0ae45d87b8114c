"""``nsyspipe explain``: what a finding, a note, a metric or a word of an output means."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from nsyspipe.cli.options import option, with_options
from nsyspipe.cli.outputs import Outputs
from nsyspipe.errors import OptionError

_ID = (
    "A finding (slow-link), a note (few-steps), a metric (exposed_comm), a column (wall_ns), or a "
    "word (estimates)."
)


@dataclass(frozen=True)
class ExplainOutputs(Outputs):
    """The file of an explanation."""

    json: str | None = option("Write JSON. - prints only the JSON.", "FILE|-")
    markdown: str | None = None
    html: str | None = None
    open: bool = False


def _complete_id(incomplete: str) -> list[str]:
    from nsyspipe.report.explanations.subjects import all_ids

    return [name for name in all_ids() if name.startswith(incomplete)]


@with_options
def explain(
    topic: Annotated[
        str | None, typer.Argument(metavar="ID", help=_ID, autocompletion=_complete_id)
    ] = None,
    *,
    outputs: ExplainOutputs,
) -> None:
    """Explain a finding, a note, a metric, a column, or a word that outputs use.

    Without an ID, this command lists all IDs. A finding is explained in five parts: what it means,
    how to recognize it, code before and after, when not to do it, and how the saving is estimated.

    \b
    Examples:
      nsyspipe explain
      nsyspipe explain single-bucket
      nsyspipe explain estimates
      nsyspipe explain exposed_comm --json -
    """
    from nsyspipe.report.explanations import shown
    from nsyspipe.report.formats import Format, dumps

    outputs.check()
    document: dict[str, Any]
    if topic is None:
        document = shown.index_document()
        blocks = list(shown.index_blocks())
    else:
        explanation = _explanation_of(topic)
        document = shown.explanation_document(explanation)
        blocks = list(shown.explanation_blocks(explanation))
    formats = {"json": Format(partial(dumps, document, max_characters=None), lambda _: None)}
    outputs.answer(formats, blocks, [], object())


# The type of the result is imported only when the command runs.
def _explanation_of(topic: str) -> Any:  # noqa: ANN401
    """Return the explanation of an ID, or raise with the IDs that are most similar."""
    from nsyspipe.report.explanations import subjects

    explanation = subjects.explain(topic)
    if explanation is None:
        similar = subjects.similar_ids(topic)
        fix = (
            f"nsyspipe explain {similar[0]}" if similar else "nsyspipe explain, which lists all IDs"
        )
        raise OptionError(
            f"nsyspipe explain {topic!r}",
            "there is no such ID",
            found=", ".join(similar) or None,
            fix=fix,
        )
    return explanation
