/**
 * Steps over time: per step the slowest rank's parts, stacked; every rank as a dot, and a line through their medians. What
 * is not used is pale, on a shade that shows of the shortest step too.
 */
nsyspipe.builders["step-columns"] = (data, palette, { width, figure }) => {
  const [LEFT, RIGHT] = [62, 14];
  const isZoomed = figure.hasAttribute("data-zoom");
  const hasMarks = data.mark.some((mark) => mark);
  const stack = (name, values, style) => ({
    name,
    type: "bar",
    stack: "step",
    barCategoryGap: data.step.length > 150 ? "0%" : "22%",
    barMaxWidth: 56,
    emphasis: { disabled: true },
    data: values.map((value, at) => ({ value, itemStyle: style(at) })),
  });
  const parts = nsyspipe.PARTS.map(([name]) => stack(name, data.parts[name].map((ns) => ns ?? 0),
    (at) => ({ color: palette[name], opacity: data.mark[at] && name !== "idle" ? 0.45 : 1 })));
  const rest = data.wall_ns.map((ns, at) => nsyspipe.PARTS.reduce((left, [name]) => left - (data.parts[name][at] ?? 0), ns));
  const unknown = stack("idle", rest.map((ns) => ns || null),
    () => ({ color: "transparent", borderColor: palette.ink3, borderType: "dashed" }));
  const hasRanks = data.walls_ns.some((walls) => walls.length > 1);
  const ranks = {
    name: "ranks",
    type: "scatter",
    symbolSize: data.step.length > 60 ? 3 : 5,
    silent: true,
    z: 6,
    itemStyle: { color: palette.page, borderColor: palette.ink, borderWidth: 1 },
    data: data.walls_ns.flatMap((walls, at) => walls.map((ns) => [at, ns])),
  };
  // Of steps used; between others one is no line, but a dash.
  const isLone = (at) => [at - 1, at + 1].every((beside) => data.mark[beside] !== "");
  const median = {
    name: "median", type: "line", silent: true, z: 5, showAllSymbol: true, symbol: "rect",
    itemStyle: { color: palette.ink }, lineStyle: { color: palette.ink, width: 1.5 },
    data: data.median_wall_ns.map((ns, at) => ({ value: data.mark[at] ? null : ns, symbolSize: isLone(at) ? [24, 1.5] : 0 })),
  };
  // Neighbours that are not used for one reason: their first and last column, and the reason.
  const spans = [];
  data.mark.forEach((mark, at) => {
    if (mark && mark === data.mark[at - 1]) spans.at(-1)[1] = at;
    else if (mark) spans.push([at, at, mark]);
  });
  const shade = {
    name: "shade", type: "custom", silent: true, z: 0,
    data: spans.map(([first, last]) => [first, last]),
    renderItem: ({ coordSys: { x, y, width: room, height }, dataIndex: at }, api) => {
      const wide = api.size([1, 0])[0];
      const [left, right] = spans[at].slice(0, 2).map((column, end) => Math.min(Math.max(api.coord([column, 0])[0] + (end - 0.5) * wide, x), x + room));
      if (right <= left) return null;
      const rect = { type: "rect", shape: { x: left, y, width: right - left, height }, style: { fill: palette.line, opacity: 0.5 } };
      // Below the numbers of steps, up to half of the way to the next reason.
      const text = { text: spans[at][2], font: `12px ${nsyspipe.FONT}`, fill: palette.ink2, align: "center", y: y + height + 23 };
      const half = echarts.format.getTextRect(text.text, text.font).width / 2;
      const beside = (span, end, nothing) => (span ? api.coord([span[end], 0])[0] : nothing);
      const middle = Math.min(Math.max((left + right) / 2, half), width - half);
      const fits = middle - half > (beside(spans[at - 1], 1, -Infinity) + left) / 2 && middle + half < (beside(spans[at + 1], 0, Infinity) + right) / 2;
      return { type: "group", children: [rect, ...(fits ? [{ type: "text", style: { ...text, x: middle } }] : [])] };
    },
  };

  const kinds = nsyspipe.partsIn((name) => data.parts[name]);
  const tip = (at) => {
    const rows = kinds.map(([name, words]) => nsyspipe.timeRow(words, data.parts[name][at], palette[name]));
    rows.push(nsyspipe.timeRow("step time", data.wall_ns[at]));
    if (hasRanks) {
      rows.push(nsyspipe.timeRow("median of ranks", data.median_wall_ns[at], palette.ink));
      rows.push(nsyspipe.timeRow(`fastest, ${nsyspipe.rankName(data, data.fastest_rank[at])}`, data.fastest_wall_ns[at]));
    }
    const slowest = hasRanks ? `, slowest ${nsyspipe.rankName(data, data.rank[at])}` : "";
    const mark = data.mark[at] ? `, not used: ${data.mark[at]}` : "";
    return nsyspipe.tooltip({ title: `step ${data.step[at]}${slowest}${mark}`, rows });
  };

  const frame = nsyspipe.frame(palette);
  return {
    ...frame,
    grid: { left: LEFT, right: RIGHT, top: 14, bottom: hasMarks ? 58 : 44 },
    tooltip: { ...frame.tooltip, trigger: "axis", axisPointer: nsyspipe.shadow(palette), formatter: ([hit]) => tip(hit.dataIndex) },
    dataZoom: isZoomed ? [nsyspipe.insideZoom()] : [],
    xAxis: nsyspipe.categoryAxis(palette, data.step.map(String), {
      name: "step",
      nameLocation: "middle",
      nameGap: hasMarks ? 42 : 26,
      axisLabel: {
        color: palette.ink2,
        fontSize: 12,
        showMaxLabel: true,
      },
    }),
    yAxis: nsyspipe.valueAxis(palette, {
      boundaryGap: [0, "4%"], // none ends where the axis does
      axisLabel: { color: palette.ink3, fontSize: 12, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
    }),
    series: [...parts.slice(0, -1), unknown, ...parts.slice(-1), ...(hasRanks ? [median, ranks] : []), shade],
  };
};

/** A step that the address names is shown with its tooltip. */
nsyspipe.link.on("step", (step) => {
  const figure = document.getElementById("chart-step-columns");
  const at = figure ? nsyspipe.data("step-columns").step.findIndex((one) => String(one) === step) : -1;
  if (at < 0) return;
  nsyspipe.lifecycle.draw(figure);
  nsyspipe.charts.get(figure.id)?.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: at });
});
