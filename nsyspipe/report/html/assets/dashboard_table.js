/**
 * The table of runs: those in view, sorted by any column, with each run's change against the one before it. The page has
 * the rows of the newest; others are made of the data when they come into view.
 */
(() => {
  const { board, words } = nsyspipe;
  const { data } = board;
  const MAX_ROWS = 100;
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = new Map([...body.rows].map((row) => [Number(row.dataset.run), row]));
  const [blank] = body.rows;
  const all = document.getElementById("all-rows");
  let order = { by: "time", isDown: true };
  let isAll = false;

  const keys = {
    time: (run) => run,
    label: (run) => data.runs.label[run],
    group: (run) => words.group(run),
    n_steps: (run) => data.runs.n_steps[run],
    finding: words.finding,
    change: (run) => words.change(run, board.before(run))?.ratio ?? null,
  };
  const keyOf = (by) => keys[by] ?? ((run) => board.value(by, run));

  /** Compare two keys; what is not recorded stands last, whichever way round. */
  const compare = (a, b, isDown) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const found = a < b ? -1 : a > b ? 1 : 0;
    return isDown ? -found : found;
  };

  const sorted = (runs) => {
    const key = keyOf(order.by);
    const found = new Map(runs.map((run) => [run, key(run)]));
    return [...runs].sort((a, b) => compare(found.get(a), found.get(b), order.isDown) || b - a);
  };

  /** The row of a run that is older than those of the page. */
  const made = (run) => {
    const row = blank.cloneNode(true);
    const { captured, label, id, n_steps: nSteps, finding, most, hint, page } = data.runs;
    const fill = (selector, text) => { row.querySelector(selector).textContent = text; };
    row.dataset.run = run;
    fill(".when", captured[run]);
    fill(".pick", label[run]);
    row.querySelector(".pick").title = label[run];
    fill(".id", id[run]);
    fill(".group", words.group(run));
    fill(".n-steps", nSteps[run]);
    for (const { name } of data.figures) {
      const cell = row.querySelector(`[data-of="${name}"]`);
      cell.textContent = words.figure(name, run);
      cell.classList.toggle("missing", board.value(name, run) === null);
    }
    const found = row.querySelector(".finding-cell");
    const gain = document.createElement("span");
    gain.className = "most";
    gain.textContent = most[run];
    found.title = data.hints[hint[run]] ?? "";
    found.replaceChildren(finding[run], ...(most[run] === null ? [] : [gain]));
    const link = document.createElement("a");
    link.href = page[run] ?? "";
    link.ariaLabel = `HTML report of ${label[run]}, ${id[run]}`;
    link.textContent = "report";
    row.querySelector(".page")?.replaceChildren(...(page[run] === null ? [] : [link]));
    return row;
  };

  const rowOf = (run) => {
    if (!rows.has(run)) rows.set(run, made(run));
    return rows.get(run);
  };

  const mark = (row, run, isSelected, isBest) => {
    row.classList.toggle("is-shown", isSelected);
    row.querySelector(".pick").setAttribute("aria-pressed", String(isSelected));
    row.querySelector(".best").hidden = !isBest;
    const change = words.change(run, board.before(run));
    row.querySelector(".change").replaceChildren(change ? nsyspipe.headline.changeMark(change) : nsyspipe.absent);
  };

  const show = () => {
    const { runs, series } = board.current();
    const bests = new Set([...series.keys()].map(board.best));
    const selected = board.shown();
    const wanted = sorted(runs);
    const shown = isAll ? wanted : wanted.slice(0, MAX_ROWS);
    for (const run of shown) mark(rowOf(run), run, run === selected, bests.has(run));
    body.replaceChildren(...shown.map(rowOf));
    document.getElementById("n-rows").textContent = shown.length < wanted.length ? `${shown.length} of ${wanted.length} runs.` : "";
    all.hidden = shown.length === wanted.length;
    for (const button of table.querySelectorAll("[data-sort]")) {
      const heading = button.closest("th");
      if (button.dataset.sort === order.by) heading.setAttribute("aria-sort", order.isDown ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
  };

  for (const button of table.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const by = button.dataset.sort;
      // Newest first; of anything else the smallest, unless it is asked for again.
      order = { by, isDown: order.by === by ? !order.isDown : by === "time" };
      show();
    });
  }
  body.addEventListener("click", ({ target }) => {
    if (!target.matches(".pick")) return;
    board.select(Number(target.closest("tr").dataset.run));
  });
  all.addEventListener("click", () => { isAll = true; show(); });
  board.onChange(show);
  show();
})();
