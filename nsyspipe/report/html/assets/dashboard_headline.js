/**
 * The first screen in words: the chosen run against the one before it, and since when its series is where it is.
 */
nsyspipe.headline = (() => {
  const { board, words, element } = nsyspipe;
  const { data } = board;
  const MAIN = "step_time_ns";
  const at = (id) => document.getElementById(id);

  /** Text with some parts in bold: texts, and [text] for bold ones. Names from traces are only ever text. */
  const fill = (made, parts) => {
    made.replaceChildren(...parts.map((part) => (Array.isArray(part) ? element("b", "", part[0]) : part)));
    return made;
  };
  const sentence = (...parts) => fill(element("p"), parts);

  const changeMark = (found) => {
    const mark = element("span", `change ${found.tone ?? "same"}`);
    if (found.difference !== 0) {
      const arrow = element("span", "arrow", found.difference < 0 ? "\u25bc" : "\u25b2");
      arrow.setAttribute("aria-hidden", "true");
      mark.append(arrow, " ");
    }
    mark.append(found.text);
    return mark;
  };

  const subject = (run) => {
    const { label, id, n_steps: steps, page, time } = data.runs;
    const parts = [
      element("strong", "", `${board.isLatest() ? "Latest run" : "Chosen run"}: ${label[run]}`),
      element("span", "", words.group(run)),
      element("span", "", time[run] === null ? words.when(run) : `${words.when(run)} UTC`),
      element("span", "", `over ${words.plural(steps[run], "step")}`),
      element("span", "id", id[run]),
    ];
    if (page[run] !== null) {
      const link = element("a", "", "page of this run");
      link.href = page[run];
      parts.push(element("span"));
      parts.at(-1).append(link);
    }
    at("subject").replaceChildren(...parts);
  };

  const title = (run) => {
    const own = board.value(MAIN, run);
    if (own === null) return `Step time not recorded`;
    const text = `Step time ${nsyspipe.ms(own)}`;
    const found = words.against(MAIN, run, board.before(run));
    if (found) return found.difference === 0 ? `${text}, the same as the run before` : `${text}, ${found.text} than the run before`;
    return `${text}${rank(run)}`;
  };

  /** Among variants: how a run stands to the best of them. */
  const rank = (run) => {
    const of = data.runs.series[run];
    const best = board.best(of);
    const ranked = board.ranked(of);
    if (best === null || !board.isStudy(of) || !ranked.includes(run)) return "";
    const all = `the shortest of ${ranked.length} on ${words.group(run)}`;
    if (best === run) return `, ${all}`;
    const { difference, text } = words.against(MAIN, run, best);
    return `, ${text} ${difference === 0 ? "as" : "than"} ${all}`;
  };

  /** Since which run the series is where it is. */
  const level = (run) => {
    const of = data.runs.series[run];
    const known = board.fellows(run).filter((one) => board.value(MAIN, one) !== null);
    const found = nsyspipe.levels.of(of);
    if (!found.length) return [];
    const last = found.at(-1);
    const height = nsyspipe.ms(last.height);
    const parts = [];
    if (found.length === 1) parts.push(["No lasting change"], ` over ${words.plural(known.length, "run")}: they lie around ${height}.`);
    else {
      const previous = found.at(-2);
      parts.push(
        [`${last.height < previous.height ? "Shorter" : "Longer"} since ${words.name(last.runs[0])}`],
        `: ${words.plural(last.runs.length, "run")} around ${height}, ${words.change(last.height / previous.height - 1)} than the ${nsyspipe.ms(previous.height)} before`,
        found.length > 2 ? `, ${words.change(last.height / found[0].height - 1)} than at first (${words.name(found[0].runs[0])}).` : ".",
      );
    }
    const off = board.value(MAIN, known.at(-1)) / last.height - 1;
    if (Math.abs(off) >= 0.05) parts.push(` The latest takes ${words.change(off)}: one run is no level yet.`);
    return parts;
  };

  /** What the run before is, or why there is none. */
  const compared = (run) => {
    const { label, series } = data.runs;
    const before = board.before(run);
    if (before !== null) {
      const end = label[before] === label[run] ? "." : "; another label, so it may be another job.";
      return sentence("The run before: ", [label[before]], `, ${words.when(before)}, ${words.figure(MAIN, before)}${end}`);
    }
    const fellows = board.fellows(run);
    const where = `${words.isOneLabel(run) ? "of its label " : ""}on ${words.group(run)} in view`;
    if (fellows.length === 1) return sentence(`The only run ${where}: nothing to compare it with.`);
    if (!board.isStudy(series[run])) return sentence(`The first run ${where}: nothing to compare it with.`);
    const isEach = new Set(fellows.map((one) => label[one])).size === fellows.length;
    const few = fellows.length - board.ranked(series[run]).length;
    const isRanked = few === 0 ? "they are ranked" : few === fellows.length ? `variants, of which none is called the shortest (fewer than ${data.min_steps} steps each)` : `they are ranked, but ${few} of fewer than ${data.min_steps} steps`;
    return sentence(`${isEach ? "Each" : "Most"} of the ${fellows.length} runs ${where} ${isEach ? "has a label of its own" : "have labels of their own"}: ${isRanked}, not taken for one job that changes.`);
  };

  /** The run of the series with the shortest step; of that itself, the next. Whether it is noise compare tells. */
  const best = (run) => {
    const of = data.runs.series[run];
    const found = board.best(of);
    if (found === null) return null;
    const isBest = found === run;
    const other = isBest ? board.best(of, run) : found;
    const against = words.against(MAIN, run, other);
    const end = against ? `; this run takes ${against.text}.` : ".";
    return sentence(isBest ? "The next in the series: " : "The shortest of the series: ", [words.name(other)], `, ${words.figure(MAIN, other)}${end}`);
  };

  /** The command that decides; it takes saved runs by these paths. */
  const caution = (run) => {
    const before = board.before(run);
    if (before === null && board.best(data.runs.series[run]) === null) return null;
    const made = element("p", "caution", "No verdict: a difference may be noise. To decide: ");
    const runs = before === null ? "" : ` STORE:${data.runs.id[before]} STORE:${data.runs.id[run]}`;
    made.append(element("code", "", runs ? `nsyspipe diff${runs}` : "nsyspipe compare STORE"));
    return made;
  };

  const panels = (run) => {
    const before = run === null ? null : board.before(run);
    for (const panel of document.querySelectorAll(".panel-value")) {
      const { figure } = panel.dataset;
      const isMissing = run === null || board.value(figure, run) === null;
      const parts = [element("span", isMissing ? "missing" : "figure", run === null ? "no run in view" : words.figure(figure, run))];
      const found = run === null ? null : words.against(figure, run, before);
      if (found) parts.push(changeMark(found));
      panel.replaceChildren(...parts);
    }
  };

  const buttons = (run) => {
    const { runs, place } = board.current();
    const here = run === null ? -1 : place.get(run);
    at("older").disabled = here <= 0;
    at("newer").disabled = here < 0 || here === runs.length - 1;
    at("latest").disabled = at("newer").disabled;
  };

  const show = () => {
    const run = board.shown();
    if (run === null) {
      at("subject").replaceChildren();
      at("headline").textContent = "No run in view";
      at("level").replaceChildren();
      at("story").replaceChildren(sentence("Clear the filters to see all runs."));
    } else {
      subject(run);
      at("headline").textContent = title(run);
      fill(at("level"), level(run));
      at("story").replaceChildren(...[compared(run), best(run), caution(run)].filter(Boolean));
    }
    panels(run);
    buttons(run);
  };

  const step = (by) => () => {
    const { runs, place } = board.current();
    board.choose(runs[place.get(board.shown()) + by]);
  };
  at("older").addEventListener("click", step(-1));
  at("newer").addEventListener("click", step(1));
  at("latest").addEventListener("click", () => board.choose(null));
  board.onChange(show);
  show();

  return { changeMark };
})();
