/**
 * From the baseline's mean step time to the candidate's: every bar begins where the one before ends.
 */
nsyspipe.builders.waterfall = (() => {
  const NARROW = 520;
  const HEIGHT = 18;

  /** A difference with its sign, in as many digits as the longest bar has; one that would have none then has its first. */
  const signed = (ns, bars) => {
    if (!ns) return "0 ms";
    const size = Math.abs(ns) / 1e6;
    const digits = (nsyspipe.significant(Math.max(...bars.map((bar) => bar.end)) / 1e6).split(".")[1] ?? "").length;
    const text = Number(size.toFixed(digits)) ? size.toFixed(digits) : size.toFixed(-Math.floor(Math.log10(size)));
    return `${ns > 0 ? "+" : "-"}${text} ms`;
  };

  const isWhole = (bar) => bar.delta === null;

  const tip = (bar, palette, bars) => {
    const color = palette[bar.category];
    const rows = isWhole(bar)
      ? [nsyspipe.timeRow("mean step time", bar.end, color)]
      : [
        nsyspipe.timeRow("baseline", bar.baseline),
        nsyspipe.timeRow("candidate", bar.candidate),
        { ...nsyspipe.timeRow("change", bar.delta, color), value: signed(bar.delta, bars) },
        nsyspipe.timeRow("step so far", bar.end),
      ];
    return nsyspipe.tooltip({ title: bar.name, rows });
  };

  /** The bar, its figure to the right, and a thin line down to where the next one begins. */
  const drawn = (bars, palette) => (params, api) => {
    const at = params.dataIndex;
    const bar = bars[at];
    const { x: left, width } = params.coordSys;
    const clamped = (ns) => Math.min(Math.max(api.coord([ns, at])[0], left), left + width);
    const [from, to] = [clamped(bar.start), clamped(bar.end)];
    const middle = api.coord([0, at])[1];
    const below = at + 1 < bars.length ? api.coord([0, at + 1])[1] + HEIGHT / 2 : middle;
    const top = middle - HEIGHT / 2;
    const text = isWhole(bar) ? nsyspipe.ms(bar.end) : signed(bar.delta, bars);
    return {
      type: "group",
      children: [
        { type: "line", shape: { x1: to, x2: to, y1: top, y2: below }, style: { stroke: palette.lineStrong, lineWidth: 1 } },
        bar.delta !== 0 && {
          type: "rect",
          shape: { x: Math.min(from, to), y: top, width: Math.max(Math.abs(to - from), 1), height: HEIGHT },
          style: { fill: palette[bar.category], stroke: bar.category === "idle" ? palette.lineStrong : null },
        },
        {
          type: "text",
          style: {
            text, x: Math.max(from, to) + 6, y: middle, verticalAlign: "middle",
            ...nsyspipe.plate(palette),
            fill: isWhole(bar) ? palette.ink : palette.ink2,
            font: `${isWhole(bar) ? 600 : 400} 12px ${nsyspipe.FONT}`,
          },
        },
      ].filter(Boolean),
    };
  };

  /** A round distance of ticks, so that one of them is where an axis begins that does not begin at 0. */
  const interval = (from, to, { splitNumber: most }) => {
    const power = 10 ** Math.floor(Math.log10((to - from) / most));
    return [1, 2, 5, 10, 20, 50].map((one) => one * power).find((one) => most * one >= to - from && from % one === 0);
  };

  return (data, palette, { width }) => {
    const { bars } = data;
    const [ticks, most] = [nsyspipe.ticks(width - 216), Math.max(...bars.map((bar) => bar.end)) || 1];
    const frame = nsyspipe.frame(palette);
    return {
      ...frame,
      grid: { left: width < NARROW ? 108 : 128, right: 88, top: 2, bottom: 26 },
      tooltip: { ...frame.tooltip, trigger: "axis", axisPointer: nsyspipe.shadow(palette), formatter: ([hit]) => tip(bars[hit.dataIndex], palette, bars) },
      xAxis: nsyspipe.valueAxis(palette, {
        ...ticks,
        min: data.from,
        max: most,
        interval: data.from ? interval(data.from, most, ticks) : undefined,
        splitLine: { showMaxLine: false, lineStyle: { color: palette.line } },
        axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true, showMaxLabel: false, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
      }),
      yAxis: nsyspipe.categoryAxis(palette, bars.map((bar) => bar.name), {
        inverse: true,
        axisLine: { show: false },
        axisLabel: {
          interval: 0,
          fontSize: 12,
          color: (name, at) => (isWhole(bars[at]) ? palette.ink : palette.ink2),
        },
      }),
      series: [{
        name: "waterfall",
        type: "custom",
        animation: false,
        clip: false,
        encode: { x: [0, 1], y: 2 },
        data: bars.map((bar, at) => [bar.start, bar.end, at]),
        renderItem: drawn(bars, palette),
      }],
    };
  };
})();
