/**
 * One panel: its settings, one question at a time, and everything that is seen of the reply.
 *
 * Text of a model is only ever set as text. Drawing is bound to animation frames, so a fast stream costs no more.
 */

import { typeset } from "./math.js";
import { Settings } from "./settings.js";
import { SNIPPETS } from "./snippets.js";
import { Reply } from "./stream.js";
import { Tree } from "./tree.js";

export class Panel {
  #reply = new Reply();
  #controller = null;
  #started = 0;
  #ended = 0;
  #drawn = 0;
  /** What was said so far, where the conversation goes on. */
  #turns = [];
  #body = null;

  /** @param {string} name @param {() => number|null} price of a million tokens */
  constructor(name, price) {
    [this.name, this.price] = [name, price];
    this.root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    const find = (selector) => this.root.querySelector(selector);
    find("legend").textContent = `How to answer, ${name}`;
    this.settings = new Settings(find("form"));
    this.output = find(".output");
    this.output.setAttribute("role", "group");
    this.output.setAttribute("aria-label", `Reply ${name}`);
    [this.state, this.error, this.answer] = [find(".state"), find(".error"), find(".answer")];
    [this.thinking, this.search, this.ledger] = [find(".thinking"), find(".search"), find(".ledger")];
    this.meters = Object.fromEntries([...this.root.querySelectorAll("[data-meter]")].map((el) => [el.dataset.meter, el]));
    [this.final, this.calls, this.turns] = [find(".final"), find(".calls"), find(".turns")];
    [this.request, this.code] = [find(".request"), find(".code")];
    this.tree = new Tree(find("svg"), find(".node-text"), find(".range"));
    this.root.addEventListener("click", (event) => this.#pressed(event.target.closest("button")));
  }

  /** Begin a new conversation. */
  forget() {
    this.#turns = [];
    this.#drawTurns();
  }

  /** What came of the last question, to be compared; null: no whole reply. */
  outcome() {
    const { result, answer } = this.#reply;
    if (result === null) return null;
    const price = this.price() === null ? null : (result.usage.tokens * this.price()) / 1e6;
    const seconds = (this.#ended - this.#started) / 1000;
    return { name: this.name, final: result.final, answer, tokens: result.usage.tokens, seconds, price };
  }

  get running() {
    return this.#controller !== null;
  }

  /** Ask, show what comes, and return when it is over; never throws. */
  async run(api, { question, system, follow }) {
    if (!follow) this.forget();
    this.#begin();
    const turn = { role: "user", content: question };
    const ticking = setInterval(() => this.#draw(), 200);
    let end = "done";
    try {
      const head = system === "" ? [] : [{ role: "system", content: system }];
      this.#body = this.settings.body([...head, ...this.#turns, turn]);
      for await (const chunk of api.chat(this.#body, this.#controller.signal)) {
        this.tree.update(this.#reply.take(chunk));
        this.#later();
      }
      if (this.#reply.error !== null) end = "failed";
      else if (this.#reply.result === null) throw new Error("the stream ended before the answer did");
    } catch (error) {
      end = error.name === "AbortError" ? "stopped" : "failed";
      if (end === "failed") this.#reply.error = error.message;
    }
    clearInterval(ticking);
    this.#end(end);
    if (end === "done" && follow) this.#turns.push(turn, { role: "assistant", content: this.#reply.answer });
  }

  #drawTurns() {
    this.turns.hidden = this.#turns.length === 0;
    this.turns.replaceChildren(...this.#turns.map(({ role, content }) => said(role, content)));
  }

  #pressed(button) {
    if (button?.dataset.zoom) this.tree.zoom(button.dataset.zoom);
    if (button?.dataset.as) this.#copy(button.dataset.as);
  }

  async #copy(kind) {
    this.code.textContent = SNIPPETS[kind](this.#body);
    const told = this.request.querySelector(".copied");
    try {
      await navigator.clipboard.writeText(this.code.textContent);
      told.textContent = "copied";
    } catch {
      told.textContent = "select the text to copy it";
    }
  }

  /** Stop; the server lets go of every branch. */
  stop() {
    this.#controller?.abort();
  }

  #begin() {
    this.#reply = new Reply();
    this.#controller = new AbortController();
    this.#started = performance.now();
    this.tree.clear();
    this.output.setAttribute("aria-busy", "true");
    this.error.hidden = this.search.hidden = this.ledger.hidden = this.request.hidden = this.final.hidden = true;
    this.calls.hidden = true;
    this.answer.hidden = false;
    this.#drawTurns();
    this.#say("waiting");
    this.#draw();
  }

  #end(state) {
    cancelAnimationFrame(this.#drawn);
    this.#ended = performance.now();
    this.#draw();
    this.#controller = null;
    this.output.setAttribute("aria-busy", "false");
    this.error.textContent = this.#reply.error ?? "";
    this.error.hidden = this.#reply.error === null;
    this.#say(state);
    if (this.#reply.result !== null) this.#account(this.#reply.result);
    if (this.#body !== null) this.#offer();
  }

  /** The request as code, to be taken elsewhere. */
  #offer() {
    this.request.hidden = false;
    this.request.querySelector(".copied").textContent = "";
    this.code.textContent = SNIPPETS.curl(this.#body);
  }

  #say(state) {
    if (this.state.dataset.state === state) return;
    this.state.dataset.state = state;
    this.state.textContent = SAID[state];
  }

  #later() {
    cancelAnimationFrame(this.#drawn);
    this.#drawn = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const reply = this.#reply;
    const { count, exact } = reply.tokens();
    show(this.answer, reply.answer, typeset);
    show(this.thinking.lastElementChild, reply.thinking);
    this.thinking.hidden = reply.thinking === "";
    this.search.hidden = this.tree.size < 2;
    this.meters.tokens.textContent = count === 0 ? "–" : `${exact ? "" : "≥ "}${count.toLocaleString("en")}`;
    this.meters.time.textContent = `${((performance.now() - this.#started) / 1000).toFixed(1)} s`;
    this.meters.price.textContent = this.price() === null ? "–" : money((count * this.price()) / 1e6);
    this.meters.compute.textContent = flops(reply.result?.usage.flops);
    this.meters.nodes.textContent = reply.progress?.nodes_total ?? "–";
    this.meters.live.textContent = reply.progress?.live ?? "–";
    this.meters.pruned.textContent = reply.progress?.pruned ?? "–";
    this.meters.best.textContent = reply.progress?.best_score?.toFixed(3) ?? "–";
    if (this.running && reply.error === null) this.#say(phase(reply));
  }

  /** What the reply cost and held, once it is whole. */
  #account(result) {
    const said = this.#reply.answer.trim();
    this.final.hidden = result.final === null || this.#reply.calls.length > 0 || result.final === said;
    this.answer.hidden = said === "" && this.#reply.calls.length > 0;
    if (!this.final.hidden) typeset(this.final, boxed(result.final));
    this.calls.hidden = this.#reply.calls.length === 0;
    this.calls.replaceChildren(...this.#reply.calls.map(called));
    this.tree.rest();
    const { usage, thinking } = result;
    const held = thinking.budget === null ? "no cap" : `cap ${thinking.budget}`;
    const forced = thinking.forced_end ? ", ended by the cap" : "";
    this.thinking.querySelector(".hint").textContent = `${thinking.used} tokens, ${held}${forced}`;
    this.ledger.hidden = false;
    this.ledger.querySelector(".costs").textContent =
      `${result.strategy} on ${result.model}: ${usage.generated} tokens generated (${usage.thinking} of thought), ` +
      `${usage.scored} scored, ${usage.judged} judged, ${usage.overrun} sampled in vain, in ${usage.calls} calls; ` +
      `prompt ${usage.prompt} (${usage.cached} cached); ended: ${result.stop_cause}; seed ${result.seed}`;
    const rows = result.candidates.map((candidate, i) => row(candidate, i === result.chosen));
    this.ledger.querySelector("tbody").replaceChildren(...rows);
  }
}

const SAID = {
  waiting: "waiting for the server",
  searching: "searching",
  thinking: "thinking",
  answering: "answering",
  done: "done",
  stopped: "stopped",
  failed: "failed",
};

function phase(reply) {
  if (reply.answer !== "") return "answering";
  if (reply.thinking !== "") return "thinking";
  return reply.progress === null ? "waiting" : "searching";
}

function row(candidate, chosen) {
  const cells = [
    candidate.path.join("."),
    candidate.final ?? "none",
    candidate.score?.toFixed(3) ?? "–",
    candidate.tokens,
    candidate.finish_reason,
  ];
  const line = document.createElement("tr");
  line.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
  line.title = candidate.text ?? "";
  if (chosen) {
    line.className = "chosen";
    line.firstChild.append(" (chosen)");
  }
  return line;
}

/** A final answer is mathematics where it looks like it. */
function boxed(final) {
  return /[\\^_=]|^[-+\d\s./*()]+$/.test(final) && !final.includes("$") ? `$${final}$` : final;
}

function said(role, content) {
  const line = document.createElement("li");
  line.className = role;
  typeset(line, content);
  return line;
}

function called(call) {
  const line = document.createElement("li");
  const name = Object.assign(document.createElement("strong"), { textContent: call.name });
  line.append(name, Object.assign(document.createElement("pre"), { textContent: pretty(call.arguments) }));
  return line;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** What each element shows. */
const shownTexts = new WeakMap();

/** Set a text; an element that was at its end stays there. */
function show(element, text, set = (target, value) => (target.textContent = value)) {
  if (shownTexts.get(element) === text) return;
  shownTexts.set(element, text);
  const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
  set(element, text);
  if (atEnd) element.scrollTop = element.scrollHeight;
}

function money(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

function flops(value) {
  if (!value) return "–";
  const power = Math.min(Math.floor(Math.log10(value) / 3), 5);
  return `${(value / 1000 ** power).toPrecision(3)}\u00a0${["", "k", "M", "G", "T", "P"][power]}FLOP`;
}
