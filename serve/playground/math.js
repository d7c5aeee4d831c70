/**
 * Mathematics in an answer: the TeX that models write, as MathML; what is not known stays the text it was.
 *
 * Known are $...$, $$...$$, \(...\), \[...\] and a bare \boxed{...}; within them fractions, roots, powers, indices, boxes,
 * text, brackets and the common signs. The source stays in an annotation, so that copying gives it back.
 */

const MATHML = "http://www.w3.org/1998/Math/MathML";
const SPAN = /\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\]/g;
const TOKEN = /\\[a-zA-Z]+|\\.|[0-9]+(?:[.,][0-9]+)*|\s+|./gsu;
const SIGNS = {
  cdot: "⋅", times: "×", div: "÷", pm: "±", mp: "∓", le: "≤", leq: "≤", ge: "≥", geq: "≥", ne: "≠", neq: "≠", approx: "≈",
  equiv: "≡", to: "→", rightarrow: "→", Rightarrow: "⇒", implies: "⇒", infty: "∞", sum: "∑", prod: "∏", int: "∫", in: "∈",
  cup: "∪", cap: "∩", subset: "⊂", ldots: "…", dots: "…", cdots: "⋯", circ: "∘", degree: "°", angle: "∠", mid: "∣", ",": " ",
  ";": " ", ":": " ", "!": "", " ": " ", quad: " ", qquad: "  ", "%": "%", $: "$", "#": "#", "&": "&", _: "_", "{": "{",
  "}": "}", left: "", right: "", displaystyle: "", big: "", Big: "",
};
const LETTERS = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", theta: "θ", lambda: "λ", mu: "μ", pi: "π", rho: "ρ", sigma: "σ",
  phi: "φ", varphi: "φ", omega: "ω", tau: "τ", Delta: "Δ", Sigma: "Σ", Pi: "Π", Omega: "Ω",
};
const NAMES = new Set(["sin", "cos", "tan", "log", "ln", "exp", "max", "min", "gcd", "lcm", "lim", "det", "mod"]);

/** Fill `element` with `text`, its mathematics set. */
export function typeset(element, text) {
  element.replaceChildren(...pieces(text));
}

function pieces(text) {
  const found = [];
  let end = 0;
  for (const span of text.matchAll(SPAN)) {
    found.push(...boxes(text.slice(end, span.index)), math(span[0], span.slice(1).find(Boolean), span[1] ?? span[4]));
    end = span.index + span[0].length;
  }
  return [...found, ...boxes(text.slice(end))];
}

/** Text outside of mathematics, in which models box their answer all the same. */
function boxes(text) {
  const start = text.indexOf("\\boxed{");
  if (start < 0) return text === "" ? [] : [text];
  const end = closing(text, start + "\\boxed".length);
  if (end < 0) return [text];
  const source = text.slice(start, end + 1);
  return [...boxes(text.slice(0, start)), math(source, source, false), ...boxes(text.slice(end + 1))];
}

function closing(text, start) {
  let depth = 0;
  for (let at = start; at < text.length; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === "{") depth++;
    else if (text[at] === "}" && --depth === 0) return at;
  }
  return -1;
}

function math(source, inner, display) {
  const root = make("math", display ? { display: "block" } : {});
  const note = make("annotation", { encoding: "application/x-tex" }, source);
  root.append(make("semantics", {}, new Parser(inner).row(), note));
  return root;
}

/** Recursive descent over the tokens of one formula. */
class Parser {
  constructor(text) {
    this.tokens = text.match(TOKEN) ?? [];
    this.at = 0;
  }

  /** Everything up to `end`, which is taken. */
  row(end = null) {
    const row = make("mrow", {});
    while (this.at < this.tokens.length) {
      if (this.tokens[this.at] === end) {
        this.at++;
        break;
      }
      const part = this.scripted();
      if (part !== null) row.append(part);
    }
    return row;
  }

  /** One atom with its power and its index. */
  scripted() {
    const base = this.atom();
    let [below, above] = [null, null];
    for (;;) {
      this.blank();
      const sign = this.tokens[this.at];
      if (sign === "_" && below === null) below = this.#after();
      else if (sign === "^" && above === null) above = this.#after();
      else break;
    }
    if (below === null && above === null) return base;
    const foot = base ?? make("mrow", {});
    if (below === null) return make("msup", {}, foot, above);
    return above === null ? make("msub", {}, foot, below) : make("msubsup", {}, foot, below, above);
  }

  #after() {
    this.at++;
    return this.argument();
  }

  /** A group in braces, or the next atom. */
  argument() {
    this.blank();
    return this.atom() ?? make("mrow", {});
  }

  blank() {
    while (/^\s+$/.test(this.tokens[this.at] ?? "")) this.at++;
  }

  atom() {
    const token = this.tokens[this.at++];
    if (token === undefined || /^\s+$/.test(token)) return null;
    if (token === "{") return this.row("}");
    if (/^[0-9]/.test(token)) return make("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return make("mi", {}, token);
    if (token[0] !== "\\") return make("mo", {}, token === "-" ? "−" : token);
    return this.command(token.slice(1));
  }

  command(name) {
    if (name === "frac" || name === "dfrac" || name === "tfrac") return make("mfrac", {}, this.argument(), this.argument());
    if (name === "sqrt") return this.#root();
    if (name === "boxed") return make("mrow", { class: "boxed" }, this.argument());
    if (["text", "mathrm", "textbf", "mathbf", "operatorname"].includes(name)) return make("mtext", {}, this.#words());
    if (name in LETTERS) return make("mi", {}, LETTERS[name]);
    if (NAMES.has(name)) return make("mi", {}, name);
    if (name in SIGNS) return SIGNS[name] === "" ? null : make("mo", {}, SIGNS[name]);
    return make("mtext", {}, `\\${name}`);
  }

  #root() {
    this.blank();
    if (this.tokens[this.at] !== "[") return make("msqrt", {}, this.argument());
    this.at++;
    const degree = this.row("]");
    return make("mroot", {}, this.argument(), degree);
  }

  #words() {
    this.blank();
    if (this.tokens[this.at] !== "{") return this.tokens[this.at++] ?? "";
    let words = "";
    for (this.at++; this.at < this.tokens.length && this.tokens[this.at] !== "}"; this.at++) words += this.tokens[this.at];
    this.at++;
    return words;
  }
}

function make(name, attributes, ...children) {
  const element = document.createElementNS(MATHML, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
