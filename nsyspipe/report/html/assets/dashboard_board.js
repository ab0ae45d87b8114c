/**
 * The dashboard's state: which runs are in view, which one is chosen, and what is known of its series. Runs are numbers:
 * places in the arrays of the data, which are in order of capture.
 */
nsyspipe.board = (() => {
  const data = nsyspipe.data("dashboard");
  const nRuns = data.runs.id.length;
  const facetCodes = new Map(data.facets.map(({ name, codes }) => [name, codes]));
  const filters = { text: "", chosen: new Map(data.facets.map(({ name }) => [name, new Set()])), newest: null };
  const listeners = [];
  const STUDY_RUNS = 12;
  let chosen = null;
  let byTime = false;
  let view = null;

  const matches = (run) => {
    for (const [name, codes] of filters.chosen) {
      if (codes.size && !codes.has(facetCodes.get(name)[run])) return false;
    }
    if (!filters.text) return true;
    const words = `${data.runs.label[run]}\n${data.runs.id[run]}`.toLowerCase();
    return words.includes(filters.text);
  };

  /** Runs in view by time of capture, and by series. */
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
    const place = new Map(runs.map((run, at) => [run, at]));
    view = { runs, series, place };
    return view;
  };

  const changed = () => {
    view = null;
    for (const listener of listeners) listener();
  };

  const value = (name, run) => data.values[name][run];

  /** The run that figures are shown of: the one chosen, else the latest; none if nothing is in view. */
  const shown = () => {
    const { runs, place } = current();
    return chosen !== null && place.has(chosen) ? chosen : runs.at(-1) ?? null;
  };

  const fellows = (run) => current().series.get(data.runs.series[run]);

  /** Whether the runs of a series are few and each of another label: variants, of which none follows from another. */
  const isStudy = (of) => data.series[of].label === null && current().series.get(of).length < STUDY_RUNS;

  /** The earlier run of the series that has a step time: what a run is compared with; in a study only one of its label. */
  const before = (run) => {
    const isVariant = isStudy(data.runs.series[run]);
    const earlier = fellows(run).filter((one) => one < run && value("step_time_ns", one) !== null
      && (!isVariant || data.runs.label[one] === data.runs.label[run]));
    return earlier.at(-1) ?? null;
  };

  /** The runs of a series that have steps enough to be ranked; none where it is not known whether they do the same work. */
  const ranked = (of) => current().series.get(of)
    .filter((run) => data.series[of].is_known && value("step_time_ns", run) !== null && data.runs.n_steps[run] >= data.min_steps);

  /** The one of these with the shortest step, but one of them; the first of equal ones. None where there is no choice. */
  const best = (of, but = null) => {
    const all = ranked(of);
    if (all.length < 2) return null;
    const known = all.filter((run) => run !== but);
    return known.reduce((least, run) => (value("step_time_ns", run) < value("step_time_ns", least) ? run : least));
  };

  return {
    data, filters, current, shown, fellows, isStudy, before, ranked, best, value,
    isLatest: () => shown() === current().runs.at(-1),
    isByTime: () => byTime,
    onChange: (listener) => listeners.push(listener),
    filter: (change) => { change(filters); changed(); },
    choose: (run) => { chosen = run; changed(); },
    setByTime: (wanted) => { byTime = wanted; changed(); },
  };
})();
