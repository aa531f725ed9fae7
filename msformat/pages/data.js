// Columns of a unit, taken apart, and where they come from.

const TYPES = {
  u1: Uint8Array,
  i1: Int8Array,
  u2: Uint16Array,
  i2: Int16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};

/** A packed column as a typed array. */
function unpacked({ type, data, repeat }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  const values = new TYPES[type](bytes.buffer);
  return repeat ? new TYPES[type](repeat).fill(values[0]) : values;
}

/** A column of numbers, or of texts as `{codes, texts}`. */
function column(packedColumn, texts) {
  return packedColumn.text ? { codes: unpacked(packedColumn.text), texts } : unpacked(packedColumn);
}

function columns(packedColumns, texts) {
  return Object.fromEntries(Object.entries(packedColumns).map(([key, value]) => [key, column(value, texts)]));
}

function textAt(textColumn, row) {
  return textColumn.texts[textColumn.codes[row]];
}

/** A unit from its JSON. */
function unitOf(json) {
  const keys = column(json.keys, json.texts);
  const unit = {
    ...json,
    keys,
    size: keys.codes.length,
    depths: unpacked(json.depths),
    owners: unpacked(json.owners),
    rowNumbers: unpacked(json.rows),
    nodes: columns(json.nodes, json.texts),
    columns: columns(json.columns, json.texts),
    stackOf: json.stackOf.map(unpacked),
  };
  addTree(unit);
  addTones(unit);
  return unit;
}

/** Parents, ends of subtrees, and the first tensor of each entry. */
function addTree(unit) {
  const { size, depths, owners } = unit;
  unit.parents = new Int32Array(size);
  unit.ends = new Int32Array(size).fill(size);
  const running = [];
  for (let node = 0; node < size; node += 1) {
    while (running.length > depths[node]) unit.ends[running.pop()] = node;
    unit.parents[node] = running.length ? running[running.length - 1] : -1;
    running.push(node);
  }
  unit.firstRow = new Int32Array(size + 1);
  for (const owner of owners) unit.firstRow[owner + 1] += 1;
  for (let node = 0; node < size; node += 1) unit.firstRow[node + 1] += unit.firstRow[node];
}

// How bad something is: a colour and a word. 0 says nothing, 3 and more are worth a look.
const UNKNOWN = 0,
  FINE = 1,
  CLOSE = 2,
  ODD = 3,
  BAD = 4,
  WORSE = 5,
  WORST = 6,
  ALONE = 7;

const HEALTH_TONE = [UNKNOWN, FINE, CLOSE, CLOSE, ODD, WORSE, WORST];
const HEALTH_WORD = ["no statistics", "fine", "all zero", "−∞ (a mask?)", "near overflow", "∞", "NaN"];
const VERDICTS = ["same", "close", "unknown", "only_a", "only_b", "unreadable", "different"];
const VERDICT_WORD = ["same", "close", "not compared", "only in A", "only in B", "unreadable", "different"];
const VERDICT_TONE = [FINE, CLOSE, UNKNOWN, ALONE, ALONE, WORST];

/** The tone of a verdict other than "different". What one side lacks says nothing where that is to be ignored. */
function verdictTone(verdict) {
  return VERDICT_TONE[verdict] === ALONE && about.ignoreMissing ? UNKNOWN : VERDICT_TONE[verdict];
}

/** The tone of a difference by its relative error. */
function severityTone(severity) {
  if (!(severity < Infinity)) return WORST;
  return severity < 1e-2 ? ODD : severity < 1e-1 ? BAD : WORSE;
}

function rowTone(unit, row) {
  if (unit.columns.health) return HEALTH_TONE[unit.columns.health[row]];
  const verdict = unit.columns.verdict[row];
  return verdict === 6 ? severityTone(unit.columns.severity[row]) : verdictTone(verdict);
}

function nodeTone(unit, node) {
  const verdict = unit.nodes.verdict ? unit.nodes.verdict[node] : 0;
  if (verdict === 3 || verdict === 4) return verdictTone(verdict);
  let tone = verdict === 6 ? ODD : UNKNOWN;
  for (let row = unit.firstRow[node]; row < unit.firstRow[node + 1]; row += 1) {
    tone = Math.max(tone, unit.tones[row]);
  }
  return tone;
}

/** Tones of tensors and entries, and how many troubled entries there are in each subtree, itself not counted. */
function addTones(unit) {
  unit.tones = new Uint8Array(unit.owners.length);
  for (let row = 0; row < unit.owners.length; row += 1) unit.tones[row] = rowTone(unit, row);
  unit.nodeTones = new Uint8Array(unit.size);
  unit.below = new Uint32Array(unit.size);
  unit.worstBelow = new Uint8Array(unit.size);
  for (let node = unit.size - 1; node >= 0; node -= 1) {
    const tone = (unit.nodeTones[node] = nodeTone(unit, node));
    const parent = unit.parents[node];
    if (parent < 0) continue;
    unit.below[parent] += unit.below[node] + (tone >= ODD ? 1 : 0);
    unit.worstBelow[parent] = Math.max(unit.worstBelow[parent], unit.worstBelow[node], tone);
  }
}

