// The call tree: only the rows that are in sight exist.

const ROW = 24;
const SPARE = 12;

const tree = { unit: null, open: null, shown: new Int32Array(0), chosen: -1, matches: null };

const filters = { text: "", trouble: false, kind: "", stage: "" };

/** Show another unit. All that is troubled below the top is one click away; the first levels are open. */
function showTree(unit) {
  tree.unit = unit;
  tree.open = new Uint8Array(unit.size);
  const levels = unit.size < 200 ? 99 : 2;
  for (let node = 0; node < unit.size; node += 1) tree.open[node] = unit.depths[node] < levels ? 1 : 0;
  tree.chosen = -1;
  applyFilters();
}

/** Find what the filters let through; null where they ask for nothing. */
function applyFilters() {
  const { unit } = tree;
  if (!unit) return;
  const wanted = filters.text || filters.trouble || filters.kind || filters.stage;
  tree.matches = wanted ? matching(unit, matcher(filters.text)) : null;
  layOut();
  showCount();
}

/** A test of keys: a glob where there is a `*` or `?`, else part of the text; capitals do not matter. */
function matcher(text) {
  const lower = text.toLowerCase();
  if (!/[*?]/.test(lower)) return (key) => key.toLowerCase().includes(lower);
  const escaped = lower
    .replace(/[.+^${}()|[\]\\]/g, "\\$&")
    .replace(/\*+/g, ".*")
    .replace(/\?/g, ".");
  const pattern = new RegExp(`^${escaped}$`, "s");
  return (key) => pattern.test(key.toLowerCase());
}

/** Flags of entries: 2 for what matches, 1 for what is around it. */
function matching(unit, test) {
  const flags = new Uint8Array(unit.size);
  for (let node = 0; node < unit.size; node += 1) {
    if (filters.trouble && unit.nodeTones[node] < ODD) continue;
    if (!isOfKind(unit, node, filters) || !test(keyOf(unit, node))) continue;
    flags[node] = 2;
    for (let at = unit.parents[node]; at >= 0 && !flags[at]; at = unit.parents[at]) flags[at] = 1;
  }
  return flags;
}

function isOfKind(unit, node, { kind, stage }) {
  if (!kind && !stage) return true;
  const { kinds, stages } = classified(unit);
  return (!kind || KINDS[kinds[node]] === kind) && (!stage || STAGES[stages[node]] === stage);
}

/** Which entries have a row: all that match, or those whose parents are open. */
function layOut() {
  const { unit, matches, open } = tree;
  const rows = new Int32Array(unit.size);
  let count = 0;
  for (let node = 0; node < unit.size; node += 1) {
    if (matches && !matches[node]) continue;
    rows[count] = node;
    count += 1;
    if (!matches && !open[node]) node = unit.ends[node] - 1;
  }
  tree.shown = rows.subarray(0, count);
  drawTree();
}

function showCount() {
  const { unit, matches } = tree;
  const found = matches ? matches.reduce((sum, flag) => sum + (flag === 2 ? 1 : 0), 0) : unit.size;
  const text = matches
    ? `${found.toLocaleString("en")} of ${counted(unit.size, "entry", "entries")}`
    : counted(unit.size, "entry", "entries");
  replaceAll("count", text);
}

/** Draw the rows in sight. */
function drawTree() {
  const box = document.getElementById("tree");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
  const last = Math.min(tree.shown.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + SPARE);
  const canvas = el("div", { class: "rows", role: "presentation" });
  canvas.style.height = `${tree.shown.length * ROW}px`;
  for (let at = first; at < last; at += 1) {
    const row = treeRow(tree.shown[at]);
    row.style.top = `${at * ROW}px`;
    canvas.append(row);
  }
  box.replaceChildren(canvas);
  if (!tree.shown.length) box.replaceChildren(el("p", { class: "empty" }, "Nothing matches."));
}

function treeRow(node) {
  const { unit } = tree;
  const key = keyOf(unit, node);
  const hasInner = unit.ends[node] > node + 1;
  const isOpen = tree.matches ? true : tree.open[node] === 1;
  const dim = tree.matches && tree.matches[node] === 1;
  const row = el(
    "div",
    {
      class: `row${node === tree.chosen ? " chosen" : ""}${dim ? " around" : ""}`,
      title: key,
      role: "treeitem",
      "aria-level": unit.depths[node] + 1,
      "aria-selected": node === tree.chosen,
      "aria-expanded": hasInner ? isOpen : null,
      onclick: () => choose(node),
    },
    el(
      "span",
      { class: "twisty", onclick: (event) => toggle(event, node) },
      hasInner && !tree.matches ? (isOpen ? "▾" : "▸") : "",
    ),
    toneDot(hasInner && !isOpen ? Math.max(unit.nodeTones[node], unit.worstBelow[node]) : unit.nodeTones[node]),
    ...labelOf(key),
    el("span", { class: "spring" }),
    hasInner && unit.below[node]
      ? el(
          "span",
          { class: "pill", title: "troubled entries inside" },
          `${unit.below[node].toLocaleString("en")} inside`,
        )
      : null,
    ...nodeNumber(node),
  );
  row.style.paddingLeft = `${4 + Math.min(unit.depths[node], 24) * 14}px`;
  return row;
}

function toneDot(tone) {
  return el("span", { class: `dot tone${tone}` });
}

