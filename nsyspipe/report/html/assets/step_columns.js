/**
 * Steps over time: per step the slowest rank's parts, stacked; every rank as a dot, and a line through their medians. What
 * is not in the figures is pale, on a shade that shows of the shortest step too.
 */
nsyspipe.builders["step-columns"] = (data, palette, { width, figure }) => {
  const [LEFT, RIGHT] = [62, 14];
  const isZoomed = figure.hasAttribute("data-zoom");
  const words = Math.max(...data.mark.map((mark) => mark.length));
  // Wide columns leave room to write why one is not in the figures.
  const hasMarks = words > 0 && (width - LEFT - RIGHT) / data.step.length > 6.5 * words;
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
    (at) => ({ color: palette[name], opacity: data.mark[at] ? 0.45 : 1 })));
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
  // Of steps in the figures; between others one is no line, but a dash.
  const isLone = (at) => [at - 1, at + 1].every((beside) => data.mark[beside] !== "");
  const median = {
    name: "median", type: "line", silent: true, z: 5, showAllSymbol: true, symbol: "rect",
    itemStyle: { color: palette.ink }, lineStyle: { color: palette.ink, width: 1.5 },
    data: data.median_wall_ns.map((ns, at) => ({ value: data.mark[at] ? null : ns, symbolSize: isLone(at) ? [24, 1.5] : 0 })),
  };
  const shade = {
    name: "shade", type: "custom", silent: true, z: 0,
    data: data.mark.flatMap((mark, at) => (mark ? [[at, 0]] : [])),
    renderItem: ({ coordSys: { y, height } }, api) => {
      const [middle, wide] = [api.coord([api.value(0), 0])[0], api.size([1, 0])[0]];
      return { type: "rect", shape: { x: middle - wide / 2, y, width: wide, height }, style: { fill: palette.line, opacity: 0.7 } };
    },
  };

  const kinds = nsyspipe.partsIn((name) => data.parts[name]);
  const tip = (at) => {
    const rows = kinds.map(([name, words]) => nsyspipe.timeRow(words, data.parts[name][at], palette[name]));
    rows.push(nsyspipe.timeRow("step time", data.wall_ns[at]));
    if (hasRanks) {
      rows.push(nsyspipe.timeRow("median of ranks", data.median_wall_ns[at], palette.ink));
      rows.push(nsyspipe.timeRow(`fastest, rank ${data.fastest_rank[at]}`, data.fastest_wall_ns[at]));
    }
    const slowest = hasRanks ? `, slowest rank ${data.rank[at]}` : "";
    const mark = data.mark[at] ? `, not in the figures: ${data.mark[at]}` : "";
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
        lineHeight: 15,
        showMaxLabel: true,
        formatter: (step, at) => (hasMarks && data.mark[at] ? `${step}\n${data.mark[at]}` : step),
      },
    }),
    yAxis: nsyspipe.valueAxis(palette, {
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
