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

  const LEAST_NAME = 46;
  const FEWEST = 7; // letters that still tell a name
  const font = `11px ${nsyspipe.FONT}`;
  const widthOf = (text) => echarts.format.getTextRect(text, font).width;

  /** A name for a bar that has room for it, or for some letters: cut where the bar ends. On stripes it is whole, on a plate. */
  const written = (name, width, fill, isMixed) => {
    if (width < LEAST_NAME || !name) return {};
    const least = name.length > FEWEST && !isMixed ? `${name.slice(0, FEWEST)}\u2026` : name;
    if (widthOf(least) > (isMixed ? width / 2 : width - 8)) return {};
    return {
      textConfig: { position: "insideLeft", distance: isMixed ? 0 : 4 },
      textContent: { style: {
        text: name, fill: nsyspipe.inkOn(fill), font,
        ...(isMixed ? { backgroundColor: fill, padding: [1, 4] } : { width: width - 8, overflow: "truncate", ellipsis: "\u2026" }),
      } },
    };
  };

  const custom = (name, data, fill, { isTrue, nameOf, emphasis = { style: { opacity: 0.82 } }, ...more } = {}) => ({
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
      if (nameOf && box.width > 8) box.width -= 2; // where one kernel ends and the next begins
      const label = nameOf ? written(nameOf(api.value(4), api.value(5)), box.width, fill) : {};
      return { type: "rect", shape: box, style: { fill }, emphasis, ...label };
    },
    ...more,
  });

  /** Phases may overlap, as what is launched in one runs in another: the shorter lies on top. */
  const layered = (rows) => items(rows, "phase").sort((one, other) => other[1] - other[0] - (one[1] - one[0]));

  /** The longest part of a phase that no shorter one covers: room for its name. */
  const bareOf = (all, [start, end, , , row], from) => {
    const covers = all.slice(from + 1).filter((one) => one[4] === row && one[0] < end && one[1] > start)
      .sort((one, other) => one[0] - other[0]);
    let [at, best] = [start, [start, start]];
    for (const [begin, until] of [...covers, [end, end]]) {
      if (begin - at > best[1] - best[0]) best = [at, begin];
      at = Math.max(at, until);
    }
    return best;
  };

  const phases = (data, rows, palette) => {
    const all = layered(rows);
    const nameOf = (row, bar) => data.names[rows[row].rank.lanes.phase.name[bar]] ?? "";
    return custom("phase", all.map((one, at) => [...one, ...bareOf(all, one, at)]), null, {
      dimensions: ["start", "end", "top", "height", "row", "bar", "from", "until"],
      renderItem: (params, api) => {
        const box = shape(params, api);
        if (!box) return null;
        const name = nameOf(api.value(4), api.value(5));
        const fill = palette[name] ?? palette.lineStrong;
        const from = Math.max(api.coord([api.value(6), 0])[0], box.x);
        const room = Math.min(api.coord([api.value(7), 0])[0], box.x + box.width) - from;
        return {
          type: "rect",
          shape: { ...box, r: 2 },
          style: { fill },
          textConfig: { position: "insideLeft", distance: from - box.x + 5 },
          textContent: {
            style: { text: room > 6.2 * name.length + 8 ? name : "", fill: nsyspipe.inkOn(fill), font },
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

  /** Where the slowest rank is longest without compute: what a shorter step has to shorten. */
  const stretch = (data, rows, palette) => {
    const own = rows.flatMap(({ rank, lane, top, height }, at) => (lane === "stretch" && rank.rank === data.stretch?.rank
      ? [[data.stretch.start, data.stretch.end, top, height, at, 0]] : []));
    return custom("stretch", own, null, {
      silent: true,
      z: 6,
      renderItem: (params, api) => {
        const box = shape(params, api);
        // Inside its place, since half of a line on the chart's edge would be cut off.
        const inner = box && { x: box.x + 1, y: box.y + 1, width: Math.max(box.width - 2, 1), height: box.height - 2 };
        return box && { type: "rect", shape: inner, style: { fill: "none", stroke: palette.accent, lineWidth: 1.5, lineDash: [5, 3] } };
      },
    });
  };

  return (data, rows, palette) => {
    const nameOf = (lane) => (row, bar) => {
      const { name, n } = rows[row].rank.lanes[lane];
      return `${data.names[name[bar]] ?? ""}${(n?.[bar] ?? 1) > 1 ? ` +${n[bar] - 1}` : ""}`;
    };
    const hasWait = rows.some(({ rank }) => rank.lanes.wait || rank.lanes.comm?.wait);
    const transfer = items(rows, "comm", lower).filter(([, , , , at]) => rows[at].rank.lanes.comm.wait);
    return [
      windows(rows, palette),
      { ...phases(data, rows, palette), z: 2 },
      custom("launch", items(rows, "launch"), palette.launch, { z: 2 }),
      custom("compute", items(rows, "compute"), palette.compute, { z: 2, nameOf: nameOf("compute") }),
      custom("untold", items(rows, "untold"), palette.untold, { z: 2, nameOf: nameOf("untold") }),
      custom("under", items(rows, "comm"), palette.hidden, { z: 2, silent: true }),
      custom("exposed", items(rows, "exposed", hasWait ? upper : undefined), palette.exposed, { z: 3, silent: true, isTrue: true }),
      hasWait && custom("transfer", transfer, palette.transfer, { z: 3, silent: true }),
      custom("wait", items(rows, "wait", lower), palette.waiting, { z: 4, silent: true }),
      // Above all that is drawn of it: what is pointed at, and outlined on every rank.
      custom("comm", items(rows, "comm"), "transparent", {
        z: 5, emphasis: { style: { fill: "transparent", stroke: palette.ink, lineWidth: 2 } },
      }),
      custom("names", items(rows, "comm"), "transparent", {
        z: 5, silent: true,
        renderItem: (params, api) => {
          const box = shape(params, api);
          if (!box) return null;
          const bars = rows[api.value(4)].rank.lanes.comm;
          const share = (bars.exposed?.[api.value(5)] ?? 0) / bars.length[api.value(5)];
          const fill = share > 0.5 ? palette.exposed : palette.hidden;
          const half = hasWait ? { ...box, height: Math.round(box.height * 0.6) } : box;
          return { type: "rect", shape: half, style: { fill: "none" }, ...written(nameOf("comm")(api.value(4), api.value(5)), box.width, fill, share > 0.01 && share < 0.99) };
        },
      }),
      custom("memory", items(rows, "memory"), palette.copies, { z: 2 }),
      stretch(data, rows, palette),
    ].filter(Boolean);
  };
})();
