/**
 * The state of the dashboard: its filters, the runs in view, and the selected run. A run is its place in the arrays of the
 * data, which are in order of capture.
 */
nsyspipe.board = (() => {
  const STEP_TIME = "step_time_ns";
  const data = nsyspipe.data("dashboard");
  const nRuns = data.runs.id.length;
  const codesByFacet = new Map(data.facets.map(({ name, codes }) => [name, codes]));
  const filters = { text: "", chosen: new Map(data.facets.map(({ name }) => [name, new Set()])), newest: null };
  const listeners = [];
  let selected = null;
  let view = null;

  const matches = (run) => {
    for (const [name, codes] of filters.chosen) {
      if (codes.size && !codes.has(codesByFacet.get(name)[run])) return false;
    }
    const names = `${data.runs.label[run]}\n${data.runs.id[run]}`.toLowerCase();
    return names.includes(filters.text);
  };

  /** The runs in view, also by series. */
  const current = () => {
    if (view) return view;
    let runs = [...Array(nRuns).keys()].filter(matches);
    if (filters.newest) runs = runs.slice(-filters.newest);
    const series = new Map();
    for (const run of runs) {
      const of = data.runs.series[run];
      if (!series.has(of)) series.set(of, []);
      series.get(of).push(run);
    }
    view = { runs, series };
    return view;
  };

  const changed = () => {
    view = null;
    for (const listener of listeners) listener();
  };

  const value = (name, run) => data.values[name][run];
  const stepTime = (run) => value(STEP_TIME, run);

  /** The selected run if it is in view, else the latest. None if no run is in view. */
  const shown = () => {
    const { runs } = current();
    return runs.includes(selected) ? selected : runs.at(-1) ?? null;
  };

  const fellows = (run) => current().series.get(data.runs.series[run]);

  /** The run that a run is compared with: the one before in its series, of the same label and with a step time. */
  const before = (run) => {
    const isSameJob = (other) => other < run && data.runs.label[other] === data.runs.label[run];
    return fellows(run).findLast((other) => isSameJob(other) && stepTime(other) !== null) ?? null;
  };

  /** The runs of a series that can be ranked: their work is known, and they have enough steps. */
  const ranked = (of) => {
    if (!data.series[of].is_known) return [];
    return current().series.get(of).filter((run) => stepTime(run) !== null && data.runs.n_steps[run] >= data.min_steps);
  };

  /** The first run of a series with the shortest step time. None if fewer than two can be ranked. */
  const best = (of) => {
    const runs = ranked(of);
    if (runs.length < 2) return null;
    return runs.reduce((least, run) => (stepTime(run) < stepTime(least) ? run : least));
  };

  return {
    data, filters, current, shown, fellows, before, ranked, best, value, stepTime,
    isLatest: () => shown() === current().runs.at(-1),
    onChange: (listener) => listeners.push(listener),
    filter: (change) => { change(filters); changed(); },
    select: (run) => { selected = run; changed(); },
  };
})();
