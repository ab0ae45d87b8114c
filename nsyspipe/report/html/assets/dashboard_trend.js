/**
 * The chart of step time by time of capture. Runs of one label are joined by a line. The series of the selected run has the
 * accent color, and the others are gray. The shape of a point stands for the group.
 */
nsyspipe.trend = (() => {
  const { axes, board, words } = nsyspipe;
  const { data } = board;
  const SHAPES = ["circle", "rect", "triangle", "diamond"];
  const CROSS = "path://M0 1L1 0L5 4L9 0L10 1L6 5L10 9L9 10L5 6L1 10L0 9L4 5Z";
  const GRID = { left: 54, right: 20, top: 28, bottom: 30 };
  const NS_PER_MS = 1e6;

  const dotSize = (nRuns) => {
    if (nRuns <= 40) return 9;
    return nRuns <= 150 ? 6 : 4;
  };

  /** The shape of a group. It is hollow from the fifth group on. */
  const shapeOf = (group) => ({ symbol: SHAPES[group % SHAPES.length], isHollow: Math.floor(group / SHAPES.length) % 2 === 1 });

  const isTimed = (run) => data.runs.time[run] !== null;
  const msOf = (run) => (board.stepTime(run) === null ? null : board.stepTime(run) / NS_PER_MS);
  const knownMs = (runs) => runs.map(msOf).filter((ms) => ms !== null);
  const isOutside = (ms, { min, max }) => ms < min || ms > max;

  const tooltip = (run) => {
    const { label, id, n_steps: nSteps } = data.runs;
    const change = words.change(run, board.before(run));
    const rows = data.figures.map(({ name, title }) => ({ label: title, value: words.figure(name, run) }));
    rows[0].exact = change?.text;
    return nsyspipe.tooltip({
      title: label[run],
      name: id[run],
      rows: [
        { label: "Captured", value: words.when(run) },
        { label: words.group(run), value: `${words.plural(nSteps[run], "step")} used` },
        ...rows,
        { label: "First finding", value: words.finding(run) },
      ],
    });
  };

  const dotStyle = (color, group, palette) =>
    (shapeOf(group).isHollow ? { color: palette.page, borderColor: color, borderWidth: 1.5 } : { color });

  const line = (of, runs, palette, focus) => {
    const { group, label } = data.series[of];
    const isFocus = of === focus;
    const color = isFocus ? palette.accent : palette.ink3;
    const style = dotStyle(color, group, palette);
    const shown = board.shown();
    const best = isFocus ? board.best(of) : null;
    const size = dotSize(board.current().runs.length);
    const point = (run) => {
      const isShown = run === shown;
      return {
        run,
        value: [data.runs.time[run], msOf(run)],
        symbolSize: isShown ? 13 : size,
        itemStyle: isShown ? { borderColor: palette.page, borderWidth: 2, ...style } : style,
        label: { show: run === best },
      };
    };
    const width = isFocus ? 1.75 : 1;
    return {
      type: "line",
      name: String(of),
      data: runs.filter(isTimed).map(point),
      symbol: shapeOf(group).symbol,
      showAllSymbol: true,
      connectNulls: false,
      itemStyle: style,
      lineStyle: { color, width: label === null ? 0 : width, opacity: isFocus ? 1 : 0.45 },
      label: { position: "bottom", distance: 7, color: palette.ink2, fontSize: 12, formatter: () => "best" },
      emphasis: { scale: 1.3 },
      z: isFocus ? 4 : 3,
    };
  };

  /** A cross at the foot for each run without a step time. */
  const missing = (runs, palette) => ({
    type: "scatter",
    name: "missing",
    yAxisIndex: 1,
    symbol: CROSS,
    symbolSize: 7,
    itemStyle: { color: palette.ink3 },
    data: runs.filter((run) => isTimed(run) && msOf(run) === null).map((run) => ({ run, value: [data.runs.time[run], 0] })),
  });

  /** A triangle at the edge for each run outside the scale. */
  const outside = (runs, limits, palette) => ({
    type: "scatter",
    name: "outside",
    symbol: "triangle",
    symbolSize: Math.min(8, dotSize(runs.length)),
    itemStyle: { color: palette.ink3 },
    data: runs.filter((run) => isTimed(run) && msOf(run) !== null && isOutside(msOf(run), limits)).map((run) => {
      const isAbove = msOf(run) > limits.max;
      return { run, value: [data.runs.time[run], isAbove ? limits.max : limits.min], symbolRotate: isAbove ? 0 : 180 };
    }),
    z: 5,
  });

  const emptyText = (palette, runs) => ({
    text: runs.length ? "not recorded in these runs" : "no run in view",
    left: "center",
    top: "middle",
    textStyle: { color: palette.ink3, fontSize: 13, fontWeight: 400 },
  });

  const tellOutside = (nSeries) => {
    const verb = nSeries === 1 ? "is" : "are";
    const text = `${nSeries} other series ${verb} outside of this scale (triangles). Select a series in the list to see it.`;
    document.getElementById("outside").textContent = nSeries ? text : "";
  };

  const build = (_, palette, { width, figure }) => {
    const { runs, series } = board.current();
    const shown = board.shown();
    const focus = shown === null ? null : data.runs.series[shown];
    // The scale is that of the selected series, so that a change in it can be seen.
    const own = knownMs(series.get(focus) ?? []);
    const values = own.length ? own : knownMs(runs);
    const limits = axes.limits(values);
    const isInView = ([, members]) => {
      const times = knownMs(members);
      return !times.length || times.some((ms) => !isOutside(ms, limits));
    };
    const inView = [...series].filter(isInView);
    const lines = inView.map(([of, members]) => line(of, members, palette, focus));
    tellOutside(series.size - inView.length);
    nsyspipe.pointer.follow(figure);
    return {
      ...nsyspipe.frame(palette),
      useUTC: true,
      grid: GRID,
      graphic: axes.zigzag(palette, limits, GRID),
      xAxis: axes.x(palette, width - GRID.left - GRID.right),
      yAxis: [axes.y(palette, limits), { type: "value", min: -0.04, max: 1, show: false }],
      dataZoom: [{ ...nsyspipe.insideZoom(), ...nsyspipe.pointer.range() }],
      title: values.length ? undefined : emptyText(palette, runs),
      tooltip: {
        ...nsyspipe.frame(palette).tooltip,
        trigger: "item",
        triggerOn: "none",
        formatter: ({ data: point }) => tooltip(point.run),
      },
      series: nsyspipe.pointer.remember(figure, [...lines, outside(runs, limits, palette), missing(runs, palette)]),
    };
  };

  board.onChange(() => nsyspipe.lifecycle.redraw(document.querySelector("figure[data-chart='trend']")));
  nsyspipe.builders.trend = build;

  return { shapeOf };
})();
