/**
 * Colours for charts, taken from tokens.css: it is the one place where a colour has a meaning.
 */
nsyspipe.palette = (() => {
  const names = {
    page: "--page", surface: "--surface", raised: "--raised", line: "--line", lineStrong: "--line-strong",
    ink: "--ink", ink2: "--ink-2", ink3: "--ink-3", accent: "--accent", accentSoft: "--accent-soft", bad: "--bad",
    compute: "--c-compute", exposed: "--c-exposed", hidden: "--c-hidden", waiting: "--c-waiting",
    copies: "--c-copies", idle: "--c-idle", transfer: "--c-transfer", launch: "--c-launch",
    untold: "--c-untold", counted: "--c-counted",
    "line-1": "--l-1", "line-2": "--l-2", "line-3": "--l-3", "line-4": "--l-4", "line-5": "--l-5", "line-other": "--l-other",
    data: "--p-data", forward: "--p-forward", backward: "--p-backward", optimizer: "--p-optimizer",
  };
  /** light-dark() is only resolved where a real property uses it. */
  return () => {
    const probe = document.createElement("span");
    document.body.append(probe);
    const found = {};
    for (const [name, token] of Object.entries(names)) {
      probe.style.color = `var(${token})`;
      found[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return found;
  };
})();

/** Whether the page shows its dark colours now. */
nsyspipe.isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Black or white, whichever is read better on a colour of the palette. */
nsyspipe.inkOn = (color) => {
  const linear = color.match(/[\d.]+/g).slice(0, 3).map((one) => {
    const part = Number(one) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#12161c" : "#ffffff";
};

/** Parts of a step that are not 0 everywhere, as `PARTS`; `valuesOf` a part's name: ns, null where not recorded. */
nsyspipe.partsIn = (valuesOf) => {
  const found = nsyspipe.PARTS.filter(([name]) => valuesOf(name).some((ns) => ns !== 0));
  const hasComm = found.some(([name]) => name === "hidden" || name === "exposed");
  return found.map(([name, words]) => [name, name === "compute" && !hasComm ? "compute" : words]);
};

/** The parts of a step in the order in which they are stacked, with the words of the legend. */
nsyspipe.PARTS = [
  ["compute", "compute alone"],
  ["hidden", "compute during communication"],
  ["exposed", "exposed communication"],
  ["copies", "exposed copies"],
  ["idle", "idle"],
];
