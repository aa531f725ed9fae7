// The first answer: where the dumps part, or where the first NaN is.

/** The first unit with trouble, among those whose overview is known. NaN and ∞ go before −∞, which masks hold. */
function firstTrouble() {
  const found = about.overviews.map((row, at) => ({ at, row, first: row?.first })).filter(({ first }) => first);
  return found.find(({ first }) => first.health !== "masked") || found[0] || null;
}

function showHeadline() {
  const trouble = firstTrouble();
  const isPair = about.kind === "comparison";
  const card = !trouble ? calmHeadline(isPair) : isPair ? divergenceCard(trouble) : nonFiniteCard(trouble);
  replaceAll("headline", card, partialCard());
}

/** What the headline does not know of: units that could not be read, or not all of them. */
function partialCard() {
  const listed = about.overviews.flatMap((row, at) => {
    const texts = row?.problem ? [row.problem] : row?.notes || [];
    return texts.map((text) =>
      el("li", {}, el("a", { href: "#", onclick: goTo(at, "") }, about.labels[at]), `: ${text}`),
    );
  });
  const leftOut = about.leftOut.map((text) => el("li", {}, `no room in the page: ${text}`));
  const all = [...listed, ...leftOut];
  if (!all.length) return null;
  return el(
    "details",
    { class: "card odd", open: all.length < 4 },
    el("summary", {}, "Worth knowing: ", counted(all.length, "note")),
    el("ul", {}, all.slice(0, 50)),
    all.length > 50 ? `and ${all.length - 50} more` : null,
  );
}

function total(read) {
  return about.overviews.reduce((sum, row) => sum + (row && !row.problem ? read(row) : 0), 0);
}

function calmHeadline(isPair) {
  const known = about.overviews.filter((row) => row && !row.problem).length;
  const tensors = total((row) => row.tensors);
  const stretch = `${counted(tensors, "tensor")} of ${counted(known, "unit")}`;
  if (about.served && known < about.labels.length) {
    return el(
      "div",
      { class: "card" },
      el("h1", {}, "Nothing found so far"),
      el("p", {}, `${stretch} looked at; more are coming.`),
    );
  }
  if (!tensors) {
    const entries = about.overviews.some((row) => row && !row.problem && row.entries);
    return el(
      "div",
      { class: "card" },
      el("h1", {}, "No tensors to judge"),
      el(
        "p",
        {},
        entries
          ? "The entries of this dump hold no tensors."
          : "The dump holds no entries with tensors: call trees and stacks at most.",
      ),
    );
  }
  const unknown = isPair ? total((row) => row.verdicts.unknown) : total((row) => row.health.unknown);
  const words =
    unknown === tensors
      ? "Only shapes and types are known"
      : isPair
        ? "Within the thresholds, the two dumps are the same"
        : "No NaN and no infinity";
  return el(
    "div",
    { class: unknown === tensors ? "card" : "card good" },
    el("h1", {}, words),
    el(
      "p",
      {},
      `in ${stretch}`,
      unknown ? `; ${counted(unknown, "tensor")} could not be judged (no statistics)` : "",
      ".",
    ),
    isPair ? firstBitsLine() : null,
  );
}

/** Where the first bit differs, though within the thresholds. */
function firstBitsLine() {
  const at = about.overviews.findIndex((row) => row?.firstBits);
  if (at < 0) return el("p", { class: "dim" }, "Bit for bit, as far as there was something to compare.");
  const { firstBits } = about.overviews[at];
  return el(
    "p",
    {},
    "Not the same bit for bit: the first to differ at all is ",
    el("a", { href: "#", onclick: goTo(at, firstBits.key) }, name(firstBits.key)),
    " ",
    placeWords(firstBits),
    ".",
  );
}

function goTo(at, key) {
  return async (event) => {
    event?.preventDefault();
    await showUnit(at);
    const node = tree.unit ? nodeOf(tree.unit, key) : -1;
    if (node >= 0) choose(node);
  };
}

