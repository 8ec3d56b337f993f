// Colours of the style sheet, canvases at the screen's resolution, and numbers as text.

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const workerColour = rank => colour(`w${rank % 8}`);

export const FONT = '11px Inter, system-ui, sans-serif';

// A canvas's context, cleared, in CSS pixels; null while it is not shown.
export function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return null;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

export function number(value, digits = 1) {
  return value === null || value === undefined ? '–' : value.toFixed(digits);
}

// Milliseconds with three digits at most: 0.42, 7.3, 61, 1200.
export function milliseconds(value) {
  if (value === null || value === undefined) return '–';
  return value.toFixed(value < 1 ? 2 : value < 20 ? 1 : 0);
}

export const percent = (value, digits = 0) => value === null ? '–' : `${(100 * value).toFixed(digits)}\u202f%`;

// A value of the workload's metric, and its name; null: the workload has none.
export const quantity = (value, metric) =>
  metric?.percent ? percent(value, 1) : value === null ? '–' : String(Number(value.toPrecision(4)));

export const title = metric => metric ? metric.name[0].toUpperCase() + metric.name.slice(1) : 'Metric';

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SVG = 'http://www.w3.org/2000/svg';

export function svg(parent, name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}
