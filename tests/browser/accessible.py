"""Whether everybody can read a page: the rules of axe, with contrast measured once for texts that look alike."""

import functools
from dataclasses import dataclass
from typing import Any

# Contrast takes six times as long as all other rules, and most of it goes to cells of long tables.
# Texts look alike if they and all around them have the same tags, classes and colours. In a row or
# an item of a list, what is laid over its place counts as well. What is itself laid over something
# is measured each time.
EXAMINE = """async () => {
  const LOOK = ["color", "backgroundColor", "backgroundImage", "opacity", "fontSize", "fontWeight", "textShadow", "position"];
  const lookOf = one => {
    const style = getComputedStyle(one);
    return [one.tagName, one.getAttribute("class"), ...LOOK.map(property => style[property])].join();
  };
  const isOver = one => ["absolute", "fixed"].includes(getComputedStyle(one).position);
  const numbers = new Map(), known = new Map();
  const numberOf = text => {
    if (!numbers.has(text)) numbers.set(text, numbers.size);
    return numbers.get(text);
  };
  const chainOf = one => {
    if (!one) return "";
    if (!known.has(one)) known.set(one, numberOf(`${chainOf(one.parentElement)} in ${lookOf(one)}`));
    return known.get(one);
  };
  const overs = new Map();
  const oversOf = row => {
    if (!overs.has(row)) overs.set(row, row ? [...row.querySelectorAll("*")].filter(isOver).map(lookOf).join() : "");
    return overs.get(row);
  };
  const isLaidOver = one => one !== null && (isOver(one) || isLaidOver(one.parentElement));

  const isText = one => [...one.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
  const texts = [...document.body.querySelectorAll("*")]
    .filter(one => isText(one) || one.matches("input, select, textarea"))
    .filter(one => one.checkVisibility({ visibilityProperty: true }));
  const firstOf = new Map();
  texts.forEach((one, at) => {
    const key = isLaidOver(one) ? `over: ${at}` : `${chainOf(one)} beside ${oversOf(one.closest("tr, li"))}`;
    if (!firstOf.has(key)) firstOf.set(key, one);
  });
  const measured = [...firstOf.values()];

  const resultTypes = ["violations"];
  const others = await axe.run(document, { resultTypes, rules: { "color-contrast": { enabled: false } } });
  const contrast = await axe.run({ include: measured }, { resultTypes, runOnly: ["color-contrast"] });
  return [...others.violations, ...contrast.violations]
    .map(({ id, nodes }) => ({ rule: id, elements: nodes.slice(0, 4).map(({ html }) => html.slice(0, 200)) }));
}"""


@dataclass(frozen=True)
class Violation:
    """A rule of axe that a page breaks, and the HTML of the first elements that break it."""

    rule: str
    elements: list[str]


@functools.cache
def _axe_script() -> str:
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - collecting needs no axe

    return Axe().axe_script


def find_violations(page: Any) -> list[Violation]:
    """Return what a page as it stands breaks of the rules of axe."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_axe_script())
    return [Violation(**found) for found in page.evaluate(EXAMINE)]
