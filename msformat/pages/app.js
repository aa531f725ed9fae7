// What ties the parts together.

const about = blockOf("about");
const source = about.served ? servedSource() : embeddedSource(about);
const current = { at: -1 };

function drawTop() {
  const isPair = about.kind === "comparison";
  replaceAll(
    "top",
    el("span", { class: "brand" }, "msformat"),
    ...about.sides.map((side, at) =>
      el(
        "span",
        { class: "side", title: side },
        isPair ? el("b", { class: at ? "line-b" : "line-a" }, "AB"[at]) : null,
        name(shortPath(side)),
      ),
    ),
    el("span", { class: "spring" }),
    unitChoice(),
    el("button", { class: "quiet", title: "light or dark", onclick: turnTheme }, "◐"),
  );
}

function unitChoice() {
  if (!about.labels.length) return null;
  const options = about.labels.map((label, at) =>
    el("option", { value: at, selected: at === current.at }, `${label}${unitMark(about.overviews[at])}`),
  );
  return el(
    "label",
    { class: "unit" },
    "step and rank ",
    el("select", { id: "unit", onchange: (event) => showUnit(Number(event.target.value)) }, options),
  );
}

function unitMark(row) {
  return !row ? "" : row.problem ? "  unreadable" : row.first && row.first.health !== "masked" ? "  ●" : "";
}

function turnTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  drawChart();
}

/** Show a unit; nothing happens where it is shown already. */
async function showUnit(at) {
  if (at === current.at) return;
  current.at = at;
  drawTop();
  showRun();
  replaceAll("details");
  const unit = await source.unit(at).catch((error) => ({ failure: error.message }));
  if (current.at !== at) return;
  if (!unit || unit.failure) return showNoUnit(at, unit?.failure);
  showTree(unit);
  showChart(unit);
  showNotes(unit);
  if (!unit.size) replaceAll("details", el("p", { class: "note" }, "This unit has no entries."));
}

function showNoUnit(at, failure) {
  const reason =
    failure ||
    about.overviews[at]?.problem ||
    "There was no room for this unit in the page: msformat view shows all of it.";
  Object.assign(tree, { unit: null, shown: new Int32Array(0), chosen: -1 });
  replaceAll("count");
  for (const id of ["tree", "layers", "details"]) replaceAll(id);
  replaceAll("tree", el("p", { class: "empty" }, "Nothing to show."));
  replaceAll("details", el("p", { class: "note" }, reason));
}

/** What a person should know of the page and the unit. */
function showNotes(unit) {
  const facts = Object.entries(unit.facts).map(([key, value]) => el("span", { class: "fact" }, `${key} `, name(value)));
  const cut = unit.leftOut
    ? [`${counted(unit.leftOut, "entry", "entries")} of this unit had no room in the page; msformat view shows all.`]
    : [];
  const notes = [...about.notes, ...cut, ...unit.notes];
  replaceAll(
    "notes",
    el("p", { class: "facts" }, facts),
    notes.length ? el("h2", {}, "Notes") : null,
    el(
      "ul",
      {},
      notes.slice(0, 100).map((note) => el("li", {}, note)),
    ),
    notes.length > 100 ? el("p", { class: "dim" }, `and ${counted(notes.length - 100, "more note")}`) : null,
  );
}

/** Over the steps: the norm of all gradients, the largest value, how much is troubled. */
function showRun() {
  const rows = about.overviews.map((row, at) => ({ row, at })).filter(({ row }) => row && !row.problem);
  if (rows.length < 2) return replaceAll("run");
  const ranks = [...new Set(rows.map(({ row }) => row.rank))];
  const steps = new Set(rows.map(({ row }) => row.step));
  const figures = runMeasures(about.kind === "comparison")
    .map(({ title, log, lines }) =>
      stepFigure(
        title,
        lines.flatMap(({ colour, label, of }) =>
          ranks.slice(0, 16).map((rank) => ({
            label: `${label} ${rank}`,
            colour,
            points: rows.filter(({ row }) => row.rank === rank).map(({ row }) => [row.step, of(row)]),
          })),
        ),
        { log },
      ),
    )
    .filter(Boolean);
  const heading = steps.size > 1 ? "Over the run" : "Over the ranks";
  const known = about.overviews.filter(Boolean).length;
  replaceAll(
    "run",
    el(
      "h2",
      {},
      heading,
      el(
        "span",
        { class: "dim" },
        known < about.labels.length ? ` ${known} of ${about.labels.length} units so far` : "",
      ),
    ),
    steps.size > 1 ? el("div", { class: "figures" }, figures) : null,
    unitStrip(),
  );
}