function keyOf(unit, node) {
  return textAt(unit.keys, node);
}

const KINDS = ["module", "api", "other"];
const STAGES = ["", "forward", "backward", "parameters_grad"];

/** Kind and stage of every entry, found once: taking 100,000 names apart takes a moment. */
function classified(unit) {
  if (!unit.classes) {
    unit.classes = { kinds: new Uint8Array(unit.size), stages: new Uint8Array(unit.size) };
    for (let node = 0; node < unit.size; node += 1) {
      const { kind, stage } = parsedKey(keyOf(unit, node));
      unit.classes.kinds[node] = KINDS.indexOf(kind);
      unit.classes.stages[node] = Math.max(0, STAGES.indexOf(stage));
    }
  }
  return unit.classes;
}

/** The entry of a key; -1 where the unit has none. */
function nodeOf(unit, key) {
  if (!unit.places) {
    unit.places = new Map();
    for (let node = unit.size - 1; node >= 0; node -= 1) unit.places.set(keyOf(unit, node), node);
  }
  return unit.places.get(key) ?? -1;
}

/** The tensor of an entry at a place; -1 where there is none. */
function rowOf(unit, node, slot, path) {
  for (let row = unit.firstRow[node]; row < unit.firstRow[node + 1]; row += 1) {
    if (textAt(unit.columns.slot, row) === slot && textAt(unit.columns.path, row) === path) return row;
  }
  return -1;
}

const STATISTIC_BITS = { max: 1, min: 2, mean: 4, norm: 8 };

/** A statistic of a tensor, null where the dump has none. `side` is "" or "b_". */
function statistic(unit, row, which, side = "") {
  return unit.columns[side + "absent"][row] & STATISTIC_BITS[which] ? null : unit.columns[side + which][row];
}

/** The largest magnitude of a tensor, null where the dump does not say. */
function magnitude(unit, row, side = "") {
  const high = statistic(unit, row, "max", side),
    low = statistic(unit, row, "min", side);
  return high === null || low === null ? null : Math.max(Math.abs(high), Math.abs(low));
}

// --- where units come from ------------------------------------------------------------------------------------------

function blockOf(id) {
  const block = document.getElementById(id);
  return block ? JSON.parse(block.textContent) : null;
}

/** Units that stand in the page itself. */
function embeddedSource(about) {
  const units = new Map();
  const unit = async (at) => {
    if (!units.has(at)) {
      const json = blockOf(`unit-${at}`);
      units.set(at, json && unitOf(json));
    }
    return units.get(at);
  };
  return {
    unit,
    overview: async (at) => about.overviews[at],
    histograms: async () => null,
    series: (at, row) => embeddedSeries(about, unit, at, row),
  };
}

/** Statistics of a tensor in every unit of the page. */
async function embeddedSeries(about, unitAt, at, row) {
  const own = await unitAt(at);
  const key = keyOf(own, own.owners[row]);
  const slot = textAt(own.columns.slot, row),
    path = textAt(own.columns.path, row);
  const points = [];
  for (let other = 0; other < about.labels.length; other += 1) {
    const unit = await unitAt(other);
    const node = unit ? nodeOf(unit, key) : -1;
    const found = node < 0 ? -1 : rowOf(unit, node, slot, path);
    if (found >= 0) points.push(seriesPoint(about.overviews[other], unit, found));
  }
  return points;
}

function seriesPoint({ step, rank }, unit, row) {
  const point = { step, rank };
  for (const side of unit.columns.b_absent ? ["", "b_"] : [""]) {
    for (const which of ["max", "min", "mean", "norm"]) point[side + which] = statistic(unit, row, which, side);
  }
  if (unit.columns.severity) point.severity = unit.columns.severity[row];
  return point;
}

/** Units that a server has. */
function servedSource() {
  const units = new Map();
  const ask = async (path) => {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
    return answer.json();
  };
  return {
    unit: (at) => {
      if (!units.has(at)) {
        if (units.size > 3) units.delete(units.keys().next().value);
        const asked = ask(`unit/${at}`).then(unitOf);
        // What failed may be asked for again.
        asked.catch(() => units.delete(at));
        units.set(at, asked);
      }
      return units.get(at);
    },
    overview: (at) => ask(`overview/${at}`),
    histograms: (at, row) => ask(`histograms/${at}/${row}`),
    series: (at, row) => ask(`series/${at}/${row}`),
  };
}
