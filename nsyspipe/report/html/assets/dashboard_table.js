/**
 * The table of runs: those in view, sorted by any column, with each run's change against the one before it.
 */
(() => {
  const { board, words } = nsyspipe;
  const { data } = board;
  const MOST_ROWS = 100;
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = new Map([...body.rows].map((row) => [Number(row.dataset.run), row]));
  const all = document.getElementById("all-rows");
  let order = { by: "time", isDown: true };
  let isAll = false;

  const keys = {
    time: (run) => run,
    label: (run) => data.runs.label[run],
    group: (run) => words.group(run),
    n_steps: (run) => data.runs.n_steps[run],
    finding: (run) => data.runs.finding[run],
    change: (run) => words.against("step_time_ns", run, board.before(run))?.difference ?? null,
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

  const mark = (row, run, bests) => {
    row.classList.toggle("is-shown", run === board.shown());
    row.querySelector(".pick").setAttribute("aria-pressed", String(run === board.shown()));
    row.querySelector(".best").hidden = !bests.has(run);
    const found = words.against("step_time_ns", run, board.before(run));
    row.querySelector(".change").replaceChildren(found ? nsyspipe.headline.changeMark(found) : nsyspipe.absent);
  };

  const show = () => {
    const { runs, series } = board.current();
    const bests = new Set([...series.keys()].map((of) => board.best(of)));
    const wanted = sorted(runs);
    const shown = isAll ? wanted : wanted.slice(0, MOST_ROWS);
    for (const run of shown) mark(rows.get(run), run, bests);
    body.replaceChildren(...shown.map((run) => rows.get(run)));
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
    board.choose(Number(target.closest("tr").dataset.run));
  });
  all.addEventListener("click", () => { isAll = true; show(); });
  board.onChange(show);
  show();
})();
