/**
 * Lanes of what was sampled: hardware counters as areas, and lines of Python in the colours of lines. A pixel of an area is
 * as high as the mean of its time, so that nothing short is left out and nothing is picked.
 */
nsyspipe.timeline.sampled = (() => {
  const HEIGHT = 16;
  const BASE = 1; // of an area: a counter was sampled here, even if it is 0
  const COLORS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-other"];

  /** As the layout has lanes. */
  const lanes = (data) => (data.counters ?? []).map((counter) => ["counted", counter.label, HEIGHT, counter]);

  /** What a lane shows of a bar: the sum of its counters, or the larger one; null where none was sampled. */
  const valueOf = ({ parts, isSum }, { values }, index) => {
    const known = parts.map(([name]) => values[name]?.[index] ?? null).filter((value) => value !== null);
    if (!known.length) return null;
    return isSum ? known.reduce((sum, value) => sum + value, 0) : Math.max(...known);
  };

  /** The mean of each of `n` pixels over the part of it that was sampled; NaN without any. */
  const means = (counter, counted, from, perPixel, n) => {
    const [sums, weights] = [new Float64Array(n), new Float64Array(n)];
    counted.start.forEach((start, index) => {
      const value = valueOf(counter, counted, index);
      if (value === null) return;
      const left = Math.max((start - from) / perPixel, 0);
      const right = Math.min((start + counted.length[index] - from) / perPixel, n);
      for (let at = Math.floor(left); at < right; at += 1) {
        const part = Math.min(right, at + 1) - Math.max(left, at);
        sums[at] += part * value;
        weights[at] += part;
      }
    });
    return sums.map((sum, at) => sum / weights[at]);
  };

  /** Rectangles of neighbouring pixels of one height. */
  const columns = (box, perCent, fill) => {
    const found = [];
    let [end, last] = [-1, -1];
    perCent.forEach((value, at) => {
      if (Number.isNaN(value)) return;
      const height = Math.max(Math.round((box.height * Math.min(value, 100)) / 100), BASE);
      if (end === at && last === height) found.at(-1).shape.width += 1;
      else found.push({ type: "rect", shape: { x: box.x + at, y: box.y + box.height - height, width: 1, height }, style: { fill } });
      [end, last] = [at + 1, height];
    });
    return found;
  };

  /** From where a chart is drawn, and how long a pixel is: ns. */
  const scaleOf = ({ coordSys: { x, width } }, api) => {
    const perPixel = 1 / api.size([1, 0])[0];
    return { from: (x - api.coord([0, 0])[0]) * perPixel, perPixel, n: Math.ceil(width) };
  };

  const rowsOf = (rows, isWanted) => rows.flatMap((row, at) => (isWanted(row) ? [[...row.rank.window, row.top, row.height, at, 0]] : []));

  const areas = (rows, palette, { custom }) => custom("areas", rowsOf(rows, ({ rank, counter }) => counter && rank.counted), null, {
    silent: true,
    z: 3,
    renderItem: (params, api) => {
      const { rank, counter } = rows[api.value(4)];
      const { from, perPixel, n } = scaleOf(params, api);
      const { x, y } = params.coordSys;
      const box = { x, y: y + api.value(2), height: api.value(3) };
      return { type: "group", children: columns(box, means(counter, rank.counted, from, perPixel, n), palette.counted) };
    },
  });

  /** What is pointed at: the bars of a lane of counters, unseen. */
  const bars = (rows, { custom }) => {
    const items = rows.flatMap(({ rank, counter, top, height }, at) => (counter && rank.counted ? rank.counted.start : [])
      .map((start, index) => [start, start + rank.counted.length[index], top, height, at, index]));
    return custom("counted", items, "transparent", { z: 5 });
  };

  /** The bars of a lane of lines that have one colour. */
  const ofColor = (line, color) => {
    const places = line.color.flatMap((each, at) => (each === color ? [at] : []));
    return { start: places.map((at) => line.start[at]), length: places.map((at) => line.length[at]) };
  };

  const lines = (rows, palette, { custom, filled, strips }) => custom("lines", rowsOf(rows, ({ rank, lane }) => lane === "line" && rank.lanes.line), null, {
    silent: true,
    z: 3,
    renderItem: (params, api) => {
      const { line } = rows[api.value(4)].rank.lanes;
      const { from, perPixel, n } = scaleOf(params, api);
      const { x, y } = params.coordSys;
      const parts = COLORS.map((color) => [palette[color], filled(ofColor(line, color), from, perPixel, n)]);
      return { type: "group", children: strips({ x, y: y + api.value(2), height: api.value(3) }, filled(line, from, perPixel, n), parts) };
    },
  });

  const series = (rows, palette, tools) => [areas(rows, palette, tools), bars(rows, tools), lines(rows, palette, tools)];

  /** What a bar of counters is: its time, and each counter of the lane. */
  const tip = (data, { rank, counter }, { value: [start, end, , , , index] }) => {
    const found = counter.parts.flatMap(([name, label]) => {
      const perCent = rank.counted.values[name]?.[index] ?? null;
      return perCent === null ? [] : [{ label, value: nsyspipe.percent(perCent / 100) }];
    });
    const times = [nsyspipe.timeRow("start", start), nsyspipe.timeRow("length", end - start)];
    return nsyspipe.tooltip({ title: `${nsyspipe.rankName(data, rank.rank)}: ${counter.label}`, name: "", rows: [...found, ...times] });
  };

  return { lanes, series, tip };
})();
