/**
 * The timeline of one step: all ranks on one clock, from the first rank's start.
 */
nsyspipe.builders.timeline = (() => {
  const WORDS = { phase: "phase", launch: "launch queue", line: "Python, main thread", compute: "compute", untold: "compute or communication", comm: "communication", memory: "copies" };
  const linked = new WeakSet();
  const drawn = new WeakMap(); // of each figure the items of communication, and the collective of each

  /**
   * What a bar is, to the last ns. Start, end and length are those of the bar as drawn; where operations were joined
   * their gaps are in it, but not in the times that it is busy, waiting and exposed.
   */
  const tip = (data, rows, palette, { seriesName, value }) => {
    const [start, end, , , at, index] = value;
    const { rank } = rows[at];
    if (seriesName === "counted") return nsyspipe.timeline.sampled.tip(data, rows[at], { value });
    const bars = rank.lanes[seriesName];
    if (!bars) return ""; // a lane's ground, which has nothing to say
    // Columns that would say nothing were left out: every bar is one operation, busy all the time.
    const [busy, n, seq] = [bars.busy?.[index] ?? end - start, bars.n?.[index] ?? 1, bars.seq?.[index] ?? -1];
    const name = nsyspipe.timeline.nameOf(data, seriesName, bars, index);
    const found = [
      nsyspipe.timeRow("start", start),
      nsyspipe.timeRow("end", end),
      nsyspipe.timeRow("length", end - start),
    ];
    if (busy !== end - start) found.push(nsyspipe.timeRow("busy", busy));
    if (seriesName === "phase") found.push({ label: "operations", value: String(n) });
    if (seriesName === "line") found.unshift({ label: "function", value: bars.function[index] }, { label: "samples", value: String(bars.samples[index]) });
    if (seriesName === "comm") found.push(...communication(data, bars, index, seq, palette));
    return nsyspipe.tooltip({ title: `${nsyspipe.rankName(data, rank.rank)}: ${WORDS[seriesName]}`, name, rows: found });
  };

  /** Of a communication bar: which collective, how long its operations wait and run beside no compute; nothing unknown. */
  const communication = (data, bars, index, seq, palette) => {
    const rows = [];
    const [bytes, speed, last, counted, ratio] = data.collectives?.[seq] ?? [null, null, null];
    if (seq >= 0) rows.push({ label: "place in the step", value: String(seq) });
    if (bytes !== null) rows.push({ label: "message", value: nsyspipe.bytes(bytes) });
    if (speed !== null) rows.push({ label: "bus bandwidth", value: nsyspipe.bandwidth(speed) });
    rows.push(...nsyspipe.countedRow(counted, ratio));
    if (last !== null) rows.push({ label: "last to arrive", value: nsyspipe.rankName(data, last) });
    if (bars.wait) rows.push(nsyspipe.timeRow("wait time", bars.wait[index], palette.waiting));
    if (bars.exposed) rows.push(nsyspipe.timeRow("exposed", bars.exposed[index], palette.exposed));
    return rows;
  };

  /** Pointing at a collective outlines it on every rank. */
  const link = (figure) => {
    const chart = nsyspipe.charts.get(figure.id);
    if (!chart || linked.has(chart)) return;
    linked.add(chart);
    const alike = ({ data: [, , , , at, index] }) => {
      const { items, seqOf } = drawn.get(figure);
      const seq = seqOf(at, index);
      return items.flatMap((one, place) => (seq >= 0 && seqOf(one[4], one[5]) === seq ? [place] : []));
    };
    for (const [event, type] of [["mouseover", "highlight"], ["mouseout", "downplay"]]) {
      chart.on(event, { seriesName: "comm" }, (hit) => chart.dispatchAction({ type, seriesName: "comm", dataIndex: alike(hit) }));
    }
  };

  return (all, palette, { width, figure }) => {
    const data = all.others?.find(({ step }) => String(step) === figure.dataset.step) ?? all;
    const { layout, leftOf, writeLabels, TOP, BOTTOM } = nsyspipe.timeline;
    const { rows, labels, height } = layout(data, figure.dataset.allRanks === "true");
    const area = figure.querySelector(".chart-area");
    area.style.height = `${height + TOP + BOTTOM}px`;
    queueMicrotask(() => { writeLabels(area, labels, leftOf(width)); link(figure); });
    const series = nsyspipe.timeline.series(data, rows, palette);
    drawn.set(figure, {
      items: series.find(({ name }) => name === "comm").data,
      seqOf: (at, index) => rows[at].rank.lanes.comm.seq?.[index] ?? -1,
    });
    const frame = nsyspipe.frame(palette);
    return {
      ...frame,
      grid: { left: leftOf(width), right: 14, top: TOP, bottom: BOTTOM },
      tooltip: { ...frame.tooltip, trigger: "item", formatter: (hit) => tip(data, rows, palette, hit) },
      dataZoom: [nsyspipe.insideZoom()],
      xAxis: nsyspipe.valueAxis(palette, {
        ...nsyspipe.ticks(width - leftOf(width)),
        min: 0,
        max: data.end,
        position: "bottom",
        axisLabel: { color: palette.ink3, fontSize: 12, hideOverlap: true, showMinLabel: true, showMaxLabel: false, formatter: (ns, at) => (at || !ns ? `${nsyspipe.tick(ns / 1e6)} ms` : "") },
      }),
      yAxis: { type: "value", min: 0, max: height, inverse: true, show: false },
      series,
    };
  };
})();

/** Which step is drawn, and told of. */
(() => {
  const choice = document.getElementById("timeline-step");
  const figure = document.getElementById("chart-timeline");
  if (!choice) return;
  const show = (step) => {
    choice.value = step;
    figure.dataset.step = step;
    for (const one of document.querySelectorAll("[data-of-step]")) one.hidden = one.dataset.ofStep !== step;
    nsyspipe.lifecycle.draw(figure);
    nsyspipe.lifecycle.redraw(figure);
  };
  choice.addEventListener("change", () => {
    show(choice.value);
    nsyspipe.link.set({ step: choice.value });
  });
  nsyspipe.link.on("step", (step) => {
    if ([...choice.options].some(({ value }) => value === step)) show(step);
  });
})();

/** The button that shows the ranks that were left out at first. */
(() => {
  const button = document.getElementById("all-ranks");
  const figure = document.getElementById("chart-timeline");
  if (!button || !figure) return;
  const more = button.textContent;
  const toggle = () => {
    const isAll = figure.dataset.allRanks !== "true";
    figure.dataset.allRanks = String(isAll);
    button.setAttribute("aria-pressed", String(isAll));
    button.textContent = isAll ? "Show fewer ranks" : more;
    button.nextElementSibling.hidden = isAll;
    nsyspipe.lifecycle.redraw(figure);
  };
  button.addEventListener("click", toggle);
  nsyspipe.link.on("rank", (rank) => {
    const wanted = nsyspipe.data("timeline").ranks.find((one) => String(one.rank) === rank);
    if (wanted && !wanted.isFirst && figure.dataset.allRanks !== "true") toggle();
  });
})();
