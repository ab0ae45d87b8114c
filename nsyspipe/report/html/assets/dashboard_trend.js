/**
 * Step time over the runs in view: a line per series (none between variants), the series of the chosen run in the accent
 * colour, the others grey with a shape per world size, GPU model and work of the steps.
 */
nsyspipe.trend = (() => {
  const { axes, board, words } = nsyspipe;
  const { data } = board;
  const SHAPES = ["circle", "rect", "triangle", "diamond"];
  const CROSS = "M0 1L1 0L5 4L9 0L10 1L6 5L10 9L9 10L5 6L1 10L0 9L4 5Z";
  const [UP, DOWN] = ["M4 0L8 8L0 8Z", "M4 8L8 0L0 0Z"];
  const MAIN = "step_time_ns";

  const dotSize = (n) => (n <= 40 ? 9 : n <= 150 ? 6 : 4);

  /** Shape of a group; from the fifth on hollow. */
  const shapeOf = (group) => ({ symbol: SHAPES[group % SHAPES.length], isHollow: Math.floor(group / SHAPES.length) % 2 === 1 });

  const dotStyle = (color, group, palette) =>
    (shapeOf(group).isHollow ? { color: palette.page, borderColor: color, borderWidth: 1.5 } : { color });

  const tooltip = (run) => {
    const before = board.before(run);
    const rows = data.figures.map(({ name, title }) => {
      const found = words.against(name, run, before);
      return { label: title, value: words.figure(name, run), exact: found ? found.text : undefined };
    });
    const { label, id, captured, n_steps: steps } = data.runs;
    return nsyspipe.tooltip({
      title: label[run],
      name: id[run],
      rows: [
        { label: "Captured", value: captured[run] },
        { label: words.group(run), value: `${words.plural(steps[run], "step")} used` },
        ...rows,
        { label: "First finding", value: words.finding(run) },
      ],
    });
  };

  const line = (runs, figure, context) => {
    const { palette, focus, of } = context;
    const isFocus = of === focus;
    const { group } = data.series[of];
    const color = isFocus ? palette.accent : palette.ink3;
    const scale = axes.scale(figure.kind);
    const shown = board.shown();
    const best = isFocus ? board.best(of) : null;
    const point = (run) => {
      const y = board.value(figure.name, run);
      const isShown = run === shown;
      return {
        run,
        value: [axes.place(run), y === null ? null : y * scale],
        symbolSize: isShown ? 13 : dotSize(board.current().runs.length),
        itemStyle: isShown ? { color, borderColor: palette.page, borderWidth: 2, ...dotStyle(color, group, palette) } : undefined,
        label: run === best ? { show: true } : undefined,
      };
    };
    return {
      type: "line",
      name: String(of),
      data: runs.filter((run) => axes.place(run) !== null).map(point),
      symbol: shapeOf(group).symbol,
      showAllSymbol: true,
      connectNulls: false,
      itemStyle: dotStyle(color, group, palette),
      lineStyle: { color, width: board.isStudy(of) ? 0 : isFocus ? 1.75 : 1, opacity: isFocus ? 1 : 0.45 },
      label: { show: false, position: "bottom", distance: 7, color: palette.ink2, fontSize: 12, formatter: () => "best" },
      emphasis: { scale: 1.3 },
      z: isFocus ? 4 : 3,
    };
  };

  /** Marks of one size; those too near to the one before are not seen, only pointed at. */
  const marks = (name, size, pathOf, data, more) => ({
    type: "custom",
    name,
    data,
    clip: false,
    renderItem: (params, api) => {
      const [x, y] = api.coord([api.value(0), api.value(1)]);
      const { x: left, width } = params.coordSys;
      if (x < left - 1 || x > left + width + 1) return null; // zoomed away
      const isApart = !(x - params.context.last < 1.6 * size);
      if (isApart) params.context.last = x;
      // Drawn around 0 and moved: ECharts makes a path anew only if its outline is another.
      const shape = { pathData: pathOf(params.dataIndex), x: -size / 2, y: -size / 2, width: size, height: size };
      return { type: "path", x, y, shape, invisible: !isApart, style: { fill: api.visual("color") } };
    },
    ...more,
  });

  /** A cross at the foot where a run has no such figure. */
  const crosses = (runs, figure, palette) => marks("missing", 7, () => CROSS, runs
    .filter((run) => board.value(figure.name, run) === null && axes.place(run) !== null)
    .map((run) => ({ run, value: [axes.place(run), 0] })), { yAxisIndex: 1, itemStyle: { color: palette.ink3 } });

  /** A triangle at the edge where a run lies off the scale: above, or below. */
  const beyond = (series, figure, limits, palette, focus) => {
    const scale = axes.scale(figure.kind);
    const off = [...series].flatMap(([of, its]) => its.flatMap((run) => {
      const value = board.value(figure.name, run);
      if (value === null || axes.place(run) === null) return [];
      const y = value * scale;
      if (y >= limits.min && y <= limits.max) return [];
      return [{
        run,
        value: [axes.place(run), y > limits.max ? limits.max : limits.min],
        itemStyle: { color: of === focus ? palette.accent : palette.ink3 },
      }];
    }));
    return marks("beyond", 8, (at) => (off[at].value[1] === limits.max ? UP : DOWN), off, { z: 5 });
  };

  const build = (_, palette, { width, figure: element }) => {
    const figure = words.figures.get(MAIN);
    const { runs, series } = board.current();
    const shown = board.shown();
    const focus = shown === null ? null : data.runs.series[shown];
    const context = { palette, focus };
    const scale = axes.scale(figure.kind);
    const valuesOf = (some) => some.map((run) => board.value(figure.name, run)).filter((value) => value !== null).map((value) => value * scale);
    // A change in the chosen series must be seen: jobs with other step times may lie outside. Variants show what is like them.
    const own = focus === null ? [] : valuesOf(series.get(focus));
    const isLike = (value) => value <= 2 * Math.max(...own);
    const values = own.length ? [...own, ...(board.isStudy(focus) ? valuesOf(runs).filter(isLike) : [])] : valuesOf(runs);
    const limits = axes.limits(values, 5);
    const grid = { left: 54, right: 20, top: 28, bottom: axes.isNamed(runs, width - 74) && !board.isByTime() ? 54 : 30 };
    const room = width - grid.left - grid.right;
    const x = board.isByTime() ? axes.inTime(palette) : axes.inOrder(palette, runs, room);
    const isOutside = (its) => { const all = valuesOf(its); return all.length > 0 && all.every((value) => value < limits.min || value > limits.max); };
    const inside = [...series].filter(([, its]) => !isOutside(its));
    tellOutside(series.size - inside.length);
    const lines = inside.map(([of, its]) => line(its, figure, { ...context, of }));
    nsyspipe.pointer.follow(element);
    return {
      ...nsyspipe.frame(palette),
      useUTC: true,
      grid,
      graphic: axes.zigzag(palette, limits, grid),
      xAxis: x,
      yAxis: [axes.y(palette, limits), { type: "value", min: -0.04, max: 1, show: false }],
      dataZoom: [{ ...nsyspipe.insideZoom(), ...nsyspipe.pointer.range() }],
      title: values.length ? undefined : nothing(palette, runs),
      tooltip: {
        ...nsyspipe.frame(palette).tooltip,
        trigger: "item",
        triggerOn: "none",
        formatter: ({ data: point }) => tooltip(point.run),
      },
      series: nsyspipe.pointer.remember(element, [...lines, beyond(series, figure, limits, palette, focus), crosses(runs, figure, palette)]),
    };
  };

  const tellOutside = (n) => {
    document.getElementById("outside").textContent = n ? `${n} other series ${n === 1 ? "is" : "are"} outside of this scale (triangles). Select a series in the list to see it.` : "";
  };

  const nothing = (palette, runs) => ({
    text: runs.length ? "not recorded in these runs" : "no run in view",
    left: "center", top: "middle",
    textStyle: { color: palette.ink3, fontSize: 13, fontWeight: 400 },
  });

  board.onChange(() => {
    for (const figure of document.querySelectorAll("figure[data-chart='trend']")) nsyspipe.lifecycle.redraw(figure);
  });
  nsyspipe.builders.trend = build;

  return { shapeOf };
})();
