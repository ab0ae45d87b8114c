/**
 * Where each step's time goes: per rank a bar of the parts that sum to its step time, and under it a thin one of its
 * communication: waiting and transfer. Both on one scale, so that what is hidden shows beside what hides it.
 */
nsyspipe.builders["step-bars"] = (data, palette, { width }) => {
  const { ranks, n_steps: n } = data;
  const longest = Math.max(...ranks.map((one) => one.wall)) / n;
  const left = 78;
  const room = width - left - 12;

  /** A share in the bar itself, where it fits. */
  const label = (name) => ({
    show: true,
    fontSize: 12,
    fontWeight: 500,
    color: nsyspipe.inkOn(palette[name]),
    formatter: ({ dataIndex, value }) => {
      const share = value / (ranks[dataIndex].wall / n);
      return value && (value / longest) * room > 44 ? nsyspipe.percent(share, share < 0.1 ? 1 : 0) : "";
    },
  });

  const stack = (name, values, more) => ({
    name, type: "bar", data: values, itemStyle: { color: palette[name] }, emphasis: { disabled: true }, ...more,
  });
  const sum = (some) => Object.values(some).reduce((total, part) => total + part, 0);
  const parts = nsyspipe.PARTS.map(([name]) => stack(name, ranks.map(({ parts: one }) => (one[name] ?? 0) / n),
    { stack: "wall", barWidth: 20, label: label(name), barGap: "25%" }));
  const unknown = stack("idle", ranks.map((one) => (one.wall - sum(one.parts)) / n || null), {
    stack: "wall",
    barWidth: 20,
    itemStyle: { color: "transparent", borderColor: palette.ink3, borderType: "dashed" },
    label: { show: true, color: palette.ink2, formatter: ({ value }) => (value ? "parts not recorded" : "") },
  });
  const communication = ["waiting", "transfer"].map((name) => stack(
    name,
    ranks.map((one) => (one.wait === null ? 0 : (name === "waiting" ? one.wait : one.transfer) / n)),
    { stack: "comm", barWidth: 6 },
  ));

  const kinds = nsyspipe.partsIn((name) => ranks.map((one) => one.parts[name] ?? null));
  const hasComm = ranks.some((one) => one.comm !== 0);
  const tip = (at) => {
    const one = ranks[at];
    const mean = (sum) => (sum === null ? null : sum / n);
    const rows = kinds.map(([name, words]) => nsyspipe.timeRow(words, mean(one.parts[name] ?? null), palette[name]));
    return nsyspipe.tooltip({
      title: `${nsyspipe.rankName(data, one.rank)}: ${nsyspipe.ms(mean(one.wall))}${n > 1 ? `, mean of ${n} steps` : ""}`,
      rows: [
        ...rows,
        nsyspipe.timeRow(data.whole, mean(one.wall)),
        ...(hasComm ? [
          nsyspipe.timeRow("communication in all", mean(one.comm)),
          nsyspipe.timeRow("of it waiting", mean(one.wait), palette.waiting),
          nsyspipe.timeRow("of it transfer", mean(one.transfer), palette.transfer),
        ] : []),
      ],
    });
  };

  const frame = nsyspipe.frame(palette);
  return {
    ...frame,
    grid: { left, right: 12, top: 2, bottom: 26 },
    tooltip: { ...frame.tooltip, trigger: "axis", axisPointer: nsyspipe.shadow(palette), formatter: ([hit]) => tip(hit.dataIndex) },
    xAxis: nsyspipe.valueAxis(palette, {
      ...nsyspipe.ticks(room),
      max: longest,
      axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true, showMaxLabel: false, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
    }),
    yAxis: nsyspipe.categoryAxis(palette, ranks.map((one) => `rank ${one.rank}`), {
      inverse: true,
      axisLine: { show: false },
      axisLabel: {
        interval: 0,
        align: "left",
        margin: left,
        formatter: (name, at) => `{rank|${name}}\n{time|${nsyspipe.ms(ranks[at].wall / n)}}`,
        rich: {
          rank: { color: palette.ink, fontWeight: 600, fontSize: 13, lineHeight: 16, align: "left" },
          time: { color: palette.ink2, fontSize: 12, lineHeight: 15, align: "left" },
        },
      },
    }),
    series: [...parts.slice(0, -1), unknown, ...parts.slice(-1), ...communication],
  };
};
