/**
 * Zooming along x: buttons, keys, and the wheel. The wheel scrolls the page unless Ctrl is held or the chart was clicked,
 * so that nobody who reads on is caught by a chart. ECharts does the dragging (dataZoom of type inside).
 */
nsyspipe.insideZoom = (axis = 0) => ({
  type: "inside",
  xAxisIndex: axis,
  filterMode: "none",
  // Without the lock ECharts swallows every wheel event, and the page could not be scrolled over a chart.
  zoomLock: true,
  zoomOnMouseWheel: false,
  moveOnMouseMove: true,
  moveOnMouseWheel: false,
  preventDefaultMouseMove: false,
  minSpan: 0.01,
});

nsyspipe.zoom = (() => {
  const STEP = 1.6;
  const PAN = 0.15;
  const SMALLEST = 0.01;

  const rangeOf = (chart) => {
    const { start, end } = chart.getOption().dataZoom[0];
    return [start, end];
  };

  const show = (chart, start, end) => {
    const span = Math.min(100, Math.max(SMALLEST, end - start));
    const from = Math.min(Math.max(0, start), 100 - span);
    chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: from, end: from + span });
  };

  /** Zoom by a factor (above 1: closer) around a place between 0 (left) and 1 (right). */
  const by = (chart, factor, at = 0.5) => {
    const [start, end] = rangeOf(chart);
    const span = (end - start) / factor;
    show(chart, start + at * (end - start - span), start + at * (end - start - span) + span);
  };

  const pan = (chart, share) => {
    const [start, end] = rangeOf(chart);
    show(chart, start + share * (end - start), end + share * (end - start));
  };

  const KEYS = {
    "+": (chart) => by(chart, STEP),
    "=": (chart) => by(chart, STEP),
    "-": (chart) => by(chart, 1 / STEP),
    "0": (chart) => show(chart, 0, 100),
    ArrowLeft: (chart) => pan(chart, -PAN),
    ArrowRight: (chart) => pan(chart, PAN),
  };

  const onKey = (event, get) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(get());
  };

  const onWheel = (event, area, get) => {
    if (!event.ctrlKey && document.activeElement !== area) return;
    event.preventDefault();
    const chart = get();
    const box = area.getBoundingClientRect();
    const grid = chart.getModel().getComponent("grid").coordinateSystem.getRect();
    const at = (event.clientX - box.left - grid.x) / grid.width;
    by(chart, STEP ** (-event.deltaY / 120), Math.min(1, Math.max(0, at)));
  };

  /** Wire a figure up; `get` returns its chart, which may be made anew when colours change. */
  const wire = (figure, area, get) => {
    const acts = { in: KEYS["+"], out: KEYS["-"], reset: KEYS["0"] };
    for (const button of figure.querySelectorAll("[data-zoom-by]")) {
      button.addEventListener("click", () => acts[button.dataset.zoomBy](get()));
    }
    area.addEventListener("keydown", (event) => onKey(event, get));
    // ECharts keeps wheel events from what lies around its canvas, so they are taken before they reach it.
    area.addEventListener("wheel", (event) => onWheel(event, area, get), { passive: false, capture: true });
    area.addEventListener("mousedown", () => area.focus({ preventScroll: true }));
  };

  return { wire, by, pan, show, rangeOf };
})();
