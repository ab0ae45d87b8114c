/**
 * Axes of the dashboard's charts: runs along x, in order or by time; round limits along y.
 */
nsyspipe.axes = (() => {
  const { board, words } = nsyspipe;
  const SCALES = { ns: 1e-6, "1/s": 1, ratio: 100 };
  const LETTER = 6.4;
  const MOST_LINES = 3;

  /** Break a name where its parts meet, into lines of a width; what does not fit ends in an ellipsis. */
  const wrapped = (name, width) => {
    const most = Math.max(4, Math.floor(width / LETTER));
    const lines = [""];
    for (const part of name.match(/[^-_. /]+[-_. /]*|[-_. /]+/g) ?? []) {
      for (let rest = part; rest; rest = rest.slice(most)) {
        const piece = rest.slice(0, most);
        if (lines.at(-1).length + piece.trimEnd().length > most) lines.push("");
        lines[lines.length - 1] += piece;
      }
    }
    if (lines.length <= MOST_LINES) return lines.join("\n");
    return `${lines.slice(0, MOST_LINES).join("\n").slice(0, -1)}\u2026`;
  };

  const isNamed = (runs, width) => {
    const labels = new Set(runs.map((run) => board.data.runs.label[run]));
    return labels.size * 2 > runs.length && width / runs.length > 60;
  };

  /** Places of the runs that are named by their time: the first of each, from the latest back, as far as there is room. */
  const datedOf = (runs, room) => {
    const dated = new Set();
    const apart = runs.length ? LETTER * (words.moment(runs.at(-1)).length + 1) + 8 : 0;
    let next = Infinity;
    for (let at = runs.length - 1; at >= 0; at -= 1) {
      const isNew = at === 0 || words.moment(runs[at]) !== words.moment(runs[at - 1]);
      if (!isNew || (next - at) * room < apart) continue;
      dated.add(at);
      next = at;
    }
    return dated;
  };

  const inOrder = (palette, runs, width) => {
    const room = width / Math.max(runs.length, 1);
    const named = isNamed(runs, width);
    let [span, dated] = [0, null];
    const isDated = (at) => {
      const { start, end } = nsyspipe.pointer.range();
      if (end - start !== span) [span, dated] = [end - start, datedOf(runs, (100 * room) / (end - start))];
      return dated.has(at);
    };
    return nsyspipe.categoryAxis(palette, runs.map(String), {
      axisLine: { onZero: false, lineStyle: { color: palette.lineStrong } },
      // Left of the first run of each time: up to the next all are of it.
      axisTick: { show: !named, length: 9, interval: isDated, lineStyle: { color: palette.lineStrong } },
      axisLabel: {
        color: palette.ink3, fontSize: named ? 11 : 12, hideOverlap: true, lineHeight: 14,
        interval: named ? 0 : isDated,
        formatter: (run) => (named ? wrapped(board.data.runs.label[run], room - 8) : words.moment(Number(run))),
      },
    });
  };

  const inTime = (palette) => nsyspipe.valueAxis(palette, {
    type: "time",
    axisLine: { show: true, onZero: false, lineStyle: { color: palette.lineStrong } },
    axisLabel: {
      color: palette.ink3, fontSize: 12, hideOverlap: true,
      formatter: { year: "{d} {MMM} {yyyy}", month: "{d} {MMM}", day: "{d} {MMM}" },
    },
    splitLine: { show: false },
  });

  const roundStep = (span) => {
    const power = 10 ** Math.floor(Math.log10(span));
    return [1, 2, 2.5, 5, 10].find((one) => one * power >= span) * power;
  };

  /** Round limits around step times: from 0 only when they differ much, else with room around them. */
  const limits = (values, nSteps) => {
    if (!values.length) return { min: 0, max: 1, interval: 1 };
    const low = Math.min(...values);
    const high = Math.max(...values);
    const fromZero = high > 2 * low;
    const room = Math.max(0.12 * (high - low), 0.03 * high);
    const from = fromZero ? Math.min(0, low) : low - room;
    const to = high + (fromZero ? 0.1 * high || 1 : room);
    const interval = roundStep((to - from) / nSteps);
    const max = Math.ceil(to / interval) * interval;
    return {
      min: Math.floor(from / interval) * interval, interval,
      max,
    };
  };

  const y = (palette, found) =>
    nsyspipe.valueAxis(palette, {
      ...found,
      axisLabel: {
        color: palette.ink3, fontSize: 12, showMaxLabel: true,
        formatter: (value) => nsyspipe.tick(value),
      },
    });

  /** A zigzag at the foot of an axis that does not begin at 0. */
  const zigzag = (palette, { min }, { left, bottom }) => (min > 0 ? [{
    type: "polyline", silent: true, left: left - 4, bottom: bottom + 3,
    shape: { points: [[4, 0], [0, 3], [8, 6], [0, 9], [4, 12]] }, style: { fill: "none", stroke: palette.ink3, lineWidth: 1.25 },
  }] : []);

  /** Place of a run along x: its category, or its time; none for a run of unknown time. */
  const place = (run) => (board.isByTime() ? board.data.runs.time[run] : board.current().place.get(run));

  return { inOrder, inTime, y, zigzag, place, limits, wrapped, isNamed, scale: (kind) => SCALES[kind] };
})();
