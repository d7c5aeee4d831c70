/**
 * The search tree as SVG: the question at the left, one column a step, coloured by score, pruned branches dimmed.
 *
 * To a keyboard and a screen reader it is a list box: arrow keys walk from node to node, each is read with its score.
 */

const SVG = "http://www.w3.org/2000/svg";
const ROW = { least: 9, most: 24, height: 300 };
const COLUMN = { least: 26, most: 150 };
const MARGIN = 16;
/** Factors of a press, and the ends of the scale. */
const ZOOM = { in: 1.4, out: 1 / 1.4, least: 0.15, legible: 0.6, most: 4 };

export class Tree {
  #nodes = new Map();
  #places = new Map();
  #selected = null;
  #scale = 1;
  #size = [0, 0];

  /**
   * @param {SVGElement} svg
   * @param {HTMLElement} detail where the selected node's text goes
   * @param {HTMLElement} range where the ends of the colour scale are written
   */
  constructor(svg, detail, range) {
    [this.svg, this.detail, this.range] = [svg, detail, range];
    this.svg.id = `tree-${Math.random().toString(36).slice(2)}`;
    svg.addEventListener("keydown", (event) => this.#walk(event));
    svg.addEventListener("click", (event) => this.#select(event.target.closest("[data-path]")?.dataset.path));
    svg.addEventListener("focus", () => this.#select(this.#selected ?? this.#chosen()));
    this.clear();
  }

  get size() {
    return this.#nodes.size;
  }

  clear() {
    this.#nodes.clear();
    this.#places.clear();
    this.#selected = null;
    this.#scale = 1;
    this.detail.hidden = true;
    this.edges = make("g", { class: "edges", "aria-hidden": "true" });
    this.svg.replaceChildren(this.edges);
    this.svg.removeAttribute("aria-activedescendant");
  }

  /** Take over nodes as the server tells them: each whole, new or changed. */
  update(nodes) {
    for (const told of nodes) {
      if (told.path.length === 0) continue; // the question itself, which is always there
      const key = told.path.join(".");
      const known = this.#nodes.get(key) ?? this.#create(key);
      known.told = told;
    }
    if (nodes.length === 0 || this.size === 0) return;
    this.#layout();
    this.#paint();
    if (this.#selected !== null) this.#describe();
  }

  #create(key) {
    const shape = make("g", { class: "node", role: "option", id: `${this.svg.id}-${key}`, "data-path": key });
    shape.append(make("circle", { class: "ring", r: 8.5 }), make("circle", { class: "dot", r: 5 }));
    const edge = make("path", {});
    this.edges.append(edge);
    this.svg.append(shape);
    const node = { key, shape, edge, told: null };
    this.#nodes.set(key, node);
    return node;
  }

  /** The nearest ancestor that is drawn; null: the question. */
  #parent(node) {
    for (let path = node.told.path.slice(0, -1); path.length > 0; path = path.slice(0, -1)) {
      const found = this.#nodes.get(path.join("."));
      if (found) return found;
    }
    return null;
  }

  /** Leaves get a row each in the order of their paths; a parent stands in the middle of its children. */
  #layout() {
    const ordered = [...this.#nodes.values()].sort((a, b) => compare(a.told.path, b.told.path));
    const children = new Map([[null, []]]);
    for (const node of ordered) children.set(node, []);
    for (const node of ordered) children.get(this.#parent(node)).push(node);
    const leaves = ordered.filter((node) => children.get(node).length === 0).length;
    const depth = Math.max(...ordered.map((node) => node.told.path.length));
    const row = clamp(ROW.height / leaves, ROW);
    const width = this.svg.parentElement.clientWidth || 600;
    const column = clamp((width - 2 * MARGIN) / depth, COLUMN);
    let next = 0;
    const rows = new Map();
    const place = (node) => {
      const below = children.get(node).map(place);
      const y = below.length === 0 ? next++ : (below[0] + below.at(-1)) / 2;
      rows.set(node, y);
      return y;
    };
    place(null);
    this.#places.clear();
    for (const [node, y] of rows) {
      const x = MARGIN + (node?.told.path.length ?? 0) * column;
      this.#places.set(node?.key ?? "", { x, y: MARGIN + y * row });
    }
    const [w, h] = [2 * MARGIN + depth * column, 2 * MARGIN + Math.max(leaves - 1, 0) * row];
    this.#size = [w, h];
    this.svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    this.#resize();
  }

  #resize() {
    const [w, h] = this.#size;
    set(this.svg, { width: w * this.#scale, height: h * this.#scale });
  }

  /** Once it has grown: the whole tree in its frame where its nodes stay large enough, else the chosen path in view. */
  rest() {
    if (this.size === 0) return;
    this.zoom("fit");
    if (this.#scale >= ZOOM.legible) {
      this.#scale = Math.min(this.#scale, 1);
      this.#resize();
      return;
    }
    this.#scale = 1;
    this.zoom("chosen");
  }

  /** `in`, `out`, `fit` the whole tree into its frame, or bring the `chosen` path into view. */
  zoom(how) {
    if (this.size === 0) return;
    const frame = this.svg.parentElement;
    const [w, h] = this.#size;
    const wanted = how === "fit" ? Math.min(frame.clientWidth / w, frame.clientHeight / h) : this.#scale * (ZOOM[how] ?? 1);
    this.#scale = clamp(wanted, ZOOM);
    this.#resize();
    const place = how === "chosen" ? this.#places.get(this.#chosen()) : undefined;
    if (place === undefined) return;
    frame.scrollTop = place.y * this.#scale - frame.clientHeight / 2;
    frame.scrollLeft = place.x * this.#scale - frame.clientWidth / 2;
  }

  #paint() {
    const nodes = [...this.#nodes.values()];
    const scores = nodes.map((node) => node.told.score).filter((score) => score !== null);
    const [low, high] = [Math.min(...scores), Math.max(...scores)];
    this.range.textContent = scores.length ? `score ${low.toFixed(2)} to ${high.toFixed(2)}` : "no scores";
    const chosen = this.#chosen();
    for (const node of nodes) {
      const { told, shape, edge } = node;
      const parent = this.#parent(node);
      const [from, to] = [this.#places.get(parent?.key ?? ""), this.#places.get(node.key)];
      const middle = (from.x + to.x) / 2;
      const onWay = chosen !== null && (chosen === node.key || chosen.startsWith(`${node.key}.`));
      set(edge, { d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}` });
      edge.setAttribute("class", `${told.state}${onWay ? " way" : ""}`);
      set(shape, { transform: `translate(${to.x} ${to.y})`, "aria-label": label(told) });
      shape.setAttribute("class", `node ${told.state}${told.score === null ? " unscored" : ""}${onWay ? " way" : ""}`);
      const share = told.score === null || high === low ? 1 : (told.score - low) / (high - low);
      shape.style.setProperty("--share", `${Math.round(100 * share)}%`);
    }
  }

  #chosen() {
    return [...this.#nodes.values()].find((node) => node.told.state === "chosen")?.key ?? null;
  }

  #select(key) {
    const found = this.#nodes.get(key) ?? this.#nodes.values().next().value;
    if (!found) return;
    for (const node of this.#nodes.values()) node.shape.setAttribute("aria-selected", String(node === found));
    this.#selected = found.key;
    this.svg.setAttribute("aria-activedescendant", found.shape.id);
    found.shape.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.#describe();
  }

  #describe() {
    const { told } = this.#nodes.get(this.#selected);
    this.detail.hidden = false;
    this.detail.textContent = `${label(told)}\n${told.text}`;
  }

  #walk(event) {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || this.#nodes.size === 0) return;
    event.preventDefault();
    const here = this.#nodes.get(this.#selected) ?? this.#nodes.values().next().value;
    const nodes = [...this.#nodes.values()].sort((a, b) => compare(a.told.path, b.told.path));
    this.#select(step(here, nodes, (node) => this.#parent(node))?.key ?? here.key);
  }
}

/** Where each key leads to: up and down within a step of the search, left to the parent, right to the first child. */
const STEPS = {
  ArrowLeft: (here, nodes, parent) => parent(here),
  ArrowRight: (here, nodes, parent) => nodes.find((node) => parent(node) === here),
  ArrowUp: (here, nodes) => level(here, nodes).at(Math.max(level(here, nodes).indexOf(here) - 1, 0)),
  ArrowDown: (here, nodes) => level(here, nodes)[level(here, nodes).indexOf(here) + 1],
  Home: (here, nodes) => nodes[0],
  End: (here, nodes) => nodes.at(-1),
};

function level(here, nodes) {
  return nodes.filter((node) => node.told.path.length === here.told.path.length);
}

function label(told) {
  const score = told.score === null ? "no score" : `score ${told.score.toFixed(3)}`;
  const thinking = told.thinking ? ", thinking" : "";
  return `${told.path.join(".")}: ${told.state}, ${score}, ${told.tokens} tokens${thinking}`;
}

function compare(a, b) {
  const at = a.findIndex((step, i) => step !== b[i]);
  return at < 0 ? a.length - b.length : at >= b.length ? 1 : a[at] - b[at];
}

function clamp(value, { least, most }) {
  return Math.min(Math.max(value, least), most);
}

function make(name, attributes) {
  return set(document.createElementNS(SVG, name), attributes);
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
