/**
 * Axes of the dashboard's chart: time of capture along x, and step time in ms along y.
 */
nsyspipe.axes = (() => {
  const quiet = (palette) => ({ color: palette.ink3, fontSize: 12 });

  const x = (palette, width) => nsyspipe.valueAxis(palette, {
    type: "time",
    ...nsyspipe.ticks(width),
    boundaryGap: ["3%", "3%"],
    axisLine: { show: true, onZero: false, lineStyle: { color: palette.lineStrong } },
    axisLabel: {
      ...quiet(palette),
      hideOverlap: true,
      margin: 12, // below the triangles at the edge
      formatter: { year: "{d} {MMM} {yyyy}", month: "{d} {MMM}", day: "{d} {MMM}" },
    },
    splitLine: { show: false },
  });

  const y = (palette, limits) => nsyspipe.valueAxis(palette, {
    ...limits,
    axisLabel: { ...quiet(palette), showMaxLabel: true, formatter: (value) => nsyspipe.tick(value) },
  });

  const roundStep = (span) => {
    const power = 10 ** Math.floor(Math.log10(span));
    return [1, 2, 2.5, 5, 10].find((factor) => factor * power >= span) * power;
  };

  /** Round limits around step times in ms. They begin at 0 only if the step times differ by more than a factor of two. */
  const limits = (values) => {
    if (!values.length) return { min: 0, max: 1, interval: 1 };
    const low = Math.min(...values);
    const high = Math.max(...values);
    const isFromZero = high > 2 * low;
    const room = Math.max(0.12 * (high - low), 0.03 * high);
    const from = isFromZero ? 0 : low - room;
    const to = isFromZero ? 1.1 * high : high + room;
    const interval = roundStep((to - from) / 5);
    return { min: Math.floor(from / interval) * interval, max: Math.ceil(to / interval) * interval, interval };
  };

  /** A zigzag at the foot of an axis that does not begin at 0. */
  const zigzag = (palette, { min }, { left, bottom }) => {
    if (min <= 0) return [];
    const shape = { points: [[4, 0], [0, 3], [8, 6], [0, 9], [4, 12]] };
    const style = { fill: "none", stroke: palette.ink3, lineWidth: 1.25 };
    return [{ type: "polyline", silent: true, left: left - 4, bottom: bottom + 3, shape, style }];
  };

  return { x, y, limits, zigzag };
})();
