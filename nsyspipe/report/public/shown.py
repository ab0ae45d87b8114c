"""What every answer has: its verdict in words, and what a notebook shows."""

from typing import Any


class ShownInNotebooks:
    """Says its result in a sentence, and shows itself in a notebook."""

    # The words and the page are imported when they are asked for, because they import much.
    @property
    def headline(self: Any) -> str:
        """The result in one sentence, as at the top of the HTML report."""
        from nsyspipe.report.html.notebook import headline  # noqa: PLC0415

        return headline(self)

    @property
    def verdict(self) -> str:
        """The `headline`, or one word for a difference."""
        return self.headline

    def _repr_html_(self: Any) -> str:
        from nsyspipe.report.html.notebook import notebook_html  # noqa: PLC0415

        return notebook_html(self)

    def _with_headline(self, text: str) -> str:
        """Return the text of an object in angle brackets, with the headline."""
        return f"{text.removesuffix('>')}: {self.headline}>"
