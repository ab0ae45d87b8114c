/**
 * What the address names behind "#", as `step=14&rank=2`: whoever draws it is told, and rows of tables whose first column
 * has that heading are marked; `row=step time` marks what is called so in the first two columns of any. Sections have no "=".
 */
nsyspipe.link = (() => {
  const listeners = new Map();
  const named = () => new URLSearchParams(window.location.hash.includes("=") ? window.location.hash.slice(1) : "");

  const mark = (params) => {
    document.querySelectorAll(".is-linked").forEach((row) => row.classList.remove("is-linked"));
    const any = params.get("row");
    for (const table of document.querySelectorAll("main table")) {
      const wanted = params.get(table.tHead?.rows[0].cells[0].textContent.trim());
      for (const row of (wanted ?? any) === null ? [] : table.tBodies[0].rows) {
        const [first, second] = [...row.cells].map((cell) => cell.textContent.trim());
        row.classList.toggle("is-linked", wanted === null ? [first, second].includes(any) : first === wanted);
      }
    }
  };

  /** Whether a step can be chosen in the timeline, which holds few. */
  const isInTimeline = (step) => {
    const { step: first, others = [] } = nsyspipe.data("timeline");
    return step === null || [first, ...others.map((one) => one.step)].map(String).includes(step);
  };

  /** What a plain address names is opened, too. */
  const open = () => {
    const target = document.getElementById(window.location.hash.slice(1));
    const closed = target?.querySelector(":scope > details:not([open])") ?? target?.closest("details:not([open])");
    if (!closed) return;
    closed.open = true;
    target.scrollIntoView({ behavior: "instant" });
  };

  const follow = () => {
    const params = named();
    mark(params);
    if (!params.size) open();
    if (!params.size) return;
    for (const [name, acts] of listeners) if (params.has(name)) acts.forEach((act) => act(params.get(name)));
    const isDrawn = document.getElementById("chart-timeline") && (params.has("step") || params.has("rank"));
    const rows = [...document.querySelectorAll(".is-linked")];
    const place = isDrawn ? document.getElementById(isInTimeline(params.get("step")) ? "timeline" : "steps") : rows.find((row) => !row.closest("details:not([open])")) ?? rows[0];
    const closed = place?.closest("details:not([open])");
    if (closed) closed.open = true;
    place?.scrollIntoView({ behavior: "instant", block: isDrawn ? "start" : "center" });
  };

  return {
    on: (name, act) => listeners.set(name, [...(listeners.get(name) ?? []), act]),
    get: (name) => named().get(name),
    all: (name) => named().getAll(name),
    /** Name something in the address, or several things of a kind, without a step of the browser's history; null for nothing. */
    set: (changes) => {
      const params = named();
      for (const [name, values] of Object.entries(changes)) {
        params.delete(name);
        [values ?? []].flat().filter((value) => value !== "").forEach((value) => params.append(name, value));
      }
      if (!params.size && !window.location.hash.includes("=")) return;
      window.history.replaceState(null, "", `#${params}`);
      mark(params);
    },
    start: () => { window.addEventListener("hashchange", follow); follow(); },
  };
})();

/**
 * What surrounds the content: the theme button, the current section in the bar, and getting ready for paper.
 * Nothing is stored: a file opened from a ticket leaves no trace in the browser.
 */
nsyspipe.furniture = (() => {
  const root = document.documentElement;

  const theme = () => {
    const button = document.querySelector("button.theme");
    const label = () => button.setAttribute("aria-pressed", String(nsyspipe.isDark()));
    button.hidden = false;
    label();
    button.addEventListener("click", () => {
      root.dataset.theme = nsyspipe.isDark() ? "light" : "dark";
      label();
      nsyspipe.lifecycle.redrawAll();
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      label();
      nsyspipe.lifecycle.redrawAll();
    });
  };

  /** The section whose heading was passed last is the current one. */
  const currentSection = () => {
    const links = new Map([...document.querySelectorAll(".sections a")].map((a) => [a.hash.slice(1), a]));
    const sections = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
    let waiting = false;
    const mark = () => {
      waiting = false;
      const isEnd = window.innerHeight + window.scrollY >= root.scrollHeight - 2;
      const passed = sections.filter((one) => one.getBoundingClientRect().top < 140);
      const current = isEnd && window.scrollY > 0 ? sections.at(-1) : passed.at(-1);
      for (const [id, link] of links) {
        if (current?.id === id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
      const link = current && links.get(current.id);
      const bar = link?.closest("nav");
      if (bar) bar.scrollLeft = link.offsetLeft - bar.offsetLeft - (bar.clientWidth - link.offsetWidth) / 2;
    };
    window.addEventListener("scroll", () => {
      if (!waiting) window.requestAnimationFrame(mark);
      waiting = true;
    }, { passive: true });
    mark();
  };

  /** On paper everything is drawn, in light colours and as wide as the sheet; `data-print` details are open. */
  const printing = () => {
    let before = null;
    const prepare = () => {
      if (before) return;
      const closed = [...document.querySelectorAll("details[data-print]:not([open])")];
      before = { theme: root.dataset.theme, closed };
      root.dataset.theme = "light";
      root.dataset.printing = "";
      closed.forEach((one) => { one.open = true; });
      nsyspipe.lifecycle.drawAll();
      nsyspipe.lifecycle.redrawAll();
      const zoomed = [...nsyspipe.charts].filter(([id]) => document.getElementById(id).hasAttribute("data-zoom"));
      before.zoomed = zoomed.map(([, chart]) => [chart, nsyspipe.zoom.rangeOf(chart)]);
      for (const [chart] of before.zoomed) nsyspipe.zoom.show(chart, 0, 100);
    };
    const restore = () => {
      if (!before) return;
      if (before.theme) root.dataset.theme = before.theme;
      else delete root.dataset.theme;
      delete root.dataset.printing;
      before.closed.forEach((one) => { one.open = false; });
      for (const [chart, range] of before.zoomed) nsyspipe.zoom.show(chart, ...range);
      before = null;
      nsyspipe.lifecycle.redrawAll();
    };
    window.addEventListener("beforeprint", prepare);
    window.addEventListener("afterprint", restore);
    window.matchMedia("print").addEventListener("change", ({ matches }) => (matches ? prepare() : restore()));
  };

  return { start: () => { theme(); currentSection(); printing(); } };
})();
