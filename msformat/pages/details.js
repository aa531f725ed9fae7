// One entry whole: where it is, its tensors, its call stack.

/** Choose an entry: in the tree, in the chart, and below. */
function choose(node, { scroll = true } = {}) {
  if (node === undefined || node < 0) return;
  tree.chosen = node;
  reveal(node);
  drawChart();
  showDetails(tree.unit, node);
  if (scroll) document.getElementById("details").scrollIntoView({ block: "nearest" });
}

function showDetails(unit, node) {
  const key = keyOf(unit, node);
  const other = unit.nodes.other ? textAt(unit.nodes.other, node) : "";
  replaceAll(
    "details",
    el("h2", {}, toneDot(unit.nodeTones[node]), ...labelOf(key)),
    el(
      "p",
      { class: "key" },
      name(key),
      " ",
      copyButton(key),
      other && other !== key ? [el("br"), el("span", { class: "dim" }, "B: "), name(other)] : null,
    ),
    breadcrumb(unit, node),
    tensorTable(unit, node),
    scalarList(unit, node),
    stacksOf(unit, node),
  );
}

function copyButton(text) {
  return el(
    "button",
    { class: "quiet", title: "copy the name", onclick: () => navigator.clipboard?.writeText(text) },
    "copy",
  );
}

/** The calls around an entry, outermost first. */
function breadcrumb(unit, node) {
  const around = [];
  for (let at = unit.parents[node]; at >= 0; at = unit.parents[at]) around.unshift(at);
  if (!around.length) return null;
  const shownOnes = around.slice(-8);
  return el(
    "p",
    { class: "crumbs" },
    shownOnes.length < around.length ? "… › " : "",
    shownOnes.flatMap((at) => [
      el(
        "a",
        {
          href: "#",
          title: keyOf(unit, at),
          onclick: (event) => {
            event.preventDefault();
            choose(at);
          },
        },
        name(parsedKey(keyOf(unit, at)).path || keyOf(unit, at)),
      ),
      " › ",
    ]),
    name(parsedKey(keyOf(unit, node)).path),
  );
}

const STATISTICS = ["max", "min", "mean", "norm"];
const METRICS = {
  severity: "rel. error",
  cosine: "cosine",
  max_abs: "max |a−b|",
  max_rel: "max rel.",
  within_01: "< 0.1 %",
  within_05: "< 0.5 %",
};
const MOST_ROWS = 500;

function tensorTable(unit, node) {
  const first = unit.firstRow[node],
    last = unit.firstRow[node + 1];
  if (first === last) return el("p", { class: "note" }, emptyReason(unit, node));
  const isPair = Boolean(unit.columns.verdict);
  const heads = [
    "tensor",
    ...(isPair ? ["", "verdict", ...Object.values(METRICS)] : ["state"]),
    "type",
    "shape",
    ...STATISTICS,
  ];
  const rows = [];
  for (let row = first; row < Math.min(last, first + MOST_ROWS); row += 1) {
    rows.push(...(isPair ? pairRows(unit, row) : [singleRow(unit, row)]));
  }
  const more = last - first - MOST_ROWS;
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el("th", {}, head)),
        ),
      ),
      el("tbody", {}, rows),
    ),
    more > 0 ? el("p", { class: "note" }, `and ${counted(more, "more tensor")}`) : null,
    el(
      "p",
      { class: "dim" },
      "A tensor shows its course over steps",
      about.served ? " and the histogram of its values" : "",
      " when it is clicked.",
    ),
  );
}

function emptyReason(unit, node) {
  if (unit.nodes.order[node] < 0)
    return "The dump has this call in its tree only: no tensors were recorded, or a filter left them out.";
  return "This call has no tensors.";
}

/** `output.0`: slot and path. */
function placeOf(unit, row) {
  return [textAt(unit.columns.slot, row), textAt(unit.columns.path, row)].filter(Boolean).join(".") || "(value)";
}

function singleRow(unit, row) {
  const tone = unit.tones[row];
  return el(
    "tr",
    { class: "tensor", onclick: (event) => showTensor(unit, row, event.currentTarget) },
    el("td", {}, name(placeOf(unit, row))),
    el("td", {}, el("span", { class: `pill tone${tone}` }, rowWord(unit, row))),
    el("td", {}, name(textAt(unit.columns.dtype, row))),
    el("td", {}, name(textAt(unit.columns.shape, row))),
    STATISTICS.map((which) => numberCell(statistic(unit, row, which))),
  );
}

function numberCell(value, attributes = {}) {
  const bad = value !== null && !Number.isFinite(value);
  return el(
    "td",
    { ...attributes, class: bad ? "number bad" : "number", title: value === null ? "not recorded" : String(value) },
    shown(value),
  );
}

