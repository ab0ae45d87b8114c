/**
 * The first screen in words: the selected run, compared with the run before and with the shortest of its series.
 */
nsyspipe.headline = (() => {
  const { board, words, element } = nsyspipe;
  const { data } = board;
  const at = (id) => document.getElementById(id);

  /** A paragraph. Names are only ever text. */
  const sentence = (...parts) => {
    const made = element("p");
    made.append(...parts);
    return made;
  };

  const changeMark = ({ ratio, text }) => {
    const mark = element("span", "change");
    if (ratio !== 0) {
      const arrow = element("span", "arrow", ratio < 0 ? "\u25bc" : "\u25b2");
      arrow.setAttribute("aria-hidden", "true");
      mark.append(arrow, " ");
    }
    mark.append(text);
    return mark;
  };

  const subject = (run) => {
    const { label, id, n_steps: nSteps, page } = data.runs;
    const parts = [
      element("strong", "", `${board.isLatest() ? "Latest run" : "Selected run"}: ${label[run]}`),
      element("span", "", words.group(run)),
      element("span", "", words.when(run)),
      element("span", "", `${words.plural(nSteps[run], "step")} used`),
      element("span", "id", id[run]),
    ];
    if (page[run] !== null) {
      const link = element("a", "", "HTML report of this run");
      link.href = page[run];
      const item = element("span");
      item.append(link);
      parts.push(item);
    }
    return parts;
  };

  const title = (run) => {
    if (board.stepTime(run) === null) return "Step time not recorded";
    const change = words.change(run, board.before(run));
    const text = `Step time ${words.time(run)}`;
    if (change === null) return `${text}${rank(run)}`;
    return change.ratio === 0 ? `${text}, the same as the run before` : `${text}, ${change.text} than the run before`;
  };

  /** How a run without a run before compares with the shortest of its series. */
  const rank = (run) => {
    const of = data.runs.series[run];
    const best = board.best(of);
    const ranked = board.ranked(of);
    if (best === null || !ranked.includes(run)) return "";
    const shortest = `the shortest of ${ranked.length} on ${words.group(run)}`;
    if (best === run) return `, ${shortest}`;
    const { ratio, text } = words.change(run, best);
    return `, ${text} ${ratio === 0 ? "as" : "than"} ${shortest}`;
  };

  /** The run before. If there is none, why the run is not compared or ranked. */
  const compared = (run) => {
    const before = board.before(run);
    if (before !== null) return sentence(`Run before: ${words.when(before)}, ${words.time(before)}.`);
    const nFellows = board.fellows(run).length;
    if (nFellows === 1) return sentence("No other run in view can be compared with this run.");
    const nUnranked = nFellows - board.ranked(data.runs.series[run]).length;
    if (nUnranked === 0) return null;
    return sentence(`${nUnranked} of ${nFellows} runs are not ranked, because they have fewer than ${data.min_steps} steps or their work is not known.`);
  };

  /** The run of the series with the shortest step time. */
  const shortest = (run) => {
    const best = board.best(data.runs.series[run]);
    if (best === null) return null;
    if (best === run) return sentence("This run is the shortest of its series.");
    const change = words.change(run, best);
    const parts = [element("b", "", data.runs.label[best]), `, ${words.when(best)}, ${words.time(best)}.`];
    if (change === null) return sentence("Shortest of the series: ", ...parts);
    const takes = change.ratio === 0 ? "as long" : change.text;
    return sentence("Shortest of the series: ", ...parts, ` The selected run takes ${takes}.`);
  };

  /** The command that decides whether a difference is noise. */
  const caution = (run) => {
    const before = board.before(run);
    const hasOther = before !== null || board.best(data.runs.series[run]) !== null;
    if (board.stepTime(run) === null || !hasOther) return null;
    const { id } = data.runs;
    const command = before === null ? "nsyspipe compare STORE" : `nsyspipe diff STORE:${id[before]} STORE:${id[run]}`;
    const made = sentence("A difference may be noise. To find out: ", element("code", "", command));
    made.className = "caution";
    return made;
  };

  const show = () => {
    const run = board.shown();
    if (run === null) {
      at("subject").replaceChildren();
      at("headline").textContent = "No run in view";
      at("story").replaceChildren(sentence("Clear the filters to see all runs."));
      return;
    }
    const story = [compared(run), shortest(run), caution(run)];
    at("subject").replaceChildren(...subject(run));
    at("headline").textContent = title(run);
    at("story").replaceChildren(...story.filter(Boolean));
  };

  board.onChange(show);
  show();

  return { changeMark };
})();
