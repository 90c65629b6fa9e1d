"use strict";
let data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// --- making things: text goes in as text, never as markup ---

function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}
const make = (tag, attributes = {}, ...children) => put(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) => put(document.createElementNS(SVG, tag), attributes, children);

// --- numbers: a value and its spread are always mean ± standard deviation ---

function number(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e6 ? value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e") : String(+value.toPrecision(digits));
  return text.replace("-", "\u2212").replace("e-", "e\u2212");
}
function amount(value) {  // 1.25M
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= .9995 * size) return +(value / size).toPrecision(3) + letter;
  return value !== 0 && Math.abs(value) < 1e-3 ? number(value, 3) : String(+value.toPrecision(3));
}
const spread = (value, told = number) => value === null ? ["\u2013"] : [told(value.mean), value.std === null ? "" :
  make("span", {class: "soft"}, " \u00b1 " + (value.std === 0 ? "0" : told(+value.std.toPrecision(2))))];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
function spreadOf(values) {
  if (!values.length) return null;
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return {seeds: values.length, mean, std: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null};
}
const extent = columns => columns.flat().reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

// --- downloads: made here, of what is on the page ---

function download(name, type, text) {
  const place = URL.createObjectURL(new Blob([text], {type}));
  const link = make("a", {href: place, download: name.replace(/[^\w.-]+/g, "-")});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(place), 1000);
}
function toCsv(rows) {
  const cell = value => /[",\n\r]/.test(value) ? `"${value.replace(/"/g, '""')}"` : value;
  return rows.map(row => row.map(value => cell(value === null || value === undefined ? "" : String(value))).join(",")).join("\n") + "\n";
}
const PAINT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-opacity", "opacity", "font-size", "font-family", "text-anchor"];
function toSvg(svg, entries) {  // a picture by itself: what the page's style says is written into it, and whose colours they are
  const copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of PAINT) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
    to[i].removeAttribute("tabindex");
  });
  const height = writeKey(copy, entries, box), size = {width: box.width, height};
  put(copy, {xmlns: SVG, ...size, viewBox: `0 0 ${box.width} ${height}`}, []);
  copy.prepend(shape("rect", {...size, fill: getComputedStyle(document.body).backgroundColor}));
  return new XMLSerializer().serializeToString(copy);
}
function writeKey(copy, entries, box) {  // the key below a picture by itself; gives how high both are
  const {color, fontFamily} = getComputedStyle(document.body), root = getComputedStyle(document.documentElement), margin = 16;
  let [x, y] = [margin, box.height + 12];
  for (const [index, label] of entries) {
    const wide = 44 + 7 * label.length;
    if (x > margin && x + wide > box.width) [x, y] = [margin, y + 20];
    copy.append(shape("line", {x1: x, x2: x + 20, y1: y, y2: y, "stroke-width": 3, stroke: root.getPropertyValue(`--c${index % 10}`), "stroke-dasharray": dashes(index)}),
      shape("text", {x: x + 26, y: y + 4, fill: color, "font-size": "12px", "font-family": fontFamily}, label));
    x += wide;
  }
  return entries.length ? y + 14 : box.height;
}
function tools(name, svg, rows, entries = () => []) {  // buttons that save a figure or a table
  const button = (text, act) => {
    const node = make("button", {type: "button", title: `save ${name} as ${text}`}, text);
    node.addEventListener("click", act);
    return node;
  };
  return [svg && button("SVG", () => download(`${name}.svg`, "image/svg+xml", toSvg(svg(), entries()))),
          rows && button("CSV", () => download(`${name}.csv`, "text/csv", toCsv(rows())))].filter(Boolean);
}

// --- tables that sort: a column has a title, what it shows, and what it sorts and is saved by ---

const sorting = new Map();  // of each table, by which column and which way
function fillTable(id, columns, rows, classOf = () => "") {
  const table = $(id), chosen = sorting.get(id), by = chosen && columns.find(column => column.title === chosen.title);
  const sorted = by ? [...rows].sort((a, b) => chosen.way * compare(by.value(a), by.value(b), chosen.way)) : rows;
  table.replaceChildren(
    make("thead", {}, make("tr", {}, columns.map(({title, words}) => {
      const button = make("button", {type: "button", title: `sort by ${title}`}, title), way = by && by.title === title ? chosen.way : 0;
      button.addEventListener("click", () => {
        sorting.set(id, {title, way: way === 1 ? -1 : 1});
        fillTable(id, columns, rows, classOf);
        table.querySelectorAll("thead button")[columns.findIndex(column => column.title === title)].focus();
      });
      return make("th", {scope: "col", ...(words ? {class: "words"} : {}), ...(way ? {"aria-sort": way > 0 ? "ascending" : "descending"} : {})}, button);
    }))),
    make("tbody", {}, sorted.map(row => make("tr", {class: classOf(row)}, columns.map((column, place) =>
      make(place ? "td" : "th", place ? {class: column.bad && column.bad(row) ? "bad" : column.words ? "words" : ""} : {scope: "row", title: column.value(row)},
        column.show ? column.show(row) : [told(column.value(row))]))))));
  return () => [columns.flatMap(column => column.save ? column.save.names : [column.title]),
    ...sorted.map(row => columns.flatMap(column => column.save ? column.save.of(row) : [column.value(row)]))];
}
function compare(a, b, way) {  // what is not there comes last, whichever way
  const none = value => value === null || value === undefined || value === "";
  if (none(a) || none(b)) return way * (none(a) - none(b));
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
}
const ofSpread = (title, get, show = number) => ({title, value: row => get(row) && get(row).mean, show: row => spread(get(row), show),
  save: {names: [`${title} mean`, `${title} std`], of: row => get(row) ? [get(row).mean, get(row).std] : ["", ""]}});
const told = value => typeof value === "string" ? value || "\u2013" : Array.isArray(value) ? value.map(told).join(", ")
  : value === null || value === undefined ? "\u2013" : typeof value === "object" ? JSON.stringify(value) : String(value);
