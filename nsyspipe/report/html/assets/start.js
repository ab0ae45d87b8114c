/** Everything is defined: run the page, and say when what the first screen shows is drawn. */
nsyspipe.furniture.start();
nsyspipe.hints.start();
nsyspipe.lifecycle.start();
nsyspipe.link.start();
window.requestAnimationFrame(() => {
  document.documentElement.dataset.ready = "true";
});