/** What both headlines share: module, place, reasons, what was before, stacks. */
function troubleCard({ at, first }, { title, summary, reasons, stacks, before }) {
  const { kind, path, cls, stage } = parsedKey(first.key);
  const where = first.module || moduleAround(first) || path || first.key;
  return el(
    "div",
    { class: "card bad" },
    el(
      "h1",
      {},
      title,
      " ",
      name(where, { class: "where" }),
      cls ? name(cls, { class: "class" }) : null,
      kind === "api" && path !== where ? name(path, { class: "class" }) : null,
      stage ? el("span", { class: `badge ${stage}` }, stage) : null,
    ),
    el(
      "p",
      { class: "summary" },
      ...summary,
      about.labels.length > 1 ? el("span", { class: "dim" }, ` in ${about.labels[at]}`) : null,
    ),
    reasons.length
      ? el(
          "ul",
          { class: "reasons" },
          reasons.map((text) => el("li", {}, text)),
        )
      : null,
    el(
      "p",
      {},
      el("a", { href: "#", class: "button", onclick: goTo(at, first.key) }, "show it"),
      " ",
      name(first.key, { class: "dim" }),
    ),
    beforeList(at, before),
    parentList(at, first.parents),
    ...stacks
      .filter(({ frames }) => frames?.length)
      .map(({ title: head, frames }) =>
        el(
          "details",
          {},
          el("summary", {}, head, ": ", ownFrame(frames)),
          el("ol", { class: "frames" }, frames.map(frameRow)),
        ),
      ),
  );
}

/** The module that a call is, or ran in. */
function moduleAround({ key, parents }) {
  return [key, ...(parents || [])].map(parsedKey).find(({ kind, path }) => kind === "module" && path)?.path;
}

function beforeList(at, before) {
  if (!before?.length) return el("p", { class: "dim" }, "Nothing was recorded before it.");
  return el(
    "p",
    { class: "chain" },
    el("span", { class: "dim" }, "before it: "),
    before.map((item) => [
      el(
        "a",
        { href: "#", class: "chip", title: item.key, onclick: goTo(at, item.key) },
        toneDot(beforeTone(item)),
        ...labelOf(item.key),
      ),
      " → ",
    ]),
    el("b", {}, "here"),
  );
}

function beforeTone({ health, verdict, severity }) {
  if (health !== undefined) return HEALTH_TONE[health];
  return verdict === 6 ? severityTone(numberOf(severity)) : verdictTone(verdict);
}

function parentList(at, parents) {
  if (!parents?.length) return null;
  return el(
    "p",
    { class: "chain" },
    el("span", { class: "dim" }, "inside: "),
    parents
      .slice(0, 6)
      .map((key, place) => [
        place ? " ‹ " : "",
        el("a", { href: "#", title: key, onclick: goTo(at, key) }, name(parsedKey(key).path || key)),
      ]),
  );
}

function placeWords({ slot, path }) {
  return name([slot, path].filter(Boolean).join(".") || "its value", { class: "value" });
}

function nonFiniteCard(trouble) {
  const { first } = trouble;
  const counts = { nan: total((row) => row.health.nan), infinite: total((row) => row.health.infinite) };
  const words = { nan: "First NaN:", infinite: "First overflow (∞):", masked: "Only −∞, as in masks; first:" };
  return troubleCard(trouble, {
    title: words[first.health],
    summary: [placeWords(first), roleWords(first)],
    reasons:
      first.health === "masked"
        ? []
        : [`${counted(counts.nan, "tensor")} with NaN, ${counts.infinite.toLocaleString("en")} with ∞`],
    stacks: [{ title: "call stack", frames: first.stack }],
    before: first.before,
  });
}

function roleWords({ slot, inputsFine }) {
  if (slot.startsWith("input")) return ": it comes in like this, and nothing recorded before it has any.";
  if (slot === "parameters") return ": the parameter itself holds it.";
  return slot === "output" && inputsFine ? ": all that went in was finite, so it arose in this call." : "";
}

function divergenceCard(trouble) {
  const { first } = trouble;
  return troubleCard(trouble, {
    title: "First divergence:",
    summary: first.scalar
      ? ["an argument differs: ", name(first.scalar, { class: "value" })]
      : [placeWords(first), first.meaning ? `: ${first.meaning}` : ""],
    reasons: first.reasons,
    stacks: [
      { title: "call stack in A", frames: first.stack },
      { title: "call stack in B", frames: first.stackB },
    ],
    before: first.before,
  });
}
