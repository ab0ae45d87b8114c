/**
 * The timeline as ECharts custom series. What is busy is painted pixel by pixel: a pixel has one colour, as strong as the
 * pixel is full, and each colour as many pixels as it fills. Bars lie above, unseen: they are pointed at, and have names.
 */
nsyspipe.timeline.series = (() => {
  const densityOf = ({ busy, length }, index) => (busy?.[index] ?? length[index]) / length[index];

  /** How full of a lane's bars each of `n` pixels is, 0 to 1; where operations were joined, evenly over their bar. */
  const filled = (bars, from, perPixel, n) => {
    const share = new Float64Array(n);
    bars?.start.forEach((start, index) => {
      const density = densityOf(bars, index);
      const left = Math.max((start - from) / perPixel, 0);
      const right = Math.min((start + bars.length[index] - from) / perPixel, n);
      for (let at = Math.floor(left); at < right; at += 1) share[at] += density * (Math.min(right, at + 1) - Math.max(left, at));
    });
    return share;
  };

  const FAINTEST = 0.25; // what is there at all is seen, on dark ground too
  const SHADES = 32;
  const NOTHING = 1e-6; // of a pixel: what rounding leaves

  /**
   * Rectangles of neighbouring pixels that look alike. `whole`: how full each is; `parts`: their colours, and how full of
   * each. Of what is in it a pixel shows that which up to here lacks most of what it should have been shown.
   */
  const strips = (box, whole, parts) => {
    const found = [];
    const owed = parts.map(() => 0);
    let [end, look] = [-1, ""];
    whole.forEach((full, at) => {
      if (full < NOTHING) return;
      let shown = 0;
      parts.forEach(([, share], part) => {
        owed[part] += share[at];
        if (share[at] > NOTHING && (owed[part] > owed[shown] || parts[shown][1][at] <= NOTHING)) shown = part;
      });
      owed[shown] -= full;
      const opacity = FAINTEST + (1 - FAINTEST) * Math.round(SHADES * Math.min(full, 1)) / SHADES;
      const looks = `${shown} ${opacity}`;
      if (end === at && look === looks) found.at(-1).shape.width += 1;
      else found.push({ type: "rect", shape: { ...box, x: box.x + at, width: 1 }, style: { fill: parts[shown][0], opacity } });
      [end, look] = [at + 1, looks];
    });
    return found;
  };

  /** Dimensions of an item: start, end, top, height, row, place in its lane. */
  const items = (rows, lane) => rows.flatMap((row, at) => (row.lane === lane ? row.rank.lanes[lane]?.start ?? [] : [])
    .map((start, index) => [start, start + row.rank.lanes[lane].length[index], row.top, row.height, at, index]));

  /** The rectangle of an item, on whole pixels and never too thin to see or point at. */
  const shape = ({ coordSys: { x, y, width } }, api) => {
    const [x0] = api.coord([api.value(0), 0]);
    const [x1] = api.coord([api.value(1), 0]);
    if (x1 < x || x0 > x + width) return null;
    const left = Math.floor(Math.max(x0, x));
    return { x: left, y: y + api.value(2), width: Math.max(Math.ceil(Math.min(x1, x + width)) - left, 1), height: api.value(3) };
  };

  const LEAST_NAME = 46;
  const FEWEST = 7; // letters that still tell a name
  const font = `11px ${nsyspipe.FONT}`;
  const widthOf = (text) => echarts.format.getTextRect(text, font).width;

  /** A name for a bar that has room for it, or for some letters: cut where the bar ends. On stripes it is whole, on a plate. */
  const written = (name, { width, height }, fill, isMixed) => {
    if (width < LEAST_NAME || !name) return {};
    const room = width - widthOf(name); // beside the whole of it
    const isCut = room < 2;
    if (isMixed ? room < width / 2 : isCut && (name.length <= FEWEST || widthOf(`${name.slice(0, FEWEST)}\u2026`) > width - 8)) return {};
    const more = isMixed ? { backgroundColor: fill, padding: [1, 4] } : isCut ? { width: width - 8, overflow: "truncate", ellipsis: "\u2026" } : {};
    return {
      textConfig: { position: [isMixed ? 0 : isCut ? 4 : Math.min(4, room / 2), height / 2] },
      textContent: { style: { text: name, fill: nsyspipe.inkOn(fill), font, verticalAlign: "middle", ...more } },
    };
  };

  const custom = (name, data, fill, more) => ({
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
      const box = shape(params, api);
      return box && { type: "rect", shape: box, style: { fill } };
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

  const LEAST_BOX = 9;

  /** Where the slowest rank is longest without compute: what a shorter step has to shorten. */
  const stretch = (data, rows, palette) => {
    const own = rows.flatMap(({ rank, lane, top, height }, at) => (lane === "stretch" && rank.rank === data.stretch?.rank
      ? [[data.stretch.start, data.stretch.end, top, height, at, 0]] : []));
    return custom("stretch", own, null, {
      silent: true,
      z: 6,
      renderItem: (params, api) => {
        const box = shape(params, api);
        // Inside its place, since half of a line on the chart's edge would be cut off; a short one is wide enough for a box.
        const more = box && Math.max(LEAST_BOX - box.width, 0);
        const inner = box && { x: box.x + 1 - more / 2, y: box.y + 1, width: box.width + more - 2, height: box.height - 2 };
        return box && { type: "rect", shape: inner, style: { fill: "none", stroke: palette.accent, lineWidth: 1.5, lineDash: [5, 3] } };
      },
    });
  };

  /**
   * What each lane of each rank is busy with. Of communication the upper part says whether compute hides it, the lower one,
   * where all waits are known, whether it waits or all ranks are in it.
   */
  const painting = (rows, palette) => {
    const lanes = { launch: palette.launch, compute: palette.compute, untold: palette.untold, comm: null, memory: palette.copies };
    const drawn = rows.flatMap(({ rank, lane, top, height }, at) => (lane in lanes && rank.lanes[lane] ? [[...rank.window, top, height, at, 0]] : []));
    return custom("painting", drawn, null, {
      silent: true,
      z: 3,
      renderItem: ({ coordSys: { x, y, width } }, api) => {
        const { rank: { lanes: bars }, lane } = rows[api.value(4)];
        const perPixel = 1 / api.size([1, 0])[0];
        const from = (x - api.coord([0, 0])[0]) * perPixel;
        const [whole, exposed, wait] = [lane, "exposed", "wait"].map((one) => filled(bars[one], from, perPixel, Math.ceil(width)));
        const rest = (part) => whole.map((full, at) => full - part[at]);
        const box = { x, y: y + api.value(2), height: api.value(3) };
        const group = { type: "group", $mergeChildren: false }; // a lane that is empty here keeps nothing of before
        if (lane !== "comm") return { ...group, children: strips(box, whole, [[lanes[lane], whole]]) };
        const upper = bars.comm.wait ? { ...box, height: upperOf(box.height) } : box;
        const lower = { ...box, y: box.y + upper.height, height: box.height - upper.height };
        return { ...group, children: [
          ...strips(upper, whole, [[palette.exposed, exposed], [palette.hidden, rest(exposed)]]),
          ...(lower.height ? strips(lower, whole, [[palette.transfer, rest(wait)], [palette.waiting, wait]]) : []),
        ] };
      },
    });
  };
  const upperOf = (height) => Math.round(height * 0.6);

  /** The bars of a lane, with their names where they have room; `fillOf`: the colour under a name, and whether others are there. */
  const bars = (data, rows, lane, fillOf, emphasis) => custom(lane, items(rows, lane), null, {
    z: 5,
    renderItem: (params, api) => {
      const box = shape(params, api);
      const own = rows[api.value(4)].rank.lanes[lane];
      const at = api.value(5);
      if (!box) return null;
      const [fill, isMixed] = fillOf(own, at);
      const name = fill && nsyspipe.timeline.nameOf(data, lane, own, at);
      const label = written(name, own.wait ? { ...box, height: upperOf(box.height) } : box, fill, isMixed);
      // Where a bar has a name, its sides say of which time.
      const stroke = label.textContent ? "rgb(0 0 0 / 0.3)" : null;
      return { type: "rect", shape: box, style: { fill: "transparent", stroke, lineWidth: 1 }, emphasis: { style: emphasis }, ...label };
    },
  });

  return (data, rows, palette) => {
    const plain = (lane, fill) => bars(data, rows, lane, (own, at) => [fill, densityOf(own, at) < 0.9], { fill: palette.ink, opacity: 0.18 });
    /** Communication is outlined on every rank; its name stands on what most of it is. */
    const hides = ({ exposed, length, busy }, at) => {
      const share = (exposed?.[at] ?? 0) / (busy?.[at] ?? length[at]);
      return [share > 0.5 ? palette.exposed : palette.hidden, share > 0.01 && share < 0.99];
    };
    return [
      windows(rows, palette),
      { ...phases(data, rows, palette), z: 2 },
      painting(rows, palette),
      plain("launch", null),
      bars(data, rows, "line", (own, at) => [palette[own.color[at]], false], { fill: palette.ink, opacity: 0.18 }),
      plain("compute", palette.compute),
      plain("untold", palette.untold),
      plain("memory", null),
      // Above all that is drawn of it: what is pointed at, and outlined on every rank.
      bars(data, rows, "comm", hides, { fill: "transparent", stroke: palette.ink, lineWidth: 2 }),
      stretch(data, rows, palette),
      ...(nsyspipe.timeline.sampled?.series(rows, palette, { custom, filled, strips }) ?? []),
    ];
  };
})();
