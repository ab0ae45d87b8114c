"use strict";
/**
 * Numbers in words, as `nsyspipe/units.py` writes them, for tooltips and axes.
 * Names from traces pass through here untouched: they are only ever set as textContent or drawn on a canvas.
 */
const nsyspipe = { builders: {}, charts: new Map() };
window.nsyspipe = nsyspipe;

/** What stands where nothing was recorded. */
nsyspipe.absent = "-";

/** So many significant digits and no exponent. */
nsyspipe.significant = (value, digits = 4) => {
  if (value === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(digits)))));
  return value.toFixed(Math.max(digits - 1 - magnitude, 0));
};

/** Nanoseconds as milliseconds: `12.34 ms`. What rounds to zero says so, and keeps its sign. */
nsyspipe.ms = (ns) => {
  if (ns === null || ns === undefined) return nsyspipe.absent;
  const ms = ns / 1e6;
  if (ms && Math.abs(ms) < 0.001) return ms > 0 ? "<0.001 ms" : ">-0.001 ms";
  return `${nsyspipe.significant(ms)} ms`;
};

/** A count of ns, or of another unit, to the last digit: `12 345 678 ns`, with thin spaces that do not break. */
nsyspipe.exact = (count, unit = "ns") => {
  if (count === null || count === undefined) return nsyspipe.absent;
  const [whole, fraction] = String(count).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return `${grouped}${fraction ? `.${fraction.slice(0, 3)}` : ""} ${unit}`;
};

/** A ratio as per cent; a small one that is not zero says so, and keeps its sign. */
nsyspipe.percent = (ratio, digits = 1) => {
  if (ratio === null || ratio === undefined) return nsyspipe.absent;
  const text = (100 * ratio).toFixed(digits);
  if (ratio && Number(text) === 0) return `${ratio > 0 ? "<" : ">-"}${(10 ** -digits).toFixed(digits)}%`;
  return `${text}%`;
};

/** Bytes in decimal units: `1.70 GB`. */
nsyspipe.bytes = (count) => {
  if (count === null || count === undefined) return nsyspipe.absent;
  const units = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const unit = units.find(([scale]) => count >= 0.999995 * scale);
  return unit ? `${(count / unit[0]).toFixed(2)} ${unit[1]}` : `${count.toFixed(0)} B`;
};

/** Bytes per second as GB/s of 1e9. */
nsyspipe.bandwidth = (perSecond) =>
  perSecond === null || perSecond === undefined ? nsyspipe.absent : `${nsyspipe.significant(perSecond / 1e9)} GB/s`;

/** A tick of an axis in ms: as many digits as the step between ticks needs. */
nsyspipe.tick = (ms) => String(Number(ms.toPrecision(6)));

/** The data that the page carries under a name; parsed once. */
nsyspipe.data = (() => {
  const parsed = new Map();
  return (name) => {
    if (!parsed.has(name)) parsed.set(name, JSON.parse(document.getElementById(`data-${name}`).textContent));
    return parsed.get(name);
  };
})();
