/**
 * Where each step's time goes: per rank a bar of the parts that sum to its step time, and under it a thin one of its
 * communication: waiting and transfer. Both on one scale, so that what is hidden shows beside what hides it. Below the
 * ranks stands the step that a simulation predicts for the first recommendation, with its range.
 */
nsyspipe.builders["step-bars"] = (data, palette, { width }) => {
  const { ranks, n_steps: n, after } = data;
  const longest = Math.max(Math.max(...ranks.map((one) => one.wall)) / n, after?.high ?? 0);
  const left = after ? 84 : 78;
  const room = width - left - 12;

  /** A share in the bar itself, where it fits. */
  const label = (name) => ({
    show: true,
    fontSize: 12,
    fontWeight: 500,
    color: nsyspipe.inkOn(palette[name]),
    formatter: ({ dataIndex, value }) => {
      const share = value / (data.step ?? ranks[dataIndex].wall / n);
      return value && (value / longest) * room > 44 ? nsyspipe.percent(share, share < 0.1 ? 1 : 0) : "";
    },
  });

  const stack = (name, values, more) => ({
    name, type: "bar", data: values, itemStyle: { color: palette[name] }, emphasis: { disabled: true }, ...more,
  });
  const sum = (some) => Object.values(some).reduce((total, part) => total + part, 0);
  const parts = nsyspipe.PARTS.map(([name]) => stack(name, ranks.map(({ parts: one }) => (one[name] ?? 0) / n),
    { stack: "wall", barWidth: 15, label: label(name), barGap: "25%" }));
  const unknown = stack("idle", ranks.map((one) => (one.wall - sum(one.parts)) / n || null), {
    stack: "wall",
    barWidth: 15,
    itemStyle: { color: "transparent", borderColor: palette.ink3, borderType: "dashed" },
    label: { show: true, color: palette.ink2, formatter: ({ value }) => (value ? "parts not recorded" : "") },
  });
  const communication = ["waiting", "transfer"].map((name) => stack(
    name,
    ranks.map((one) => (one.wait === null ? 0 : (name === "waiting" ? one.wait : one.transfer) / n)),
    { stack: "comm", barWidth: 5 },
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
          nsyspipe.timeRow("total communication", mean(one.comm)),
          nsyspipe.timeRow("wait time", mean(one.wait), palette.waiting),
          nsyspipe.timeRow("transfer time", mean(one.transfer), palette.transfer),
        ] : []),
      ],
    });
  };

  const tipOfAfter = () => nsyspipe.tooltip({
    title: "after the first recommendation (simulated)",
    rows: [
      { label: "step time", value: nsyspipe.ms(after.ns), color: palette.accent },
      { label: "range", value: `${nsyspipe.ms(after.low)} to ${nsyspipe.ms(after.high)}` },
    ],
  });

  /** The simulated step: its parts are not known, so it has a color of its own. */
  const predicted = after && {
    name: "after", type: "bar", stack: "wall", barWidth: 15, emphasis: { disabled: true },
    data: [...ranks.map(() => null), after.ns],
    itemStyle: { color: palette.accent },
    label: {
      show: true, fontSize: 12, fontWeight: 600, color: nsyspipe.inkOn(palette.accent),
      formatter: ({ value }) => (value ? `${nsyspipe.significant(after.ns / 1e6, 3)} ms` : ""),
    },
  };
  /** Its range: a line with an end at both sides. */
  const range = after && {
    name: "range", type: "custom", silent: true, z: 5, data: [[after.low, after.high]],
    renderItem: (_, api) => {
      const [from, y] = api.coord([api.value(0), ranks.length]);
      const [to] = api.coord([api.value(1), ranks.length]);
      const style = { stroke: palette.ink, lineWidth: 1.5 };
      const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
      const at = y - 4; // the bar of the step is above the middle of its row
      return { type: "group", children: [line(from, at, to, at), line(from, at - 5, from, at + 5), line(to, at - 5, to, at + 5)] };
    },
  };

  const frame = nsyspipe.frame(palette);
  return {
    ...frame,
    grid: { left, right: 12, top: 2, bottom: 26 },
    tooltip: { ...frame.tooltip, trigger: "axis", axisPointer: nsyspipe.shadow(palette), formatter: ([hit]) => (hit.dataIndex < ranks.length ? tip(hit.dataIndex) : tipOfAfter()) },
    xAxis: nsyspipe.valueAxis(palette, {
      ...nsyspipe.ticks(room),
      max: longest,
      axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true, showMaxLabel: false, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
    }),
    yAxis: nsyspipe.categoryAxis(palette, [...ranks.map((one) => `rank ${one.rank}`), ...(after ? ["after"] : [])], {
      inverse: true,
      axisLine: { show: false },
      axisLabel: {
        interval: 0,
        align: "left",
        margin: left,
        formatter: (name, at) => (at < ranks.length ? `{rank|${name}}` : "{rank|after}\n{more|(simulated)}"),
        rich: {
          rank: { color: palette.ink, fontWeight: 600, fontSize: 13, lineHeight: 15, align: "left" },
          more: { color: palette.ink2, fontSize: 12, lineHeight: 14, align: "left" },
        },
      },
    }),
    series: [...parts.slice(0, -1), unknown, ...parts.slice(-1), ...communication, ...(after ? [predicted, range] : [])],
  };
};