function runMeasures(isPair) {
  const one = (title, of, log = true) => ({ title, log, lines: [{ colour: "line-a", label: isPair ? "A" : "", of }] });
  const trouble = isPair
    ? one("tensors that differ", (row) => row.differing, false)
    : one("tensors with NaN or ∞", (row) => row.health.nan + row.health.infinite, false);
  const gradients = one("norm of all gradients", (row) => numberOf(row.gradientNorm));
  if (!isPair) return [gradients, one("largest |x|", (row) => numberOf(row.largest)), trouble];
  gradients.lines.push({ colour: "line-b", label: "B", of: (row) => numberOf(row.gradientNormB) });
  return [one("largest relative error", (row) => numberOf(row.worst)), gradients, trouble];
}

/** A square a unit: steps along, ranks down. */
function unitStrip() {
  if (about.labels.length < 2 || about.labels.length > 4000) return null;
  const places = new Map(about.labels.map((label, at) => [at, placeInRun(label)]));
  const lines = [...new Set([...places.values()].map(({ line }) => line))];
  const steps = [...new Set([...places.values()].map(({ step }) => step))];
  const grid = el("div", { class: "strip" });
  grid.style.gridTemplateColumns = `max-content repeat(${steps.length}, 16px)`;
  lines.forEach((line, row) => grid.append(inGrid(el("span", { class: "dim" }, name(line)), row, 0)));
  for (const [at, { line, step }] of places)
    grid.append(inGrid(unitCell(at), lines.indexOf(line), steps.indexOf(step) + 1));
  return el("div", { class: "scroll" }, grid);
}

/** Step and the rest of a unit's label: `graph/step3/rank0`. */
function placeInRun(label) {
  const found = /^(.*?)step(\d+)\/(.*)$/s.exec(label);
  return found ? { step: Number(found[2]), line: found[1] + found[3] } : { step: -1, line: label };
}

function inGrid(element, row, columnAt) {
  element.style.gridRow = String(row + 1);
  element.style.gridColumn = String(columnAt + 1);
  return element;
}

function unitCell(at) {
  const label = about.labels[at];
  return el("button", {
    class: `cell tone${unitTone(about.overviews[at])}${at === current.at ? " chosen" : ""}`,
    title: label,
    "aria-label": label,
    onclick: () => showUnit(at),
  });
}

function unitTone(row) {
  if (!row) return UNKNOWN;
  if (row.problem) return WORST;
  if (about.kind === "comparison") return row.differing ? severityTone(numberOf(row.worst) ?? Infinity) : FINE;
  return row.health.nan ? WORST : row.health.infinite ? WORSE : row.health.near ? ODD : row.tensors ? FINE : UNKNOWN;
}

function drawLegend() {
  const words =
    about.kind === "comparison"
      ? [
          [FINE, "same"],
          [CLOSE, "close"],
          [ODD, "< 1 %"],
          [BAD, "< 10 %"],
          [WORSE, "beyond"],
          [WORST, "NaN, shape"],
          about.ignoreMissing ? [UNKNOWN, "one side, not compared"] : [ALONE, "one side"],
        ]
      : [
          [FINE, "fine"],
          [CLOSE, "all zero, −∞"],
          [ODD, "near overflow"],
          [WORSE, "∞"],
          [WORST, "NaN"],
          [UNKNOWN, "no numbers"],
        ];
  replaceAll(
    "legend",
    words.map(([tone, word]) => el("span", {}, toneDot(tone), word)),
  );
}

/** Ask a server for the overview of each unit, one after the other. */
async function collectOverviews() {
  for (let at = 0; at < about.labels.length; at += 1) {
    about.overviews[at] = await source.overview(at).catch((error) => ({ problem: error.message }));
    showHeadline();
    showRun();
    await goToTrouble();
  }
  drawTop();
}

/** Show what the headline names, unless a person has chosen something already. */
async function goToTrouble() {
  const trouble = firstTrouble();
  if (trouble && tree.chosen < 0) await goTo(trouble.at, trouble.first.key)();
}

function listen() {
  const box = document.getElementById("tree");
  box.addEventListener("scroll", () => requestAnimationFrame(() => tree.unit && drawTree()));
  box.addEventListener("keydown", treeKey);
  window.addEventListener("resize", () => tree.unit && (drawTree(), drawChart()));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select")) return;
    event.preventDefault();
    document.getElementById("search").focus();
  });
}

async function start() {
  drawFilters();
  drawLegend();
  listen();
  showHeadline();
  showRun();
  const trouble = firstTrouble();
  drawTop();
  if (about.labels.length) await showUnit(trouble ? trouble.at : 0);
  else replaceAll("details", el("p", { class: "note" }, "The dump has no units."));
  if (about.served) await collectOverviews();
  else await goToTrouble();
  document.getElementById("main").scrollTop = 0;
  document.documentElement.dataset.ready = "yes";
}

start();
