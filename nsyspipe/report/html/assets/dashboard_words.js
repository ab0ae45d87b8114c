/**
 * What the dashboard says of a run.
 */
nsyspipe.words = (() => {
  const { data, stepTime, value } = nsyspipe.board;
  const kinds = new Map(data.figures.map(({ name, kind }) => [name, kind]));

  const write = {
    ns: nsyspipe.ms,
    "1/s": (rate) => `${nsyspipe.significant(rate)} steps/s`,
    ratio: (ratio) => nsyspipe.percent(ratio),
  };

  /** A metric of a run, or why it is missing. */
  const figure = (name, run) => {
    const found = value(name, run);
    return found === null ? data.missing[name][run] : write[kinds.get(name)](found);
  };
  const time = (run) => figure("step_time_ns", run);

  const percentOf = (ratio) => {
    const size = Math.abs(ratio);
    if (size === 0) return "the same";
    const digits = size < 0.095 ? 1 : 0;
    return `${nsyspipe.percent(size, digits)} ${ratio < 0 ? "less" : "more"}`;
  };

  /**
   * The step time of a run compared with that of another. Two runs are not a verdict, so a difference is neither better nor
   * worse.
   * @returns {{text: string, ratio: number}|null} null if there is no other run, or no step time
   */
  const change = (run, other) => {
    if (other === null || stepTime(run) === null || !stepTime(other)) return null;
    const ratio = stepTime(run) / stepTime(other) - 1;
    return { ratio, text: percentOf(ratio) };
  };

  const group = (run) => data.groups[data.series[data.runs.series[run]].group];
  const when = (run) => (data.runs.time[run] === null ? "time of capture not recorded" : `${data.runs.captured[run]} UTC`);

  /** What to change first, and the upper bound of its saving. */
  const finding = (run) => [data.runs.finding[run], data.runs.most[run]].filter(Boolean).join(", ");

  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

  return { figure, time, change, group, when, finding, plural };
})();
