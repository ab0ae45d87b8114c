/**
 * The first screen in words: the chosen run, compared with the run before it.
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
    const mark = element("span", "change");
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
      element("strong", "", `${board.isLatest() ? "Latest run" : "Selected run"}: ${label[run]}`),
      element("span", "", words.group(run)),
      element("span", "", time[run] === null ? words.when(run) : `${words.when(run)} UTC`),
      element("span", "", `${words.plural(steps[run], "step")} used`),
      element("span", "id", id[run]),
    ];
    if (page[run] !== null) {
      const link = element("a", "", "HTML report of this run");
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

  /** What the run before is, or why there is none. */
  const compared = (run) => {
    const { label, series } = data.runs;
    const before = board.before(run);
    if (before !== null) {
      const end = label[before] === label[run] ? "." : ". The label differs, so it may be another job.";
      return sentence("Run before: ", [label[before]], `, ${words.when(before)}, ${words.figure(MAIN, before)}${end}`);
    }
    const fellows = board.fellows(run);
    if (fellows.length === 1) return sentence("No other run in view can be compared with this run.");
    if (!board.isStudy(series[run])) return sentence("This is the first run of its series in view.");
    const few = fellows.length - board.ranked(series[run]).length;
    if (few === 0) return null;
    return sentence(`${few} of ${fellows.length} runs are not ranked, because they have fewer than ${data.min_steps} steps or their work is not known.`);
  };

  /** The run of the series with the shortest step. For that run itself, the next one. */
  const best = (run) => {
    const of = data.runs.series[run];
    const found = board.best(of);
    if (found === null) return null;
    const isBest = found === run;
    const other = isBest ? board.best(of, run) : found;
    const against = words.against(MAIN, run, other);
    const takes = against?.difference === 0 ? "as long" : against?.text;
    const end = against ? `. The selected run takes ${takes}.` : ".";
    return sentence(isBest ? "Second shortest of the series: " : "Shortest of the series: ", [words.name(other)], `, ${words.figure(MAIN, other)}${end}`);
  };

  /** The command that decides; it takes saved runs by these paths. */
  const caution = (run) => {
    const before = board.before(run);
    const isKnown = board.value(MAIN, run) !== null;
    if (!isKnown || (before === null && board.best(data.runs.series[run]) === null)) return null;
    const made = element("p", "caution", "A difference may be noise. To find out: ");
    const runs = before === null ? "" : ` STORE:${data.runs.id[before]} STORE:${data.runs.id[run]}`;
    made.append(element("code", "", runs ? `nsyspipe diff${runs}` : "nsyspipe compare STORE"));
    return made;
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
      at("story").replaceChildren(sentence("Clear the filters to see all runs."));
    } else {
      subject(run);
      at("headline").textContent = title(run);
      at("story").replaceChildren(...[compared(run), best(run), caution(run)].filter(Boolean));
    }
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
