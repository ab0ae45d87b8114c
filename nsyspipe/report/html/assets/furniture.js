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
    };
    const restore = () => {
      if (!before) return;
      if (before.theme) root.dataset.theme = before.theme;
      else delete root.dataset.theme;
      delete root.dataset.printing;
      before.closed.forEach((one) => { one.open = false; });
      before = null;
      nsyspipe.lifecycle.redrawAll();
    };
    window.addEventListener("beforeprint", prepare);
    window.addEventListener("afterprint", restore);
    window.matchMedia("print").addEventListener("change", ({ matches }) => (matches ? prepare() : restore()));
  };

  return { start: () => { theme(); currentSection(); printing(); } };
})();
