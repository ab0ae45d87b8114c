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
    # No file has this identity, so no file is replaced without --force.
    identity = object()
    outputs.answer(formats, blocks, [], identity)


# The type of the result is imported only when the command runs.
def _explanation_of(topic: str) -> Any:  # noqa: ANN401
    """Return the explanation of an ID. Raise an OptionError if there is no such ID.

    The error shows the IDs that are most similar.
    """
    from nsyspipe.report.explanations import subjects

    explanation = subjects.explain(topic)
    if explanation is not None:
        return explanation
    similar_ids = subjects.similar_ids(topic)
    if similar_ids:
        similar_text = ", ".join(similar_ids)
        fix = f"nsyspipe explain {similar_ids[0]}"
    else:
        similar_text = None
        fix = "nsyspipe explain, which lists all IDs"
    subject = f"nsyspipe explain {topic!r}"
    raise OptionError(subject, "there is no such ID", found=similar_text, fix=fix)
