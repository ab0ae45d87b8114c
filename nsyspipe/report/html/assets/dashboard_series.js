/**
 * The series in view: which line is which, how each stands, and its course in small.
 */
(() => {
  const { board, words, element } = nsyspipe;
  const { data } = board;
  const MAIN = "step_time_ns";
  const MOST = 7;
  const WIDTH = 84;
  const HEIGHT = 30;
  const LEAST_SPAN = 0.1;
  const SVG = "http://www.w3.org/2000/svg";
  const OUTLINES = {
    circle: "M6 1a5 5 0 1 0 0 10a5 5 0 1 0 0 -10Z", rect: "M1.5 1.5h9v9h-9Z", triangle: "M6 1.5L11 10.5H1Z", diamond: "M6 1L11 6L6 11L1 6Z",
  };
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

  /** Step time over the runs of a series, at its own scale: at least a tenth of its height, so that noise stays small. */
  const course = (runs) => {
    const made = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true", class: "course" });
    const values = runs.map((run) => board.value(MAIN, run));
    const known = values.filter((value) => value !== null);
    if (known.length < 2) return made;
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const span = Math.max(high - low, LEAST_SPAN * high);
    const middle = (low + high) / 2;
    const x = (at) => (3 + (at / (values.length - 1)) * (WIDTH - 6)).toFixed(1);
    const y = (value) => (HEIGHT / 2 - ((value - middle) / span) * (HEIGHT - 8)).toFixed(1);
    let path = "";
    values.forEach((value, at) => {
      if (value !== null) path += `${at && values[at - 1] !== null ? "L" : "M"}${x(at)} ${y(value)}`;
    });
    const last = values.findLastIndex((value) => value !== null);
    made.append(svg("path", { d: path, fill: "none" }), svg("circle", { cx: x(last), cy: y(values[last]), r: 2.5 }));
    return made;
  };

  /** The latest step time and its change from the run before. For variants, the shortest step time. */
  const figures = (of, runs) => {
    const made = element("span", "series-figures");
    const best = board.isStudy(of) ? board.best(of) : null;
    if (best !== null) {
      made.append(element("b", "", words.figure(MAIN, best)), element("span", "change", "shortest"));
      return made;
    }
    const latest = runs.findLast((run) => board.value(MAIN, run) !== null) ?? runs.at(-1);
    made.append(element("b", "", words.figure(MAIN, latest)));
    if (board.isStudy(of) && runs.length > 1) {
      made.append(element("span", "change", "not ranked"));
      return made;
    }
    const found = words.against(MAIN, latest, board.before(latest));
    if (found) made.append(nsyspipe.headline.changeMark(found));
    return made;
  };

  const row = (of, runs, focus) => {
    const { group, label } = data.series[of];
    const made = element("button", "series");
    made.type = "button";
    made.setAttribute("aria-pressed", String(of === focus));
    const text = element("span", "series-text");
    const n = words.plural(runs.length, "run").replace(" ", "\u00a0");
    text.append(
      element("span", "series-name", label ?? data.groups[group]),
      element("span", "series-where", label === null ? `${n}${runs.length > 1 ? ", all labels" : ""}` : `${data.groups[group]} \u00b7 ${n}`),
    );
    made.append(symbol(group), text, board.isStudy(of) ? element("span") : course(runs), figures(of, runs));
    made.addEventListener("click", () => board.choose(runs.at(-1)));
    const item = element("li");
    item.append(made);
    return item;
  };

  const show = () => {
    const run = board.shown();
    const focus = run === null ? null : data.runs.series[run];
    const list = document.getElementById("series");
    const hadFocus = [...list.querySelectorAll("button")].indexOf(document.activeElement);
    const found = [...board.current().series].sort(([, a], [, b]) => b.at(-1) - a.at(-1));
    const shown = isAll ? found : found.slice(0, MOST);
    const items = shown.map(([of, runs]) => row(of, runs, focus));
    if (found.length > shown.length) {
      const more = element("button", "button", `${found.length - shown.length} more`);
      more.type = "button";
      more.addEventListener("click", () => { isAll = true; show(); });
      const item = element("li", "more");
      item.append(more);
      items.push(item);
    }
    list.replaceChildren(...items);
    if (hadFocus >= 0) [...list.querySelectorAll("button")].at(Math.min(hadFocus, items.length - 1))?.focus();
    document.getElementById("series-note").textContent = found.length
      ? "Runs that can be compared, with the latest step time and its change from the run before."
      : "No run in view.";
  };

  board.onChange(show);
  show();
})();
