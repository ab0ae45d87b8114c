/**
 * Collectives of a step in order: transfer, and on top of it the longest wait; the tooltip has the longest waits.
 */
nsyspipe.builders.collectives = (data, palette, { figure }) => {
  const isZoomed = figure.hasAttribute("data-zoom");
  const mostSteps = Math.max(...data.n_steps);
  const longest = data.longest.map(([[, ns] = [0, 0]]) => ns);

  const series = (name, values) => ({
    name,
    type: "bar",
    stack: "collective",
    barMaxWidth: 40,
    barCategoryGap: data.seq.length > 100 ? "10%" : "25%",
    emphasis: { disabled: true },
    itemStyle: { color: palette[name] },
    barMinHeight: name === "transfer" ? 3 : 0, // seen above the axis, too
    data: values.map((ns) => ns || null),
  });

  /** Ranks by how long they wait; the one that nobody waits for last. */
  const tip = (at) => {
    const waits = data.longest[at];
    const rows = [nsyspipe.timeRow("longest duration", data.duration[at]), nsyspipe.timeRow("transfer", data.transfer[at], palette.transfer)];
    for (const [rank, ns] of waits) rows.push(nsyspipe.timeRow(`${nsyspipe.rankName(data, rank)} waits`, ns, palette.waiting));
    const more = data.n_waits[at] - waits.length;
    if (more) rows.push({ label: "shorter waits", value: `${more} ranks` });
    if (!waits.length) rows.push({ label: "wait", value: "not known" });
    if (data.n_steps[at] < mostSteps) rows.push({ label: "steps that have it", value: `${data.n_steps[at]}` });
    return nsyspipe.tooltip({ title: `${data.collective[at]}, place ${data.seq[at]}`, rows });
  };

  const frame = nsyspipe.frame(palette);
  return {
    ...frame,
    grid: { left: 62, right: 14, top: 14, bottom: 44 },
    tooltip: { ...frame.tooltip, trigger: "axis", axisPointer: nsyspipe.shadow(palette), formatter: ([hit]) => tip(hit.dataIndex) },
    dataZoom: isZoomed ? [nsyspipe.insideZoom()] : [],
    xAxis: nsyspipe.categoryAxis(palette, data.seq.map(String), { name: data.axis, nameLocation: "middle", nameGap: 26 }),
    yAxis: nsyspipe.valueAxis(palette, {
      axisLabel: { color: palette.ink3, fontSize: 12, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
    }),
    series: [
      series("transfer", data.transfer),
      series("untold", data.transfer.map((ns, at) => (ns === null ? data.duration[at] : null))),
      series("waiting", longest),
    ],
  };
};

/** Message size against bus bandwidth: small messages are bound by latency, large ones show the link. */
nsyspipe.builders.sizes = (data, palette) => {
  const kinds = [...new Set(data.collective)];
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "pin", "arrow"];
  const frame = nsyspipe.frame(palette);
  return {
    ...frame,
    grid: { left: 78, right: 20, top: 36, bottom: 44 },
    legend: { top: 5, left: 0, padding: 0, itemWidth: 10, itemHeight: 10, textStyle: { color: palette.ink2, fontSize: 12 } },
    tooltip: {
      ...frame.tooltip,
      trigger: "item",
      formatter: ({ value: [bytes, speed, at] }) => nsyspipe.tooltip({
        title: `${data.collective[at]}, place ${data.seq[at]}`,
        rows: [
          { label: "message size", value: nsyspipe.bytes(bytes), exact: nsyspipe.exact(bytes, "B") },
          { label: "bus bandwidth", value: nsyspipe.bandwidth(speed) },
          ...nsyspipe.countedRow(data.counted?.[at], data.counted_ratio?.[at]),
          nsyspipe.timeRow("transfer", data.transfer[at], palette.transfer),
        ],
      }),
    },
    xAxis: { ...nsyspipe.valueAxis(palette, { name: "message size", nameLocation: "middle", nameGap: 28 }), type: "log",
      min: ({ min }) => 10 ** Math.floor(Math.log10(min)), max: ({ max }) => 10 ** Math.ceil(Math.log10(max)),
      axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true, margin: 10, alignMinLabel: "left", alignMaxLabel: "right",
        formatter: (bytes) => nsyspipe.bytes(bytes).replace(".00", "") } },
    // Above the highest point there is room for the whole of it.
    yAxis: nsyspipe.valueAxis(palette, { boundaryGap: [0, "6%"], name: "bus bandwidth", nameLocation: "middle", nameGap: 62, axisLabel: { color: palette.ink3, fontSize: 12, formatter: (speed) => `${nsyspipe.tick(speed / 1e9)} GB/s` } }),
    series: kinds.map((kind, index) => ({
      name: kind,
      type: "scatter",
      symbol: SYMBOLS[index % SYMBOLS.length],
      symbolSize: 9,
      itemStyle: { color: palette.accent, opacity: 0.75 },
      data: data.bytes.flatMap((bytes, at) => (data.collective[at] === kind ? [[bytes, data.busbw[at], at]] : [])),
    })),
  };
};
