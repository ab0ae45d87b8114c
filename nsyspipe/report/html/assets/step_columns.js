/**
 * Steps over time: per step the slowest rank's parts, stacked, and a mark where the fastest rank ends.
 */
nsyspipe.builders["step-columns"] = (data, palette, { figure }) => {
  const isZoomed = figure.hasAttribute("data-zoom");
  // Few columns leave room to write why one is striped.
  const hasMarks = data.step.length <= 24 && data.mark.some(Boolean);
  const striped = { symbol: "rect", rotation: Math.PI / 4, dashArrayX: [1, 0], dashArrayY: [3, 4], color: palette.page };
  const parts = nsyspipe.PARTS.map(([name]) => ({
    name,
    type: "bar",
    stack: "step",
    barCategoryGap: data.step.length > 150 ? "0%" : "22%",
    barMaxWidth: 56,
    emphasis: { disabled: true },
    data: data.parts[name].map((ns, at) => ({
      value: ns ?? (name === "idle" ? data.wall[at] : 0),
      itemStyle: ns === null
        ? { color: "transparent", borderColor: palette.lineStrong, borderType: "dashed" }
        : { color: palette[name], decal: data.mark[at] ? striped : undefined },
    })),
  }));
  const fastest = {
    name: "fastest rank",
    type: "scatter",
    symbol: "rect",
    symbolSize: [Math.max(3, Math.min(28, 500 / data.step.length)), 2],
    silent: true,
    z: 5,
    itemStyle: { color: palette.ink },
    data: data.fastest.map((ns, at) => (data.fastestRank[at] === data.rank[at] ? null : ns)),
  };

  const tip = (at) => {
    const rows = nsyspipe.PARTS.map(([name, words]) => nsyspipe.timeRow(words, data.parts[name][at], palette[name]));
    rows.push(nsyspipe.timeRow("step time", data.wall[at]));
    rows.push(nsyspipe.timeRow(`fastest, rank ${data.fastestRank[at]}`, data.fastest[at], palette.ink));
    const mark = data.mark[at] ? `, not in the figures: ${data.mark[at]}` : "";
    return nsyspipe.tooltip({ title: `step ${data.step[at]}, slowest rank ${data.rank[at]}${mark}`, rows });
  };

  const frame = nsyspipe.frame(palette);
  return {
    ...frame,
    grid: { left: 62, right: 14, top: 14, bottom: hasMarks ? 58 : 44 },
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
        hideOverlap: true,
        formatter: (step, at) => (hasMarks && data.mark[at] ? `${step}\n${data.mark[at]}` : step),
      },
    }),
    yAxis: nsyspipe.valueAxis(palette, {
      axisLabel: { color: palette.ink3, fontSize: 12, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
    }),
    series: [...parts, fastest],
  };
};
