// The chart over layers: a statistic of every entry in order of execution, on a canvas.

const MEASURES = {
  norm: { title: "norm", log: true, of: (unit, row, side) => statistic(unit, row, "norm", side) },
  magnitude: { title: "largest |x|", log: true, of: magnitude },
  max: { title: "max", log: false, of: (unit, row, side) => statistic(unit, row, "max", side) },
  min: { title: "min", log: false, of: (unit, row, side) => statistic(unit, row, "min", side) },
  mean: { title: "mean", log: false, of: (unit, row, side) => statistic(unit, row, "mean", side) },
};
const ERROR_MEASURE = {
  title: "relative error",
  log: true,
  single: true,
  of: (unit, row) => unit.columns.severity[row],
};

const SLOTS = {
  output: { title: "outputs", has: (slot) => slot === "output" },
  input: { title: "inputs", has: (slot) => slot.startsWith("input") },
  parameters: { title: "parameters", has: (slot) => slot === "parameters" },
  parameters_grad: { title: "parameter gradients", has: (slot) => slot === "parameters_grad" },
};

const chart = { unit: null, measure: "norm", slot: "output", stage: "forward", kind: "", points: [], hover: -1 };

function showChart(unit) {
  chart.unit = unit;
  const measures = measuresOf(unit);
  if (!(chart.measure in measures) || unit.columns.severity) chart.measure = Object.keys(measures)[0];
  drawChartBox();
}

function measuresOf(unit) {
  return unit.columns.severity ? { severity: ERROR_MEASURE, ...MEASURES } : MEASURES;
}

function drawChartBox() {
  const { unit } = chart;
  if (!unit.owners.length) return replaceAll("layers");
  const pick = (key, label, options) =>
    el(
      "select",
      {
        "aria-label": label,
        onchange: (event) => {
          chart[key] = event.target.value;
          collectPoints();
        },
      },
      options.map(([value, text]) => el("option", { value, selected: chart[key] === value }, text)),
    );
  const titled = (table) => Object.entries(table).map(([value, { title }]) => [value, title]);
  replaceAll(
    "layers",
    el(
      "h2",
      {},
      "Over the layers ",
      pick("measure", "Statistic", titled(measuresOf(unit))),
      pick("slot", "Of what", titled(SLOTS)),
      pick("stage", "Stage", [
        ["forward", "forward"],
        ["backward", "backward"],
        ["", "both"],
      ]),
      pick("kind", "Kind", [
        ["", "all calls"],
        ["module", "modules"],
        ["api", "functions"],
      ]),
      el("span", { id: "pointed", class: "dim" }),
    ),
    el("canvas", { id: "chart", onmousemove: hoverChart, onmouseleave: () => pointAt(-1), onclick: clickChart }),
  );
  collectPoints();
}

/** One point an entry: the largest of its tensors of the wanted slot. */
function collectPoints() {
  const { unit } = chart;
  const sides = chartSides();
  const slots = unit.columns.slot.texts.map(SLOTS[chart.slot].has);
  chart.points = inOrder(unit)
    .filter((node) => inChart(unit, node))
    .map((node) => pointOf(unit, node, sides, slots))
    .filter(Boolean);
  pointAt(-1);
  document.getElementById("pointed").textContent = counted(chart.points.length, "call") + ", in order of execution";
}

/** Recorded entries in the order of execution. */
function inOrder(unit) {
  const { order } = unit.nodes;
  if (!unit.inOrder) {
    const nodes = Array.from({ length: unit.size }, (_, node) => node).filter((node) => order[node] >= 0);
    unit.inOrder = nodes.sort((a, b) => order[a] - order[b]);
  }
  return unit.inOrder;
}

function inChart(unit, node) {
  const stage = chart.slot === "parameters_grad" ? "" : chart.stage;
  return isOfKind(unit, node, { kind: chart.kind, stage });
}

function pointOf(unit, node, sides, slots) {
  const values = sides.map((side) => largestOf(unit, node, side, slots));
  if (values.every((value) => value === null)) return null;
  return { node, values, tone: unit.nodeTones[node] };
}

function chartSides() {
  const measure = measuresOf(chart.unit)[chart.measure];
  return chart.unit.columns.b_absent && !measure.single ? ["", "b_"] : [""];
}

function largestOf(unit, node, side, slots) {
  const { of } = measuresOf(unit)[chart.measure];
  let found = null;
  for (let row = unit.firstRow[node]; row < unit.firstRow[node + 1]; row += 1) {
    if (!slots[unit.columns.slot.codes[row]]) continue;
    const value = of(unit, row, side);
    if (value === null) continue;
    if (found === null || Number.isNaN(value) || Math.abs(value) > Math.abs(found)) found = value;
    if (Number.isNaN(found)) break;
  }
  return found;
}

const PAD = { left: 58, right: 10, top: 12, bottom: 8 };

/** What turns values into heights: linear, or powers of ten. Zero and below have no logarithm and lie at the bottom. */
function scaleOf(values, log, height) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  const outside = (value) => (value === Infinity || Number.isNaN(value) ? PAD.top : height - PAD.bottom);
  if (!usable.length) return { y: outside, ticks: [] };
  const form = log ? Math.log10 : (value) => value;
  let low = Infinity,
    high = -Infinity;
  for (const value of usable) {
    low = Math.min(low, form(value));
    high = Math.max(high, form(value));
  }
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const room = height - PAD.top - PAD.bottom;
  const y = (value) => {
    if (!Number.isFinite(value) || (log && value <= 0)) return outside(value);
    return PAD.top + (1 - (form(value) - low) / (high - low)) * room;
  };
  return { y, ticks: ticksOf(low, high, log) };
}

