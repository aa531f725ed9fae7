// Text and elements. Whatever a dump says reaches the page as text, never as HTML.

/** An element with attributes (`class`, `title`, …), listeners (`onclick`) and children (elements or texts). */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG. */
function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function replaceAll(id, ...children) {
  document.getElementById(id).replaceChildren(...children.flat(Infinity).filter(Boolean));
}

/** A name of a dump, isolated so that right-to-left letters cannot turn what stands around it. */
function name(text, attributes = {}) {
  return el("bdi", { dir: "ltr", ...attributes }, text);
}

/** A number that a summary spells as text where JSON has none: "NaN", "Infinity". */
function numberOf(value) {
  return value === null || value === undefined ? null : Number(value);
}

/** A number to look at: five digits, ∞ and NaN in words. */
function shown(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const magnitude = Math.abs(value);
  const text = magnitude >= 1e-3 && magnitude < 1e6 ? String(Number(value.toPrecision(5))) : value.toExponential(3);
  return text.replace(/\.?0+e/, "e").replace("e+", "e");
}

function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

const MODULE = /^(Module|Cell)\.(?:(.*)\.)?([^.]+)\.(forward|backward|parameters_grad)(?:\.(\d+))?$/;
const API = /^([^.]+)\.(.*)\.(\d+)\.(forward|backward)$/;

/** What an entry key says. Names of no known form are a path and nothing else. */
function parsedKey(key) {
  const module = MODULE.exec(key);
  if (module) {
    const [, kind, path, cls, stage, index] = module;
    return { kind: "module", prefix: kind, path: path || "", cls, stage, index: index || "" };
  }
  const api = API.exec(key);
  if (api) return { kind: "api", prefix: api[1], path: api[2], cls: "", stage: api[4], index: api[3] };
  return { kind: "other", prefix: "", path: key, cls: "", stage: "", index: "" };
}

const FRAME = /^File "?(.+?)"?, line (\d+), in ([^,\s]+),?\s*(.*)$/;

/** A frame of a call stack: function, place, line of code. Those of libraries stand back. */
function frameRow(text) {
  const found = FRAME.exec(text);
  if (!found) return el("li", {}, name(text));
  return el("li", { class: isLibrary(text) ? "library" : null, title: found[1] }, ...frameWords(found));
}

function frameWords([, file, line, called, code]) {
  return [
    name(called, { class: "function" }),
    " ",
    name(`${shortPath(file)}:${line}`, { class: "dim" }),
    code ? el("code", {}, name(code)) : null,
  ];
}

function isLibrary(frame) {
  return /[\\/](site|dist)-packages[\\/]|[\\/](torch|mindspore)[\\/]nn[\\/]|^File <frozen /.test(frame);
}

/** The innermost frame of the user's own, in a line. */
function ownFrame(frames) {
  const frame = frames.find((text) => !isLibrary(text)) || frames[0];
  const found = FRAME.exec(frame);
  return found ? frameWords(found) : [name(frame)];
}

/** The last folders of a path: what tells files apart. */
function shortPath(path) {
  const parts = path.split("/");
  return parts.length > 4 ? `…/${parts.slice(-3).join("/")}` : path;
}
