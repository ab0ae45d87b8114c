/**
 * What the dashboard says of a run and of the one before it.
 */
nsyspipe.words = (() => {
  const { data, value } = nsyspipe.board;
  const figures = new Map(data.figures.map((figure) => [figure.name, figure]));
  const DAY_MS = 86_400_000;

  const write = {
    ns: nsyspipe.ms,
    "1/s": (rate) => `${nsyspipe.significant(rate)} steps/s`,
    ratio: (ratio) => nsyspipe.percent(ratio),
  };

  /** A figure of a run, or why there is none. */
  const figure = (name, run) => {
    const found = value(name, run);
    return found === null ? data.missing[name][run] : write[figures.get(name).kind](found);
  };

  /** A relative difference: `11 % less`. */
  const change = (ratio) => {
    const size = Math.abs(ratio);
    if (size === 0) return "the same";
    return `${nsyspipe.percent(size, size < 0.095 ? 1 : 0)} ${ratio < 0 ? "less" : "more"}`;
  };

  /**
   * A metric of a run against that of another: relative for times and rates, in percentage points for shares. Two runs
   * are not a verdict, so a difference is neither better nor worse.
   * @returns {{text: string, difference: number}|null} null where one of them is not recorded
   */
  const against = (name, run, other) => {
    const [ours, theirs] = [value(name, run), other === null ? null : value(name, other)];
    if (ours === null || theirs === null) return null;
    if (figures.get(name).kind === "ratio") {
      const points = ours - theirs;
      const size = Math.abs(100 * points).toFixed(1);
      const text = size === "0.0" ? "the same" : `${size} pp ${points < 0 ? "less" : "more"}`;
      return { text, difference: points };
    }
    return theirs === 0 ? null : { text: change(ours / theirs - 1), difference: ours / theirs - 1 };
  };

  const group = (run) => data.groups[data.series[data.runs.series[run]].group];
  const isOneLabel = (run) => data.series[data.runs.series[run]].label !== null;

  /** A run by what tells it from its fellows: its label, or within one label its time. */
  const name = (run) => {
    const { captured, label, id, time } = data.runs;
    if (!isOneLabel(run)) return label[run];
    return time[run] === null ? id[run] : captured[run];
  };

  /** Which letters of a time tell the runs in view apart: the time of day, the day, or the day and the year. */
  const momentPart = () => {
    const times = nsyspipe.board.current().runs.map((run) => data.runs.time[run]).filter((time) => time !== null);
    const span = times.at(-1) - times[0]; // in order of capture
    if (span < DAY_MS) return [-5];
    return [0, span < 300 * DAY_MS ? -11 : -6];
  };
  let part = null;
  nsyspipe.board.onChange(() => { part = null; });

  /** When a run was captured, in short. */
  const moment = (run) => {
    part ??= momentPart();
    return data.runs.time[run] === null ? "?" : data.runs.captured[run].slice(...part);
  };

  const when = (run) => (data.runs.time[run] === null ? "time of capture not recorded" : data.runs.captured[run]);

  /** What to change first, and the most that it could bring. */
  const finding = (run) => [data.runs.finding[run], data.runs.most[run]].filter(Boolean).join(", ");

  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

  return { figure, change, against, group, isOneLabel, name, moment, when, finding, plural, figures };
})();
