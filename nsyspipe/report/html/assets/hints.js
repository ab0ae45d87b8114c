/**
 * What a word means, next to it: shown for the pointer, for the keyboard's focus and for a touch, hidden by Escape.
 * Without scripts the browser shows the same text, which is the word's title.
 */
nsyspipe.hints = (() => {
  const MARGIN = 8;
  let tip = null;
  let owner = null;

  const hide = () => {
    if (!owner) return;
    owner.title = tip.textContent;
    owner.removeAttribute("aria-describedby");
    owner = null;
    tip.hidden = true;
  };

  const made = () => {
    const box = nsyspipe.element("div", "hint");
    box.id = "hint";
    box.setAttribute("role", "tooltip");
    document.getElementById("main").append(box);
    return box;
  };

  /** Below the word, or above where the window ends, and never beyond its sides. */
  const place = (word) => {
    const { left, top, bottom } = word.getBoundingClientRect();
    const most = document.documentElement.clientWidth - tip.offsetWidth - MARGIN;
    const isBelow = bottom + tip.offsetHeight + MARGIN < window.innerHeight;
    tip.style.left = `${Math.max(MARGIN, Math.min(left, most))}px`;
    tip.style.top = `${isBelow ? bottom + 6 : Math.max(MARGIN, top - tip.offsetHeight - 6)}px`;
  };

  const show = (word) => {
    if (word === owner) return;
    hide();
    tip ??= made();
    tip.textContent = word.title;
    tip.hidden = false;
    word.removeAttribute("title"); // or the browser would show it a second time
    word.setAttribute("aria-describedby", tip.id);
    owner = word;
    place(word);
  };

  const wordOf = (target) => target.closest?.(".term");

  const start = () => {
    document.addEventListener("pointerover", ({ target }) => {
      const word = wordOf(target);
      if (word) show(word);
      else if (owner && !tip.contains(target) && document.activeElement !== owner) hide();
    });
    document.addEventListener("focusin", ({ target }) => {
      if (wordOf(target)) show(wordOf(target));
      else hide();
    });
    document.addEventListener("click", ({ target }) => (wordOf(target) ? show(wordOf(target)) : hide()));
    document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hide(); });
    document.addEventListener("focusout", hide);
    // The keyboard scrolls to a word that it reaches; only the pointer leaves a word behind.
    window.addEventListener("scroll", () => {
      if (owner && document.activeElement === owner) place(owner);
      else hide();
    }, { passive: true, capture: true });
    window.addEventListener("beforeprint", hide);
  };

  return { start };
})();
