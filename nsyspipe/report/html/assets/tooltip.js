/**
 * Tooltips as DOM. Names in them come from traces and are set as textContent, never as HTML.
 */
nsyspipe.element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

/**
 * @param {{title: string, name?: string, rows: {label: string, value: string, exact?: string, color?: string}[]}} content
 *   `name`: a name from the trace, in a fixed width. `exact`: a second, finer figure.
 * @returns {HTMLElement}
 */
nsyspipe.tooltip = ({ title, name, rows }) => {
  const tip = nsyspipe.element("div", "tip");
  tip.append(nsyspipe.element("div", "tip-title", title));
  if (name) tip.append(nsyspipe.element("div", "tip-name", name));
  const list = nsyspipe.element("dl");
  for (const { label, value, exact, color } of rows) {
    if (color) {
      const swatch = nsyspipe.element("span", "swatch");
      swatch.style.background = color;
      list.append(swatch);
    }
    const cell = nsyspipe.element("dd", "", value);
    if (exact) cell.append(nsyspipe.element("small", "", exact));
    list.append(nsyspipe.element("dt", "", label), cell);
  }
  tip.append(list);
  return tip;
};

/** A row of a tooltip for a time: in ms, and to the last ns. */
nsyspipe.timeRow = (label, ns, color) => ({
  label, color, value: nsyspipe.ms(ns), exact: ns === null || ns === undefined ? undefined : nsyspipe.exact(ns),
});

/** The row for a bandwidth that hardware counters saw, with its ratio to bus bandwidth; none where nothing was counted. */
nsyspipe.countedRow = (perSecond, ratio) => {
  if (perSecond === null || perSecond === undefined) return [];
  const beside = ratio === null || ratio === undefined ? "" : ` (${ratio.toFixed(2)}x)`;
  return [{ label: "counted", value: `${nsyspipe.bandwidth(perSecond)}${beside}` }];
};
