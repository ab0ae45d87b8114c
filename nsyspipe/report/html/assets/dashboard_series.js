/**
 * The list of the series in view: the shape of each, and its latest or shortest step time.
 */
(() => {
  const { board, words, element } = nsyspipe;
  const { data } = board;
  const MAX_SERIES = 7;
  const SVG = "http://www.w3.org/2000/svg";
  const OUTLINES = {
    circle: "M6 1a5 5 0 1 0 0 10a5 5 0 1 0 0 -10Z", rect: "M1.5 1.5h9v9h-9Z", triangle: "M6 1.5L11 10.5H1Z", diamond: "M6 1L11 6L6 11L1 6Z",
  };
  const list = document.getElementById("series");
  let isAll = false;

  const svg = (tag, attributes) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  const symbol = (group) => {
    const { symbol: shape, isHollow } = nsyspipe.trend.shapeOf(group);
    const made = svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true", class: `shape${isHollow ? " hollow" : ""}` });
    made.append(svg("path", { d: OUTLINES[shape] }));
    return made;
  };

  /** The latest step time and its change. If it has no run before, the shortest step time. */
  const figures = (of, runs) => {
    const made = element("span", "series-figures");
    const latest = runs.findLast((run) => board.stepTime(run) !== null) ?? runs.at(-1);
    const change = words.change(latest, board.before(latest));
    const best = change === null ? board.best(of) : null;
    made.append(element("b", "", words.time(best ?? latest)));
    if (change !== null) made.append(nsyspipe.headline.changeMark(change));
    if (best !== null) made.append(element("span", "change", "shortest"));
    return made;
  };

  const button = (of, runs, focus) => {
    const { group, label } = data.series[of];
    const name = data.groups[group];
    const nRuns = words.plural(runs.length, "run").replace(" ", "\u00a0");
    const where = label === null ? nRuns : `${name} \u00b7 ${nRuns}`;
    const text = element("span", "series-text");
    text.append(element("span", "series-name", label ?? name), element("span", "series-where", where));
    const made = element("button", "series");
    made.type = "button";
    made.setAttribute("aria-pressed", String(of === focus));
    made.append(symbol(group), text, figures(of, runs));
    made.addEventListener("click", () => board.select(runs.at(-1)));
    return made;
  };

  const moreButton = (nSeries) => {
    const made = element("button", "button", `${nSeries} more`);
    made.type = "button";
    made.addEventListener("click", () => { isAll = true; show(); });
    return made;
  };

  const itemOf = (child, className) => {
    const item = element("li", className);
    item.append(child);
    return item;
  };

  const show = () => {
    const run = board.shown();
    const focus = run === null ? null : data.runs.series[run];
    const found = [...board.current().series].sort(([, a], [, b]) => b.at(-1) - a.at(-1));
    const shown = isAll ? found : found.slice(0, MAX_SERIES);
    const items = shown.map(([of, runs]) => itemOf(button(of, runs, focus)));
    if (found.length > shown.length) items.push(itemOf(moreButton(found.length - shown.length), "more"));
    const placeOfFocus = [...list.querySelectorAll("button")].indexOf(document.activeElement);
    list.replaceChildren(...items);
    if (placeOfFocus >= 0) [...list.querySelectorAll("button")].at(Math.min(placeOfFocus, items.length - 1))?.focus();
    document.getElementById("series-note").textContent = found.length
      ? "Runs that can be compared, with the latest step time and its change, or with the shortest step time."
      : "No run in view.";
  };

  board.onChange(show);
  show();
})();