/** Two lines: what was found in A with the verdict, and in B. */
function pairRows(unit, row) {
  const both = { rowspan: 2 };
  const listener = { onclick: (event) => showTensor(unit, row, event.currentTarget) };
  const reason = textAt(unit.columns.reason, row);
  return [
    el(
      "tr",
      { class: "tensor first", ...listener },
      el("td", both, name(placeOf(unit, row)), reason ? el("div", { class: "reason" }, reason) : null),
      el("td", { class: "dim" }, "A"),
      el("td", both, el("span", { class: `pill tone${unit.tones[row]}` }, VERDICT_WORD[unit.columns.verdict[row]])),
      Object.keys(METRICS).map((which) => metricCell(unit, row, which, both)),
      sideCells(unit, row, ""),
    ),
    el("tr", { class: "tensor", ...listener }, el("td", { class: "dim" }, "B"), sideCells(unit, row, "b_")),
  ];
}

/** A metric; NaN stands for one that was not computed. */
function metricCell(unit, row, which, attributes) {
  const value = unit.columns[which][row];
  if (Number.isNaN(value)) return el("td", { ...attributes, class: "number dim" }, "–");
  const isShare = which.startsWith("within");
  const text = isShare ? `${Number((100 * value).toFixed(2))} %` : which === "cosine" ? value.toFixed(6) : shown(value);
  return el("td", { ...attributes, class: "number", title: String(value) }, text);
}

function sideCells(unit, row, side) {
  const type = textAt(unit.columns[`${side}dtype`], row);
  if (!type) return [el("td", { class: "dim", colspan: 2 + STATISTICS.length }, "not there")];
  return [
    el("td", {}, name(type)),
    el("td", {}, name(textAt(unit.columns[`${side}shape`], row))),
    STATISTICS.map((which) => numberCell(statistic(unit, row, which, side))),
  ];
}

/** Arguments that differ. */
function scalarList(unit, node) {
  const found = (unit.details.scalars || []).filter(([key]) => key === keyOf(unit, node));
  if (!found.length) return null;
  return el(
    "div",
    {},
    el("h3", {}, "Arguments that differ"),
    el(
      "ul",
      {},
      found.map(([, label, a, b]) =>
        el("li", {}, name(label), ": ", name(a, { class: "value" }), " against ", name(b, { class: "value" })),
      ),
    ),
  );
}

// --- a tensor: over steps, and its values ---------------------------------------------------------------------------

async function showTensor(unit, row, line) {
  document.getElementById("tensor")?.remove();
  const inside = el("div", { class: "inside" }, "…");
  const box = el("tr", { id: "tensor" }, el("td", { colspan: 20 }, inside));
  const place = unit.columns.verdict && line.classList.contains("first") ? line.nextSibling : line;
  place.after(box);
  try {
    const number = unit.rowNumbers[row];
    const series = await source.series(current.at, about.served ? number : row);
    const histograms = await source.histograms(current.at, number);
    inside.replaceChildren(
      el("div", { class: "figures" }, ...seriesFigures(series)),
      ...(histograms ? histogramFigures(histograms) : [valuesHint(unit, row)]).filter(Boolean),
    );
  } catch (error) {
    inside.replaceChildren(el("p", { class: "note" }, String(error.message)));
  }
}

function valuesHint(unit, row) {
  if (!unit.columns.saved[row]) return el("p", { class: "dim" }, "The dump has no values of it, only statistics.");
  return el(
    "p",
    { class: "dim" },
    "Its values are in the dump: ",
    el("code", {}, "msformat view"),
    " shows their histogram.",
  );
}

function seriesFigures(series) {
  const steps = new Set(series.map(({ step }) => step));
  if (steps.size < 2) return [el("p", { class: "dim" }, "One step: nothing to draw over steps.")];
  const rank = about.overviews[current.at].rank;
  const own = series.filter((point) => point.rank === rank);
  const isPair = "b_norm" in series[0];
  const line = (side, which) => ({
    label: side ? "B" : isPair ? "A" : which,
    colour: side ? "line-b" : "line-a",
    points: own.map((point) => [point.step, numberOf(point[side + which])]),
  });
  const figures = STATISTICS.map((which) =>
    stepFigure(which, isPair ? [line("", which), line("b_", which)] : [line("", which)], { log: which === "norm" }),
  );
  if ("severity" in series[0]) figures.unshift(stepFigure("relative error", [line("", "severity")]));
  return figures.filter(Boolean);
}

// --- call stacks ----------------------------------------------------------------------------------------------------

function stackList(unit, side, node) {
  const which = unit.stackOf[side]?.[node] ?? -1;
  return which < 0 ? null : unit.stacks[which].map((frame) => unit.frames[frame]);
}

function stacksOf(unit, node) {
  const a = stackList(unit, 0, node),
    b = stackList(unit, 1, node);
  const isSame = b && a && JSON.stringify(a) === JSON.stringify(b);
  if (!a && !b) return el("p", { class: "dim" }, "No call stack was recorded for it.");
  const titled = unit.stackOf.length > 1 && !isSame;
  return el(
    "div",
    { class: "stacks" },
    a ? stackBox(titled ? "Call stack in A" : "Call stack", a) : null,
    b && !isSame ? stackBox("Call stack in B", b) : null,
  );
}

function stackBox(title, frames) {
  return el(
    "div",
    { class: "stack" },
    el("h3", {}, title, el("span", { class: "dim" }, " innermost first")),
    el("ol", {}, frames.map(frameRow)),
  );
}
