/**
 * Where things are in the timeline: lanes of a rank one below the other, ranks one below the other, in pixels.
 */
nsyspipe.timeline = (() => {
  const LANES = [
    ["phase", "phases", 15],
    ["launch", "launches", 8],
    ["line", "Python", 14],
    ["compute", "compute", 22],
    ["untold", "kernels", 22],
    ["comm", "comm", 22],
    ["memory", "copies", 10],
  ];
  const LANE_GAP = 3;
  const RANK_GAP = 16;
  const TOP = 2;
  const MARGIN = 4; // of a rank's window around its lanes
  const BOTTOM = 30;
  const NARROW = 520;

  /** @returns lanes with their top and height, the labels of ranks, and the height of all */
  const layout = (data, isAll) => {
    const ranks = data.ranks.filter((one) => isAll || one.isFirst);
    const used = LANES.filter(([lane]) => data.ranks.some((one) => one.lanes[lane])).concat(nsyspipe.timeline.sampled?.lanes(data) ?? []);
    const rows = [];
    const labels = [];
    let top = MARGIN;
    for (const one of ranks) {
      const begin = top;
      used.forEach(([lane, words, height, counter], at) => {
        rows.push({ rank: one, lane, top, height, counter });
        labels.push({ rank: at ? "" : `rank ${one.rank}`, words, top, height });
        top += height + LANE_GAP;
      });
      const end = top - LANE_GAP + MARGIN;
      rows.push({ rank: one, lane: "window", top: begin - MARGIN, height: end - begin + MARGIN });
      // Below the phases, whose names its sides would run through.
      const below = used[0]?.[0] === "phase" ? begin + used[0][2] + 1 : begin - MARGIN;
      rows.push({ rank: one, lane: "stretch", top: below, height: end - below });
      top += RANK_GAP;
    }
    return { rows, labels, height: top - RANK_GAP + LANE_GAP };
  };

  const leftOf = (width) => (width < NARROW ? 112 : 116);

  /** Names of ranks and lanes as text beside the canvas. */
  const writeLabels = (area, labels, width) => {
    area.querySelector(".lanes")?.remove();
    const box = nsyspipe.element("div", "lanes");
    box.style.width = `${width}px`;
    for (const { rank, words, top, height } of labels) {
      const line = nsyspipe.element("div");
      line.style.top = `${TOP + top}px`;
      line.style.height = `${height}px`;
      line.append(nsyspipe.element("span", "rank", rank), nsyspipe.element("span", "", words));
      box.append(line);
    }
    area.append(box);
  };

  /** What a bar is called: joined operations have no one name, but a number. */
  const nameOf = (data, lane, { n, name }, index) => (n?.[index] > 1 && lane !== "phase"
    ? `${n[index]} ${lane === "compute" ? "kernels" : "operations"}` : data.names[name[index]] ?? "");
  return { layout, leftOf, writeLabels, nameOf, TOP, MARGIN, BOTTOM, builders: {} };
})();