/** Some three round values between two ends. */
function ticksOf(low, high, log) {
  if (log && high - low >= 1) {
    const step = Math.max(1, Math.round((high - low) / 3));
    const found = [];
    for (let power = Math.ceil(low); power <= high; power += step) found.push(10 ** power);
    return found;
  }
  return [low, (low + high) / 2, high].map((value) => (log ? 10 ** value : value));
}

/** The colours of the theme, for a canvas. */
function themeColours() {
  const style = getComputedStyle(document.documentElement);
  return (variable) => style.getPropertyValue(`--${variable}`).trim();
}

function drawChart() {
  const canvas = document.getElementById("chart");
  if (!canvas) return;
  const width = canvas.clientWidth,
    height = canvas.clientHeight,
    ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const { log } = measuresOf(chart.unit)[chart.measure];
  const scale = scaleOf(
    chart.points.flatMap((point) => point.values.filter((value) => value !== null)),
    log,
    height,
  );
  const colour = themeColours();
  drawGrid(pen, scale, width, colour);
  const place = (at) => PAD.left + ((at + 0.5) / chart.points.length) * (width - PAD.left - PAD.right);
  chartSides().forEach((side, which) => drawLine(pen, which, place, scale, colour(which ? "line-b" : "line-a")));
  drawMarks(pen, place, scale, colour);
}

function drawGrid(pen, scale, width, colour) {
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "right";
  for (const tick of scale.ticks) {
    const y = Math.round(scale.y(tick)) + 0.5;
    pen.strokeStyle = colour("grid");
    pen.beginPath();
    pen.moveTo(PAD.left, y);
    pen.lineTo(width - PAD.right, y);
    pen.stroke();
    pen.fillStyle = colour("dim");
    pen.fillText(shown(Number(tick.toPrecision(3))), PAD.left - 6, y + 4);
  }
}

/** The values of one side; where there are more points than pixels, the ends of what lies in one. */
function drawLine(pen, which, place, scale, stroke) {
  pen.strokeStyle = stroke;
  pen.lineWidth = 1.2;
  pen.beginPath();
  let column = -1,
    low = 0,
    high = 0,
    isFirst = true;
  const flush = () => {
    if (column < 0) return;
    if (isFirst) pen.moveTo(column, low);
    isFirst = false;
    pen.lineTo(column, low);
    pen.lineTo(column, high);
  };
  chart.points.forEach((point, at) => {
    const value = point.values[which];
    if (value === null) return;
    if (!Number.isFinite(value)) {
      flush();
      [column, isFirst] = [-1, true];
      return;
    }
    const x = chart.points.length > 1500 ? Math.round(place(at)) : place(at),
      y = scale.y(value);
    if (x !== column) {
      flush();
      [column, low, high] = [x, y, y];
    } else [low, high] = [Math.min(low, y), Math.max(high, y)];
  });
  flush();
  pen.stroke();
}

/** Dots where something is wrong, the chosen call, and the one pointed at. */
function drawMarks(pen, place, scale, colour) {
  chart.points.forEach((point, at) => {
    const isMarked = point.node === tree.chosen || at === chart.hover;
    if (point.tone < ODD && !isMarked && chart.points.length > 60) return;
    const value = point.values.find((each) => each !== null);
    pen.fillStyle = point.tone < ODD ? colour("line-a") : colour(`tone${point.tone}`);
    pen.beginPath();
    pen.arc(place(at), scale.y(value), isMarked ? 5 : point.tone < ODD ? 2 : 3, 0, 7);
    pen.fill();
    if (point.node === tree.chosen) markChosen(pen, place(at), colour);
  });
}

function markChosen(pen, x, colour) {
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(Math.round(x) + 0.5, 0);
  pen.lineTo(Math.round(x) + 0.5, 1e4);
  pen.stroke();
}

function pointUnder(event) {
  const { left, width } = event.target.getBoundingClientRect();
  const share = (event.clientX - left - PAD.left) / (width - PAD.left - PAD.right);
  const at = Math.floor(share * chart.points.length);
  return at >= 0 && at < chart.points.length ? nearestTrouble(at, width) : -1;
}

/** Of the points that share a pixel, one that is troubled. */
function nearestTrouble(at, width) {
  const reach = Math.ceil((2 * chart.points.length) / width);
  for (let off = 0; off <= reach; off += 1) {
    for (const near of [at + off, at - off]) if (chart.points[near]?.tone >= ODD) return near;
  }
  return at;
}

function hoverChart(event) {
  pointAt(pointUnder(event));
}

function pointAt(at) {
  chart.hover = at;
  if (at >= 0) {
    const { node, values } = chart.points[at];
    const label = document.getElementById("pointed");
    label.replaceChildren(name(keyOf(chart.unit, node)), ` ${values.map(shown).join(" against ")}`);
  }
  drawChart();
}

function clickChart(event) {
  const at = pointUnder(event);
  if (at >= 0) choose(chart.points[at].node);
}
