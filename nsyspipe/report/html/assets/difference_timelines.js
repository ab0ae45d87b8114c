/**
 * Two steps above each other: the timeline of a run, whose ranks are the sides, with a line above each that names it.
 */
(() => {
  const TITLE = 24;
  const { layout, writeLabels, TOP, MARGIN } = nsyspipe.timeline;
  let titles = [];

  /** Make room above every rank for its title. */
  nsyspipe.timeline.layout = (data, isAll) => {
    const found = layout(data, isAll);
    const placeOf = new Map(data.ranks.map((one, at) => [one, at]));
    const lanes = found.labels.length / data.ranks.length;
    const shift = (at) => TITLE * (at + 1);
    const rows = found.rows.map((row) => ({ ...row, top: row.top + shift(placeOf.get(row.rank)) }));
    // The title says which rank it is.
    const labels = found.labels.map((label, at) => ({ ...label, rank: "", top: label.top + shift(Math.floor(at / lanes)) }));
    titles = data.titles.map((text, at) => ({ text, top: found.labels[at * lanes].top - MARGIN + TITLE * at }));
    return { rows, labels, height: found.height + shift(data.ranks.length - 1) };
  };

  nsyspipe.timeline.writeLabels = (area, labels, width) => {
    writeLabels(area, labels, width);
    const box = area.querySelector(".lanes");
    for (const { text, top } of titles) {
      const line = nsyspipe.element("div", "side-title", text);
      line.style.top = `${TOP + top}px`;
      line.style.height = `${TITLE}px`;
      line.style.width = `${area.clientWidth}px`;
      box.append(line);
    }
  };
})();

nsyspipe.builders.timelines = (data, palette, context) => nsyspipe.builders.timeline(data, palette, context);
