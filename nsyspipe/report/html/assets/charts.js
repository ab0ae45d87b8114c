/**
 * Life of the charts: made when they come near the screen, resized with it, repainted when colours change, all made
 * before printing. A builder turns data, colours and width into an ECharts option:
 *
 *   nsyspipe.builders["step-bars"] = (data, palette, {width, figure}) => option   // or null: nothing to draw
 */
nsyspipe.lifecycle = (() => {
  const figures = new Map();

  const build = (figure) => {
    const { area, chart } = figures.get(figure);
    const data = nsyspipe.data(figure.dataset.source);
    const width = area.clientWidth;
    const option = nsyspipe.builders[figure.dataset.chart](data, nsyspipe.palette(), { width, figure });
    if (option === null) return null;
    const zoomed = chart && figure.hasAttribute("data-zoom") ? nsyspipe.zoom.rangeOf(chart) : null;
    const made = chart ?? echarts.init(area, null, { renderer: "canvas" });
    // A builder may have changed the height, as the timeline does.
    if (made.getWidth() !== area.clientWidth || made.getHeight() !== area.clientHeight) made.resize();
    made.setOption(option, { notMerge: true });
    if (zoomed) nsyspipe.zoom.show(made, ...zoomed);
    return made;
  };

  const draw = (figure) => {
    const state = figures.get(figure);
    if (state.chart || state.isEmpty) return;
    state.chart = build(figure);
    if (!state.chart) {
      state.isEmpty = true;
      state.area.classList.add("is-empty");
      state.area.textContent = "nothing to draw";
      return;
    }
    nsyspipe.charts.set(figure.id, state.chart);
    if (figure.hasAttribute("data-zoom")) nsyspipe.zoom.wire(figure, state.area, () => state.chart);
  };

  const redraw = (figure) => {
    if (figures.get(figure)?.chart) build(figure);
  };

  const drawAll = () => [...figures.keys()].forEach(draw);
  const redrawAll = () => [...figures.keys()].forEach(redraw);

  /** Draw what is on the screen now, the rest when it comes near. */
  const start = () => {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      figures.set(figure, { area: figure.querySelector(".chart-area"), chart: null, isEmpty: false });
    }
    const near = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        draw(target);
      }
    }, { rootMargin: "600px 0px" });
    let width = window.innerWidth;
    let waiting = 0;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      window.cancelAnimationFrame(waiting);
      waiting = window.requestAnimationFrame(redrawAll);
    });
    for (const figure of figures.keys()) {
      const isOnScreen = figure.getBoundingClientRect().top < window.innerHeight;
      if (isOnScreen) draw(figure);
      else near.observe(figure);
    }
  };

  return { start, draw, drawAll, redraw, redrawAll };
})();
