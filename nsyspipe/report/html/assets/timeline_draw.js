/**
 * Bars of the timeline as ECharts custom series. Every bar is a rectangle between two times in a lane; names of phases
 * are written into bars that are wide enough. What lies outside of the visible range is not drawn at all.
 */
nsyspipe.timeline.series = (() => {
  /** Dimensions of an item: start, end, top, height, row, place in its lane. */
  const items = (rows, lane, place = (top, height) => [top, height]) => rows.flatMap((row, at) => {
    const bars = row.rank.lanes[lane];
    if (row.lane !== (lane === "exposed" || lane === "wait" ? "comm" : lane) || !bars) return [];
    const [top, height] = place(row.top, row.height);
    return bars.start.map((start, index) => [start, start + bars.length[index], top, height, at, index]);
  });

  /** The rectangle of an item, on whole pixels and never too thin to see; `isTrue`: as thin as it is. */
  const shape = (params, api, isTrue) => {
    const layoutTop = params.coordSys.y;
    const [x0] = api.coord([api.value(0), 0]);
    const [x1] = api.coord([api.value(1), 0]);
    const { x, width } = params.coordSys;
    if (x1 < x || x0 > x + width) return null;
    const [left, right] = [Math.max(x0, x), Math.min(x1, x + width)];
    const box = { x: left, y: layoutTop + api.value(2), width: right - left, height: api.value(3) };
    if (isTrue) return box;
    box.x = Math.floor(left);
    box.width = Math.max(Math.ceil(right) - box.x, 1);
    return box;
  };

  const custom = (name, data, fill, { isTrue, ...more } = {}) => ({
    name,
    type: "custom",
    data,
    dimensions: ["start", "end", "top", "height", "row", "bar"],
    encode: { x: [0, 1], y: [2] },
    clip: true,
    animation: false,
    // Drawn in parts, bars could not be pointed at.
    progressive: 0,
    renderItem: (params, api) => {
      const box = shape(params, api, isTrue);
      if (!box) return null;
      const style = { fill: typeof fill === "function" ? fill(api.value(4), api.value(5)) : fill };
      return { type: "rect", shape: box, style, emphasis: { style: { opacity: 0.82 } } };
    },
    ...more,
  });

  /** Phases may overlap, as what is launched in one runs in another: the shorter lies on top. */
  const layered = (rows) => items(rows, "phase").sort((one, other) => other[1] - other[0] - (one[1] - one[0]));

  /** Until when the beginning of a phase is not covered by a shorter one: room for its name. */
  const bareUntil = (all, [start, end, , , row], from) => all.slice(from + 1)
    .filter((one) => one[4] === row && one[0] < end && one[1] > start)
    .reduce((until, one) => Math.min(until, Math.max(one[0], start)), end);

  const phases = (data, rows, palette) => {
    const all = layered(rows);
    const nameOf = (row, bar) => data.names[rows[row].rank.lanes.phase.name[bar]] ?? "";
    return custom("phase", all.map((one, at) => [...one, bareUntil(all, one, at)]), null, {
      dimensions: ["start", "end", "top", "height", "row", "bar", "bare"],
      renderItem: (params, api) => {
        const box = shape(params, api);
        if (!box) return null;
        const name = nameOf(api.value(4), api.value(5));
        const fill = palette[name] ?? palette.lineStrong;
        const room = Math.min(api.coord([api.value(6), 0])[0] - box.x, box.width);
        return {
          type: "rect",
          shape: { ...box, r: 2 },
          style: { fill },
          textConfig: { position: "insideLeft", distance: 5 },
          textContent: {
            style: { text: room > 6.2 * name.length + 8 ? name : "", fill: nsyspipe.inkOn(fill), font: `11px ${nsyspipe.FONT}` },
          },
        };
      },
    });
  };

  /** The window of a rank: its step begins and ends here. */
  const windows = (rows, palette) => custom(
    "window",
    rows.flatMap((row, at) => (row.lane === "window" ? [[...row.rank.window, row.top, row.height, at, 0]] : [])),
    palette.surface,
    { silent: true, z: 1 },
  );

  /**
   * The lower part of a communication bar says where it waits, the rest being transfer where all waits are known; the
   * upper part whether compute hides it. Both are lanes of their own, joined like others: places, not sums.
   */
  const lower = (top, height) => [top + Math.round(height * 0.6), height - Math.round(height * 0.6)];
  const upper = (top, height) => [top, Math.round(height * 0.6)];

  return (data, rows, palette) => {
    const hasWait = rows.some(({ rank }) => rank.lanes.wait || rank.lanes.comm?.wait);
    const transfer = items(rows, "comm", lower).filter(([, , , , at]) => rows[at].rank.lanes.comm.wait);
    return [
      windows(rows, palette),
      { ...phases(data, rows, palette), z: 2 },
      custom("compute", items(rows, "compute"), palette.compute, { z: 2 }),
      custom("comm", items(rows, "comm"), palette.hidden, { z: 2 }),
      custom("exposed", items(rows, "exposed", hasWait ? upper : undefined), palette.exposed, { z: 3, silent: true, isTrue: true }),
      hasWait && custom("transfer", transfer, palette.transfer, { z: 3, silent: true }),
      custom("wait", items(rows, "wait", lower), palette.waiting, { z: 4, silent: true }),
      custom("memory", items(rows, "memory"), palette.copies, { z: 2 }),
    ].filter(Boolean);
  };
})();
