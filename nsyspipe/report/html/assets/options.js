/**
 * What all charts have in common: type, thin axes, no animation, tooltips in the page's own style.
 */
nsyspipe.FONT = getComputedStyle(document.documentElement).getPropertyValue("--sans").trim() || "sans-serif";

/**
 * @param {Object<string, string>} palette from nsyspipe.palette()
 * @returns {object} options that a builder spreads into its own
 */
nsyspipe.frame = (palette) => ({
  animation: false,
  backgroundColor: "transparent",
  textStyle: { fontFamily: nsyspipe.FONT, fontSize: 12, color: palette.ink2 },
  tooltip: {
    confine: true,
    transitionDuration: 0,
    hideDelay: 60,
    backgroundColor: palette.raised,
    borderColor: palette.lineStrong,
    borderWidth: 1,
    padding: [8, 10],
    textStyle: { color: palette.ink },
    extraCssText: "box-shadow:0 4px 16px rgb(0 0 0 / .16);border-radius:8px;",
  },
});

/** Behind words through which no line of the axes is to run: as high as leaves the line well apart from them. */
nsyspipe.plate = (palette) => ({ backgroundColor: palette.page, padding: [5, 3] });

/** A value axis with few, quiet lines. */
nsyspipe.valueAxis = (palette, more = {}) => ({
  type: "value",
  nameTextStyle: { color: palette.ink3, fontSize: 12 },
  axisLine: { show: false },
  axisTick: { show: false },
  axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true },
  splitLine: { lineStyle: { color: palette.line } },
  ...more,
});

/** How many ticks have room, so that none has to be left out and all stay evenly apart: three at least. */
nsyspipe.ticks = (room) => ({ splitNumber: Math.max(3, Math.min(8, Math.floor(room / 90))) });

/** What a rank is called in words: by number, and by process and GPU where its process has several ranks. */
nsyspipe.rankName = (data, rank) => `rank ${data.rank_names?.[rank] ?? rank}`;

/** An axis of categories: ranks, steps, collectives. */
nsyspipe.categoryAxis = (palette, names, more = {}) => ({
  type: "category",
  data: names,
  nameTextStyle: { color: palette.ink3, fontSize: 12 },
  axisLine: { lineStyle: { color: palette.lineStrong } },
  axisTick: { show: false },
  axisLabel: { color: palette.ink2, fontSize: 12 }, // by itself evenly apart; hideOverlap would leave out more, unevenly
  splitLine: { show: false },
  ...more,
});

/** The pointer that tooltips of a whole column or row use. */
nsyspipe.shadow = (palette) => ({
  type: "shadow",
  shadowStyle: { color: palette.ink, opacity: 0.05 },
  label: { show: false },
});
