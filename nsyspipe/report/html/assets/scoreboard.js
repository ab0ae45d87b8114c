/**
 * Runs side by side: per run a bar of the parts that sum to its mean step time, and its speed-up with the interval of
 * it. On a wide page both are in one row, on a narrow one the speed-ups stand below the bars.
 */
nsyspipe.builders.scoreboard = (() => {
  const WIDE = 680;
  const PARTS = [["compute", "compute"], ["exposed", "exposed communication"], ["copies", "exposed copies"], ["idle", "idle"]];
  const TOP = 28;
  const BOTTOM = 28;
  const times = (ratio) => (ratio === null ? nsyspipe.absent : `${ratio.toFixed(3)}x`);

  /** The kinds, over the whole width; names of runs keep to their column. */
  const headings = (rows, palette, grid, width) => rows.flatMap(({ heading }, at) => (heading ? [{
    type: "text",
    silent: true,
    z: 2,
    x: 3,
    y: grid.top + 30 * at + 15,
    style: {
      text: heading, fill: palette.ink3, font: `12px ${nsyspipe.FONT}`, verticalAlign: "middle", backgroundColor: palette.page, height: 20, width, overflow: "truncate",
    },
  }] : []));

  /** The time of a run with as many digits as the longest of its kind, as its table has them. */
  const alike = (rows, at) => {
    const kind = (row) => rows.slice(0, row).findLastIndex(({ heading }) => heading);
    const most = Math.max(...rows.flatMap(({ wall }, row) => (wall && kind(row) === kind(at) ? [wall] : [])));
    const digits = nsyspipe.ms(most).split(".")[1]?.replace(" ms", "").length ?? 0;
    return `${(rows[at].wall / 1e6).toFixed(digits)} ms`;
  };

  const bars = (rows, palette) => {
    const bar = (name, values, more) => ({
      name, type: "bar", stack: "wall", barWidth: 16, data: values, emphasis: { disabled: true }, ...more,
    });
    const known = PARTS.map(([name]) => bar(name, rows.map(({ parts }) => parts?.[name] ?? null), { itemStyle: { color: palette[name] } }));
    const unknown = bar("unknown", rows.map(({ parts, wall }) => (parts ? null : wall ?? null)), {
      itemStyle: { color: "transparent", borderColor: palette.lineStrong, borderType: "dashed" },
    });
    const end = bar("end", rows.map((row) => (row.heading ? null : 0)), {
      label: {
        show: true,
        position: "right",
        color: palette.ink2,
        fontSize: 12,
        ...nsyspipe.plate(palette),
        formatter: ({ dataIndex }) => (rows[dataIndex].wall === null ? "no figures" : alike(rows, dataIndex)),
      },
    });
    return [...known, unknown, end];
  };

  /** A dot with its interval as a line; the figure right of both. */
  const dots = (rows, palette) => ({
    name: "speed-up",
    type: "custom",
    xAxisIndex: 1,
    yAxisIndex: 1,
    data: rows.map(({ speedup = null, low, high }, at) => [speedup, at, low ?? speedup, high ?? speedup]),
    encode: { x: [0, 2, 3], y: 1 },
    renderItem: (params, api) => {
      const row = rows[api.value(1)];
      if (row.heading || row.speedup === null) return null;
      const [x, y] = api.coord([row.speedup, api.value(1)]);
      const isSure = row.verdict === "improvement" || row.verdict === "regression";
      const color = { improvement: palette.accent, regression: palette.bad }[row.verdict] ?? palette.ink;
      const [from, to] = [row.low ?? row.speedup, row.high ?? row.speedup].map((one) => api.coord([one, api.value(1)])[0]);
      const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: color, lineWidth: 1.5 } });
      const whisker = to > from ? [line(from, y, to, y), line(from, y - 4, from, y + 4), line(to, y - 4, to, y + 4)] : [];
      return {
        type: "group",
        children: [
          ...whisker,
          { type: "circle", shape: { cx: x, cy: y, r: 4 }, style: { fill: isSure ? color : palette.page, stroke: color, lineWidth: 1.5 } },
          {
            type: "text",
            style: {
              text: row.peer === row.label ? "baseline" : times(row.speedup),
              x: Math.max(x + 4, to) + 7,
              y,
              verticalAlign: "middle",
              fill: palette.ink2,
              ...nsyspipe.plate(palette),
              font: `${row.is_best ? 650 : 400} 12px ${nsyspipe.FONT}`,
            },
          },
        ],
      };
    },
    markLine: {
      silent: true,
      z: 1,
      symbol: "none",
      label: { show: false },
      lineStyle: { color: palette.lineStrong, type: "dashed" },
      data: [{ xAxis: 1 }],
    },
  });

  const tip = (row, palette) => {
    if (row.heading) return nsyspipe.tooltip({ title: row.heading, rows: [] });
    const interval = row.low === null ? "too few steps" : `${row.low.toFixed(3)} to ${row.high.toFixed(3)}`;
    const speed = row.peer === row.label ? [] : [
      { label: "speed-up", value: times(row.speedup), exact: row.speedup === null ? undefined : interval },
      { label: "over", value: row.peer },
    ];
    return nsyspipe.tooltip({
      title: row.label,
      rows: [
        nsyspipe.timeRow(`mean step time, ${row.n_steps} step${row.n_steps === 1 ? "" : "s"}`, row.wall),
        ...PARTS.map(([name, words]) => nsyspipe.timeRow(words, row.parts?.[name] ?? null, palette[name])),
        ...speed,
        { label: "verdict", value: row.word },
        ...(row.why ? [{ label: "why", value: row.why }] : []),
      ],
    });
  };

  /** From a little below the least to a little above the most, with room for the figures on the right. */
  const speedRange = (rows) => {
    const found = rows.flatMap(({ speedup, low, high }) => [speedup, low, high]).filter((one) => Number.isFinite(one));
    const [least, most] = [Math.min(1, ...found), Math.max(1, ...found)];
    const span = Math.max(most - least, 0.02);
    const [from, to] = [Math.max(least - 0.08 * span, 0), most + 0.4 * span];
    const power = 10 ** Math.floor(Math.log10((to - from) / 4));
    const interval = [1, 2, 5, 10].find((one) => 4 * one * power >= to - from) * power;
    return { min: Math.floor(from / interval) * interval, max: Math.ceil(to / interval) * interval, interval };
  };

  return (data, palette, { width, figure }) => {
    const { rows, over } = data;
    const isWide = width >= WIDE;
    const names = rows.map((row) => row.label ?? "");
    const left = Math.round(Math.min(12 + 7.2 * Math.max(...names.map((one) => one.length)), width * (isWide ? 0.24 : 0.36)));
    const height = TOP + BOTTOM + 30 * rows.length;
    figure.querySelector(".chart-area").style.height = `${isWide ? height : 2 * height + 12}px`;
    const split = Math.round(left + (width - left) * 0.6);
    const room = { top: TOP, height: 30 * rows.length };
    const grids = isWide
      ? [{ left, right: width - split + 76, ...room }, { left: split, right: 12, ...room }]
      : [{ left, right: 76, ...room }, { left, right: 12, ...room, top: height + 12 + TOP }];
    const title = (text, grid) => ({
      text,
      left: grid.left,
      top: grid.top - TOP + 8,  // the middle of the line, where its width is limited
      padding: 0,
      textStyle: {
        color: palette.ink,
        fontSize: 13,
        fontWeight: 600,
        width: (isWide && grid === grids[0] ? split : width) - grid.left - 20,
        overflow: "truncate",
      },
    });
    const runs = (index, isNamed) => nsyspipe.categoryAxis(palette, names, {
      gridIndex: index,
      inverse: true,
      axisLine: { show: false },
      axisLabel: {
        show: isNamed,
        interval: 0,
        hideOverlap: false,
        align: "left",
        margin: left,
        width: left - 10,
        overflow: "truncate",
        fontSize: 12,
        color: palette.ink,
      },
    });
    const label = (formatter) => ({ color: palette.ink3, fontSize: 12, hideOverlap: true, formatter });
    const frame = nsyspipe.frame(palette);
    return {
      ...frame,
      title: [title("Mean step time, slowest rank", grids[0]), title(`Speed-up ${over}`, grids[1])],
      grid: grids,
      graphic: (isWide ? grids.slice(0, 1) : grids).flatMap((grid) => headings(rows, palette, grid, width)),
      tooltip: { ...frame.tooltip, trigger: "axis", axisPointer: nsyspipe.shadow(palette), formatter: ([hit]) => tip(rows[hit.dataIndex], palette) },
      xAxis: [
        nsyspipe.valueAxis(palette, { min: 0, ...nsyspipe.ticks(isWide ? split - left : width - left), axisLabel: label((ns) => `${nsyspipe.tick(ns / 1e6)} ms`) }),
        nsyspipe.valueAxis(palette, {
          gridIndex: 1,
          ...speedRange(rows),
          axisLabel: label((ratio) => `${nsyspipe.tick(ratio)}x`),
        }),
      ],
      yAxis: [runs(0, true), runs(1, !isWide)],
      series: [...bars(rows, palette), dots(rows, palette)],
    };
  };
})();
