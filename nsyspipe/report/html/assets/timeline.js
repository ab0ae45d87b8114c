/**
 * The timeline of one step: all ranks on one clock, from the first rank's start.
 */
nsyspipe.builders.timeline = (() => {
  const WORDS = { phase: "phase", compute: "compute", comm: "communication", memory: "copies" };

  /**
   * What a bar is, to the last ns. Start, end and length are those of the bar as drawn; where operations were joined
   * their gaps are in it, but not in the times that it is busy, waiting and exposed.
   */
  const tip = (data, rows, palette, { seriesName, value }) => {
    const [start, end, , , at, index] = value;
    const { rank } = rows[at];
    const bars = rank.lanes[seriesName];
    // Columns that would say nothing were left out: every bar is one operation, busy all the time.
    const [busy, n, seq] = [bars.busy?.[index] ?? end - start, bars.n?.[index] ?? 1, bars.seq?.[index] ?? -1];
    const name = data.names[bars.name[index]];
    const found = [
      nsyspipe.timeRow("start", start),
      nsyspipe.timeRow("end", end),
      nsyspipe.timeRow("length", end - start),
    ];
    if (busy !== end - start) found.push(nsyspipe.timeRow("of it busy", busy));
    if (seriesName === "phase") found.push({ label: "operations", value: String(n) });
    if (seriesName === "comm") found.push(...communication(bars, index, seq, palette));
    const more = n > 1 && seriesName !== "phase" ? `, ${n} operations, mostly` : "";
    return nsyspipe.tooltip({ title: `rank ${rank.rank}: ${WORDS[seriesName]}${more}`, name, rows: found });
  };

  /** Of a communication bar: its place, how long its operations wait and run beside no compute; nothing unknown. */
  const communication = (bars, index, seq, palette) => {
    const rows = [];
    if (seq >= 0) rows.push({ label: "place in the step", value: String(seq) });
    if (bars.wait) rows.push(nsyspipe.timeRow("waiting", bars.wait[index], palette.waiting));
    if (bars.exposed) rows.push(nsyspipe.timeRow("exposed", bars.exposed[index], palette.exposed));
    return rows;
  };

  return (data, palette, { width, figure }) => {
    const { layout, leftOf, writeLabels, TOP, BOTTOM } = nsyspipe.timeline;
    const { rows, labels, height } = layout(data, figure.dataset.allRanks === "true");
    const area = figure.querySelector(".chart-area");
    area.style.height = `${height + TOP + BOTTOM}px`;
    queueMicrotask(() => writeLabels(area, labels, leftOf(width)));
    const frame = nsyspipe.frame(palette);
    return {
      ...frame,
      grid: { left: leftOf(width), right: 14, top: TOP, bottom: BOTTOM },
      tooltip: { ...frame.tooltip, trigger: "item", formatter: (hit) => tip(data, rows, palette, hit) },
      dataZoom: [nsyspipe.insideZoom()],
      xAxis: nsyspipe.valueAxis(palette, {
        min: 0,
        max: data.end,
        position: "bottom",
        axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true, showMinLabel: true, showMaxLabel: false, formatter: (ns) => `${nsyspipe.tick(ns / 1e6)} ms` },
      }),
      yAxis: { type: "value", min: 0, max: height, inverse: true, show: false },
      series: nsyspipe.timeline.series(data, rows, palette),
    };
  };
})();

/** The button that shows the ranks that were left out at first. */
(() => {
  const button = document.getElementById("all-ranks");
  const figure = document.getElementById("chart-timeline");
  if (!button || !figure) return;
  const more = button.textContent;
  button.addEventListener("click", () => {
    const isAll = figure.dataset.allRanks !== "true";
    figure.dataset.allRanks = String(isAll);
    button.setAttribute("aria-pressed", String(isAll));
    button.textContent = isAll ? "Show fewer ranks" : more;
    nsyspipe.lifecycle.redraw(figure);
  });
})();
