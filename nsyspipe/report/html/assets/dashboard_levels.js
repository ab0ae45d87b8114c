/**
 * Since which run a series is where it is: stretches of runs that lie together.
 *
 * Least squares on the logarithm of step time (a change counts the same in a short step as in a long one), by optimal
 * partitioning: cost of a partition = sum of squared distances from the stretches' means + PENALTY * noise^2 * ln n per
 * stretch. Noise is 1.4826 * the median distance of neighbours / sqrt 2, at least LEAST_NOISE. A running median of three
 * comes first, so that one odd run makes no level; a level has at least two runs.
 */
nsyspipe.levels = (() => {
  const PENALTY = 3;
  const LEAST_NOISE = 0.01;
  const LEAST_RUNS = 4;
  const LEAST_CHANGE = 0.02;

  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    const half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };

  /** Median of each value and its neighbours; at the ends, of the first or last three. */
  const smoothed = (values) => values.map((_, at) => {
    const from = Math.min(Math.max(at - 1, 0), values.length - 3);
    return median(values.slice(from, from + 3));
  });

  const noiseOf = (values) => {
    const jumps = values.slice(1).map((value, at) => Math.abs(value - values[at]));
    return Math.max(LEAST_NOISE, (1.4826 * median(jumps)) / Math.SQRT2);
  };

  /** Starts of the stretches of the cheapest partition. */
  const partition = (values, price) => {
    const n = values.length;
    const sum = [0];
    const squares = [0];
    for (const value of values) {
      sum.push(sum.at(-1) + value);
      squares.push(squares.at(-1) + value * value);
    }
    const cost = (from, to) => squares[to] - squares[from] - (sum[to] - sum[from]) ** 2 / (to - from);
    const least = [0, ...Array(n).fill(Infinity)];
    const cameFrom = Array(n + 1).fill(0);
    for (let to = 2; to <= n; to += 1) {
      for (let from = 0; from <= to - 2; from += 1) {
        const total = least[from] + cost(from, to) + price;
        if (total < least[to]) [least[to], cameFrom[to]] = [total, from];
      }
    }
    const starts = [];
    for (let to = n; to > 0; to = cameFrom[to]) starts.unshift(cameFrom[to]);
    return starts;
  };

  /** Move each border to where the runs themselves change: an odd run beside it had moved it by one or two. */
  const sharpened = (levels, logs) => {
    levels.slice(1).forEach((level, before) => {
      const previous = levels[before];
      const [low, high] = [Math.log(previous.height), Math.log(level.height)];
      // No run counts for more than the change: an odd one lies anywhere.
      const distance = (from, to, at) => logs.slice(from, to).reduce((sum, log) => sum + Math.min(Math.abs(log - at), Math.abs(high - low)), 0);
      const cost = (border) => distance(previous.from, border, low) + distance(border, level.to, high);
      const borders = [0, -1, 1, -2, 2].map((shift) => level.from + shift)
        .filter((border) => border >= previous.from + 2 && border <= level.to - 2);
      const best = borders.reduce((least, border) => (cost(border) < cost(least) ? border : least), level.from);
      [previous.to, level.from] = [best, best];
    });
    return levels;
  };

  /** Join neighbours that hardly differ. */
  const merged = (levels, values) => {
    const kept = [];
    for (const level of levels) {
      const last = kept.at(-1);
      if (last && Math.abs(level.height / last.height - 1) < LEAST_CHANGE) {
        last.to = level.to;
        last.height = median(values.slice(last.from, last.to));
      } else kept.push(level);
    }
    return kept;
  };

  /**
   * @param {number[]} values positive, in order
   * @returns {{from: number, to: number, height: number}[]} half-open stretches that cover all values; none if too few
   */
  const find = (values) => {
    if (values.length < LEAST_RUNS || values.some((value) => value <= 0)) return [];
    const logs = smoothed(values.map(Math.log));
    const centre = logs[0]; // small numbers keep their digits when squared
    const starts = partition(logs.map((log) => log - centre), PENALTY * noiseOf(values.map(Math.log)) ** 2 * Math.log(values.length));
    const levels = starts.map((from, at) => {
      const to = starts[at + 1] ?? values.length;
      return { from, to, height: median(values.slice(from, to)) };
    });
    return sharpened(merged(levels, values), values.map(Math.log));
  };

  const { board } = nsyspipe;
  const known = new Map();
  board.onChange(() => known.clear());

  /** The levels of a series in view, as runs: those without a step time are passed over. A study has none. */
  const of = (series) => {
    if (!known.has(series)) {
      const runs = board.current().series.get(series).filter((run) => board.value("step_time_ns", run) !== null);
      const found = board.isStudy(series) ? [] : find(runs.map((run) => board.value("step_time_ns", run)));
      known.set(series, found.map(({ from, to, height }) => ({ runs: runs.slice(from, to), height })));
    }
    return known.get(series);
  };

  return { find, of };
})();
