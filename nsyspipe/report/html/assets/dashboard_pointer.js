/**
 * Pointing at the dashboard's chart: the run nearest to the pointer is shown, a click selects it.
 */
nsyspipe.pointer = (() => {
  const { board } = nsyspipe;
  // Further than that, the pointer was dragged.
  const MOST_CLICK = 4;
  const drawn = new WeakMap();
  const followed = new WeakSet();
  let range = [0, 100];

  const chartOf = (element) => nsyspipe.charts.get(element.id);

  /** Keep where a chart's runs are; returns the series as they came. */
  const remember = (element, series) => {
    drawn.set(element, series.flatMap(({ data: points, yAxisIndex = 0 }, seriesIndex) => points
      .map(({ run, value }, dataIndex) => ({ run, value, yAxisIndex, seriesIndex, dataIndex }))
      .filter(({ run, value }) => run !== undefined && value[1] !== null)));
    return series;
  };

  /** The run nearest along x, of equal ones nearest along y; none in an empty chart. */
  const nearest = (element, { clientX, clientY }) => {
    const box = element.querySelector(".chart-area").getBoundingClientRect();
    let found = null;
    let least = Infinity;
    for (const point of drawn.get(element)) {
      const [x, y] = chartOf(element).convertToPixel({ xAxisIndex: 0, yAxisIndex: point.yAxisIndex }, point.value);
      const distance = 100 * Math.abs(x - clientX + box.left) + Math.abs(y - clientY + box.top);
      if (distance < least) [least, found] = [distance, point];
    }
    return found;
  };

  const showNearest = (element, area) => {
    let shown = null;
    const act = (type) => chartOf(element).dispatchAction({ type, ...shown });
    const show = (point) => {
      if (shown) act("downplay");
      shown = point && { seriesIndex: point.seriesIndex, dataIndex: point.dataIndex };
      if (shown) act("highlight");
      act(shown ? "showTip" : "hideTip");
    };
    area.addEventListener("mousemove", (event) => show(event.buttons ? null : nearest(element, event)));
    area.addEventListener("mouseleave", () => show(null));
  };

  const selectByClick = (element, area) => {
    let pressed = null;
    area.addEventListener("mousedown", ({ clientX }) => { pressed = clientX; });
    area.addEventListener("click", (event) => {
      const point = pressed !== null && Math.abs(event.clientX - pressed) <= MOST_CLICK ? nearest(element, event) : null;
      if (point) board.select(point.run);
    });
  };

  /** Keep the zoom, which the chart is drawn with anew. Called when the chart is there. */
  const keepZoom = (element) => chartOf(element).on("datazoom", () => {
    range = nsyspipe.zoom.rangeOf(chartOf(element));
  });

  /** Wire a chart up; asked again, do nothing. */
  const follow = (element) => {
    if (followed.has(element)) return;
    followed.add(element);
    const area = element.querySelector(".chart-area");
    showNearest(element, area);
    selectByClick(element, area);
    // The chart is made from what the builder, our caller, returns.
    window.requestAnimationFrame(() => keepZoom(element));
  };

  return { remember, follow, range: () => ({ start: range[0], end: range[1] }) };
})();
