/**
 * The filter bar: a text field, buttons per property, and how many of the newest. The address keeps the filters.
 */
(() => {
  const { board, words } = nsyspipe;
  const nRuns = board.data.runs.id.length;
  const FEW = 30;
  const form = document.getElementById("filter-form");
  const find = document.getElementById("find");
  const newest = document.getElementById("newest");
  const clear = document.getElementById("clear");

  const press = (button, isPressed) => button.setAttribute("aria-pressed", String(isPressed));

  /** How many runs are in view, and how many of them the chart lacks. */
  const countText = (runs) => {
    const count = runs.length === nRuns ? "" : `${runs.length} of `;
    const nUntimed = runs.filter((run) => board.data.runs.time[run] === null).length;
    const untimed = nUntimed ? `, ${nUntimed} without a capture time not in the chart` : "";
    return `${count}${words.plural(nRuns, "run")}${untimed}`;
  };

  /** Make the controls say what the filters are. */
  const reflect = () => {
    const { filters } = board;
    for (const group of form.querySelectorAll("[data-facet]")) {
      const chosen = filters.chosen.get(group.dataset.facet);
      for (const chip of group.querySelectorAll(".chip")) press(chip, chosen.has(Number(chip.dataset.code)));
    }
    for (const chip of newest.querySelectorAll(".chip")) press(chip, filters.newest === Number(chip.dataset.newest));
    document.getElementById("n-shown").textContent = countText(board.current().runs);
    clear.hidden = !(filters.text || filters.newest || [...filters.chosen.values()].some((codes) => codes.size));
  };

  const toggle = (set, code) => { if (!set.delete(code)) set.add(code); };

  form.addEventListener("submit", (event) => event.preventDefault());
  find.addEventListener("input", () => board.filter((filters) => { filters.text = find.value.trim().toLowerCase(); }));
  for (const group of form.querySelectorAll("[data-facet]")) {
    group.addEventListener("click", ({ target }) => {
      if (target.matches(".more")) {
        const isOpen = group.toggleAttribute("data-open");
        target.setAttribute("aria-expanded", String(isOpen));
        target.textContent = isOpen ? "fewer" : `${group.querySelectorAll(".extra").length} more`;
      }
      if (!target.matches(".chip")) return;
      board.filter((filters) => toggle(filters.chosen.get(group.dataset.facet), Number(target.dataset.code)));
    });
  }
  newest.hidden = nRuns <= FEW;
  newest.addEventListener("click", ({ target }) => {
    if (!target.matches(".chip")) return;
    const wanted = Number(target.dataset.newest);
    board.filter((filters) => { filters.newest = filters.newest === wanted ? null : wanted; });
  });
  clear.addEventListener("click", () => {
    find.value = "";
    board.filter((filters) => {
      filters.text = "";
      filters.newest = null;
      for (const codes of filters.chosen.values()) codes.clear();
    });
    find.focus();
  });

  /** What the address says, as the filters are named in it; the words of chips, since codes change as a store grows. */
  const chips = (name) => [...form.querySelectorAll(`[data-facet="${name}"] .chip`)];
  let isReading = false;
  const read = () => {
    const { link } = nsyspipe;
    if (!window.location.hash.includes("=")) return;
    isReading = true;
    find.value = link.get("find") ?? "";
    board.filter((filters) => {
      filters.text = find.value.trim().toLowerCase();
      filters.newest = Number(link.get("newest")) || null;
      for (const [name, codes] of filters.chosen) {
        codes.clear();
        const wanted = link.all(name);
        for (const chip of chips(name)) if (wanted.includes(chip.title)) codes.add(Number(chip.dataset.code));
      }
    });
    const run = board.data.runs.id.indexOf(link.get("run"));
    if (run >= 0) board.select(run);
    isReading = false;
  };
  const write = () => {
    if (isReading) return;
    const { filters } = board;
    const facets = [...filters.chosen].map(([name, codes]) => [
      name, chips(name).filter((chip) => codes.has(Number(chip.dataset.code))).map((chip) => chip.title),
    ]);
    nsyspipe.link.set({
      ...Object.fromEntries(facets), find: find.value.trim(), newest: filters.newest === null ? null : String(filters.newest),
      run: board.isLatest() ? null : board.data.runs.id[board.shown()] ?? null,
    });
  };

  // On a phone the filters would be the whole first screen.
  if (window.innerWidth < 720) document.getElementById("filters").open = false;
  board.onChange(reflect);
  read();
  board.onChange(write);
  window.addEventListener("hashchange", read);
  reflect();
})();
