// Small figures in SVG: lines over steps, and histograms.

const FIGURE = { width: 300, height: 96, left: 46, right: 8, top: 8, bottom: 18 };

/**
 * Lines over steps.
 * @param title what is drawn
 * @param lines `[{label, colour, points: [[step, value], …]}, …]`
 * @param log whether heights are powers of ten
 * @param onpick called with the place of a point that is clicked
 */
function stepFigure(title, lines, { log = true, onpick = null } = {}) {
  const steps = [...new Set(lines.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const values = lines.flatMap(({ points }) => points.map(([, value]) => value)).filter((value) => value !== null);
  if (!values.length) return null;
  const useLog = log && values.some((value) => value > 0) && values.every((value) => !(value < 0));
  const { y, ticks } = scaleOf(values, useLog, FIGURE.height - FIGURE.bottom + PAD.bottom);
  const span = FIGURE.width - FIGURE.left - FIGURE.right;
  const x = (step) => FIGURE.left + (steps.length < 2 ? span / 2 : (steps.indexOf(step) / (steps.length - 1)) * span);
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${FIGURE.width} ${FIGURE.height}`, class: "figure", role: "img", "aria-label": title },
    ...gridLines(ticks, y),
    ...stepLabels(steps, x),
    ...lines.map((line) => stepLine(line, x, y, onpick)),
  );
  return el("figure", {}, el("figcaption", {}, title), picture);
}

function gridLines(ticks, y) {
  return ticks.flatMap((tick) => [
    svg("line", { x1: FIGURE.left, x2: FIGURE.width - FIGURE.right, y1: y(tick), y2: y(tick), class: "grid" }),
    svg("text", { x: FIGURE.left - 4, y: y(tick) + 3, class: "tick end" }, shown(Number(tick.toPrecision(3)))),
  ]);
}

function stepLabels(steps, x) {
  const some = steps.length < 3 ? steps : [steps[0], steps[steps.length >> 1], steps[steps.length - 1]];
  const anchor = (at) => (some.length === 1 ? "middle" : ["start", some.length > 2 ? "middle" : "end", "end"][at]);
  return some.map((step, at) =>
    svg(
      "text",
      { x: x(step), y: FIGURE.height - 4, class: `tick ${anchor(at)}` },
      step === null ? "–" : `step ${step}`,
    ),
  );
}

function stepLine({ label, colour, points }, x, y, onpick) {
  const drawn = points.map(([step, value], at) => ({ step, value, at })).filter(({ value }) => value !== null);
  const finite = drawn.filter(({ value }) => Number.isFinite(value));
  const path = finite.map(({ step, value }, at) => `${at ? "L" : "M"}${x(step)},${y(value)}`).join("");
  const dots = drawn.length > 200 ? drawn.filter(({ value }) => !Number.isFinite(value)) : drawn;
  return svg(
    "g",
    { class: colour },
    svg("path", { d: path, class: "line" }),
    ...dots.map(({ step, value, at }) =>
      svg(
        "circle",
        {
          cx: x(step),
          cy: y(value),
          r: Number.isFinite(value) ? 2.5 : 4,
          class: Number.isFinite(value) ? "" : "tone6",
          onclick: onpick && (() => onpick(at)),
        },
        svg("title", {}, `${label}, step ${step}: ${shown(value)}`),
      ),
    ),
  );
}

/** Bars of one or two histograms with the same bins. */
function bars(title, ticks, sides) {
  const most = Math.max(1, ...sides.flatMap(({ counts }) => counts));
  const span = FIGURE.width - FIGURE.left - FIGURE.right,
    bottom = FIGURE.height - FIGURE.bottom;
  const drawn = sides.map(({ counts, colour }) =>
    svg(
      "g",
      { class: colour },
      counts.map((count, at) => {
        const height = (Math.log1p(count) / Math.log1p(most)) * (bottom - FIGURE.top);
        return svg(
          "rect",
          {
            x: FIGURE.left + (at / counts.length) * span,
            y: bottom - height,
            width: Math.max(0.5, span / counts.length - 0.5),
            height,
          },
          svg("title", {}, counted(count, "value")),
        );
      }),
    ),
  );
  const labels = ticks.map(([share, text], at) =>
    svg(
      "text",
      { x: FIGURE.left + share * span, y: FIGURE.height - 4, class: `tick ${["start", "middle", "end"][at]}` },
      text,
    ),
  );
  const top = svg("text", { x: FIGURE.left - 4, y: FIGURE.top + 6, class: "tick end" }, most.toLocaleString("en"));
  return el(
    "figure",
    {},
    el("figcaption", {}, title),
    svg(
      "svg",
      { class: "figure", viewBox: `0 0 ${FIGURE.width} ${FIGURE.height}`, role: "img", "aria-label": title },
      ...drawn,
      ...labels,
      top,
    ),
  );
}

/** What a server says of the values of a tensor on each side. */
function histogramFigures(sides) {
  const readable = sides.filter((side) => side && !side.problem);
  const problems = sides.filter((side) => side?.problem).map((side) => el("p", { class: "note" }, side.problem));
  const colours = sides.length > 1 ? ["line-a", "line-b"] : ["line-a"];
  const words = readable.map((side, at) =>
    el("p", { class: "dim" }, sides.length > 1 ? `${"AB"[sides.indexOf(side)]}: ` : "", specialWords(side)),
  );
  const finite = readable.filter(({ finite: count }) => count > 0);
  const byValue = finite.map((side) => {
    const figure = bars(
      `values${finite.length > 1 ? ` of ${"AB"[sides.indexOf(side)]}` : ""} (heights: logarithm)`,
      [
        [0, shown(side.low)],
        [0.5, shown((side.low + side.high) / 2)],
        [1, shown(side.high)],
      ],
      [{ counts: side.counts, colour: colours[sides.indexOf(side)] }],
    );
    return figure;
  });
  return [el("div", { class: "figures" }, ...byValue, exponentFigure(sides, colours)), ...words, ...problems];
}

/** How many values lie between powers of two: where a narrow type overflows or loses small values. */
function exponentFigure(sides, colours) {
  const usable = sides.filter((side) => side?.exponents);
  if (!usable.length) return null;
  const low = Math.min(...usable.map((side) => side.lowestExponent));
  const high = Math.max(...usable.map((side) => side.lowestExponent + side.exponents.length - 1));
  const aligned = usable.map((side) => ({
    colour: colours[sides.indexOf(side)],
    counts: Array.from({ length: high - low + 1 }, (_, at) => side.exponents[at + low - side.lowestExponent] || 0),
  }));
  return bars(
    "magnitudes by power of two",
    [
      [0, `2^${low}`],
      [0.5, ""],
      [1, `2^${high}`],
    ],
    aligned,
  );
}

function specialWords({ elements, nan, posinf, neginf, zero }) {
  const parts = [
    [nan, "NaN"],
    [posinf, "+∞"],
    [neginf, "−∞"],
    [zero, "zero"],
  ].filter(([count]) => count);
  return [counted(elements, "value"), ...parts.map(([count, word]) => `${count.toLocaleString("en")} ${word}`)].join(", ");
}