/** A key for a person: the last part of the path, what is before it dimmed, class, and a badge for the stage. */
function labelOf(key) {
  const { kind, prefix, path, cls, stage, index } = parsedKey(key);
  const [before, last] = kind === "other" ? ["", path] : headAndTail(path || cls);
  return [
    el(
      "span",
      { class: "label" },
      name(`${kind === "api" ? `${prefix}.` : ""}${before}`, { class: "dim" }),
      name(last, { class: kind }),
    ),
    cls && path ? name(cls, { class: "class" }) : null,
    index && index !== "0" ? el("span", { class: "dim" }, `#${index}`) : null,
    stage ? el("span", { class: `badge ${stage}`, title: stage }, stageLetter(stage)) : null,
  ];
}

const TAIL = /^(.*\.)?([^.\d][^.]*(?:\.\d+)*)$/;

/** A module path before its last name, and that name with the numbers behind it: `layers.3.norm`, `layers.3`. */
function headAndTail(path) {
  const found = TAIL.exec(path);
  return found ? [found[1] || "", found[2]] : ["", path];
}

function stageLetter(stage) {
  return { forward: "F", backward: "B", parameters_grad: "∇" }[stage] || stage;
}

/** The number at the end of a row: what is wrong, or how far off. */
function nodeNumber(node) {
  const { unit } = tree;
  const tone = unit.nodeTones[node];
  const verdict = unit.nodes.verdict?.[node];
  if (tone < ODD && (verdict === 3 || verdict === 4)) return [el("span", { class: "dim" }, VERDICT_WORD[verdict])];
  if (tone < ODD) return [];
  return [el("span", { class: `pill tone${tone}` }, nodeWord(unit, node))];
}

/** The worst of an entry in a word: "NaN", "2.1e-3", "only in A". */
function nodeWord(unit, node) {
  if (unit.nodes.verdict && [3, 4].includes(unit.nodes.verdict[node])) return VERDICT_WORD[unit.nodes.verdict[node]];
  let worst = -1;
  for (let row = unit.firstRow[node]; row < unit.firstRow[node + 1]; row += 1) {
    if (worst < 0 || isWorse(unit, row, worst)) worst = row;
  }
  return worst < 0 || unit.tones[worst] < ODD ? "argument" : rowWord(unit, worst);
}

function isWorse(unit, row, other) {
  if (unit.tones[row] !== unit.tones[other]) return unit.tones[row] > unit.tones[other];
  return Boolean(unit.columns.severity) && unit.columns.severity[row] > unit.columns.severity[other];
}

function rowWord(unit, row) {
  if (unit.columns.health) return HEALTH_WORD[unit.columns.health[row]];
  const verdict = unit.columns.verdict[row];
  if (verdict !== 6) return VERDICT_WORD[verdict];
  const severity = unit.columns.severity[row];
  return Number.isFinite(severity) ? shown(Number(severity.toPrecision(2))) : "≠";
}

function toggle(event, node) {
  event.stopPropagation();
  if (tree.matches) return;
  tree.open[node] = tree.open[node] ? 0 : 1;
  layOut();
}

/** Open what is around an entry, and scroll to it. */
function reveal(node) {
  if (tree.matches && !tree.matches[node]) clearFilters();
  for (let at = tree.unit.parents[node]; at >= 0; at = tree.unit.parents[at]) tree.open[at] = 1;
  layOut();
  const box = document.getElementById("tree");
  const top = tree.shown.indexOf(node) * ROW;
  if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - ROW) {
    box.scrollTop = Math.max(0, top - box.clientHeight / 3);
  }
  drawTree();
}

/** Arrow keys walk the tree. */
function treeKey(event) {
  if (!tree.shown.length) return;
  const at = tree.shown.indexOf(tree.chosen);
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 };
  if (event.key in moves) {
    const next = Math.min(tree.shown.length - 1, Math.max(0, at + moves[event.key]));
    choose(tree.shown[next], { scroll: false });
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    if (at < 0 || tree.matches) return;
    tree.open[tree.chosen] = event.key === "ArrowRight" ? 1 : 0;
    layOut();
  } else return;
  event.preventDefault();
}

function clearFilters() {
  Object.assign(filters, { text: "", trouble: false, kind: "", stage: "" });
  drawFilters();
  applyFilters();
}

function drawFilters() {
  const changed = (key, read) => (event) => {
    filters[key] = read(event.target);
    document.getElementById("tree").scrollTop = 0;
    applyFilters();
  };
  const choice = (key, label, options) =>
    el(
      "select",
      { "aria-label": label, onchange: changed(key, (t) => t.value) },
      Object.entries(options).map(([value, text]) => el("option", { value, selected: filters[key] === value }, text)),
    );
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "Search: part of a name, or *.norm.*   ( / )",
    "aria-label": "Search",
    oninput: changed("text", (t) => t.value),
  });
  search.value = filters.text;
  const trouble = el("input", { type: "checkbox", onchange: changed("trouble", (t) => t.checked) });
  trouble.checked = filters.trouble;
  replaceAll(
    "filters",
    search,
    el(
      "div",
      { class: "line" },
      el("label", {}, trouble, "only trouble"),
      choice("kind", "Kind", { "": "all kinds", module: "modules", api: "functions", other: "others" }),
      choice("stage", "Stage", {
        "": "all stages",
        forward: "forward",
        backward: "backward",
        parameters_grad: "gradients",
      }),
      el("span", { id: "count", class: "dim" }),
    ),
  );
}
