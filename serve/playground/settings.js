/**
 * The settings of one panel: which model, how it thinks, which strategy with which parameters; and the request they make.
 *
 * Fields of a strategy come from the server's own schema, so a strategy that is installed shows up here by itself. A
 * field that is left empty is not sent: the server's default, shown as its placeholder, holds.
 */

/** Parameters shown at once; the others are under "More settings". */
const SHOWN = 4;

export class Settings {
  /** @param {HTMLFormElement} form a copy of the page's template */
  constructor(form) {
    this.form = form;
    this.offers = { models: [], strategies: [] };
    this.fields = Object.fromEntries([...form.querySelectorAll("[data-name]")].map((el) => [el.dataset.name, el]));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => {
      if (["model", "mode", "strategy"].includes(event.target.dataset.name)) this.#refresh(event.target.dataset.name);
    });
  }

  /** Take over what the server offers; `strategy` is preferred where it is offered and can run. */
  offer(offers, strategy = "") {
    this.offers = offers;
    const kept = this.fields.model.value;
    options(this.fields.model, offers.models.map((model) => [model.id, model.id]), kept);
    this.#refresh("model");
    this.fields.strategy.value = strategy;
    if (this.fields.strategy.selectedIndex < 0) this.fields.strategy.value = "";
    this.#refresh("strategy");
  }

  /** The body of the request for `messages`; throws where the functions are no JSON. */
  body(messages) {
    const { model, temperature, max_tokens, seed, tools } = this.fields;
    return {
      model: model.value,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      ...this.#thinking(),
      ...given({ temperature: number(temperature), max_tokens: number(max_tokens), seed: number(seed) }),
      ...given({ tools: functions(tools.value) }),
      ttc: this.#search(),
    };
  }

  #thinking() {
    const makers = {
      on: () => ({ enable_thinking: true }),
      off: () => ({ enable_thinking: false }),
      budget: () => ({ thinking_budget: number(this.fields.budget) }),
      effort: () => ({ reasoning_effort: this.fields.effort.value }),
    };
    return makers[this.fields.mode.value]?.() ?? {};
  }

  #search() {
    const { strategy, scorer, max_total_tokens } = this.fields;
    const parameters = [...this.form.querySelectorAll("[data-parameter]")].map((field) => [
      field.dataset.parameter,
      READERS[field.dataset.kind](field),
    ]);
    return given({
      strategy: strategy.value || undefined,
      scorer: scorer.value || undefined,
      max_total_tokens: number(max_total_tokens),
      ...Object.fromEntries(parameters),
      progress: "full",
      return_candidates: true,
    });
  }

  /** Bring what depends on `changed` up to date. */
  #refresh(changed) {
    const about = this.offers.models.find((model) => model.id === this.fields.model.value)?.ttc ?? {};
    if (changed === "model") this.#refreshModel(about);
    this.fields.budget.closest("label").hidden = this.fields.mode.value !== "budget";
    this.fields.effort.closest("label").hidden = this.fields.mode.value !== "effort";
    if (changed !== "mode") this.#refreshStrategy(about);
  }

  #refreshModel(about) {
    const { strategy, mode, effort, scorer } = this.fields;
    const own = about.strategy ? `the preset's: ${about.strategy} ${values(about.parameters)}` : "its own: direct";
    const usable = this.offers.strategies.filter((one) => !one.needs_scorer || about.scorers?.length !== 0);
    options(strategy, [["", own], ...usable.map((one) => [one.name, one.name])], strategy.value);
    options(effort, ["none", ...Object.keys(about.efforts ?? {})].map((name) => [name, name]), effort.value || "low");
    options(scorer, [["", "the first there is"], ...(about.scorers ?? []).map((name) => [name, name])], scorer.value);
    if (about.thinking === false) mode.value = "";
    mode.disabled = about.thinking === false;
  }

  #refreshStrategy(about) {
    const chosen = this.offers.strategies.find((one) => one.name === (this.fields.strategy.value || about.strategy || "direct"));
    const settable = this.fields.strategy.value ? Object.entries(chosen?.parameters ?? {}) : [];
    const made = settable.filter(([name]) => !(name in this.fields)).map(([name, schema]) => parameter(name, schema));
    this.form.querySelector(".parameters").replaceChildren(...made.slice(0, SHOWN));
    this.form.querySelector(".rest").replaceChildren(...made.slice(SHOWN));
    this.form.querySelector(".about").textContent = (chosen?.description ?? "").replaceAll("`", "");
    const scored = chosen !== undefined && (chosen.needs_scorer || about.scorers?.length > 0);
    this.fields.scorer.closest("label").hidden = !scored || !this.fields.strategy.value;
    if (this.fields.scorer.closest("label").hidden) this.fields.scorer.value = "";
  }
}

/** A labelled field for one parameter of a strategy. */
function parameter(name, schema) {
  const branch = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
  const kind = [branch.type].flat().find((type) => type !== "null");
  const field = (branch.enum || kind === "boolean" ? chooser : typed)(branch, kind, schema.default);
  field.dataset.parameter = name;
  field.dataset.kind = branch.enum ? "string" : kind;
  const label = document.createElement("label");
  label.title = schema.description ?? "";
  label.append(name.replaceAll("_", " "), " ", field);
  return label;
}

function chooser(schema, kind, standard) {
  const field = document.createElement("select");
  const names = schema.enum ?? ["true", "false"];
  options(field, [["", `default: ${standard}`], ...names.map((one) => [one, one])], "");
  return field;
}

function typed(schema, kind, standard) {
  const field = document.createElement("input");
  const numeric = kind !== "string";
  field.type = numeric ? "number" : "text";
  if (numeric) field.step = kind === "integer" ? "1" : "any";
  if (schema.minimum > -1e6) field.min = schema.minimum;
  if (schema.maximum < 1e6) field.max = schema.maximum;
  field.placeholder = standard === null || standard === undefined ? "none" : escaped(String(standard));
  return field;
}

const READERS = {
  integer: number,
  number,
  string: (field) => (field.value === "" ? undefined : field.value.replaceAll("\\n", "\n")),
  boolean: (field) => (field.value === "" ? undefined : field.value === "true"),
};

function number(field) {
  return field.value === "" ? undefined : Number(field.value);
}

function functions(text) {
  if (text.trim() === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`the functions are no JSON: ${error.message}`);
  }
}

function given(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));
}

function values(parameters) {
  return Object.entries(parameters ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
}

function escaped(text) {
  return text.replaceAll("\n", "\\n");
}

function options(select, pairs, value) {
  select.replaceChildren(...pairs.map(([key, text]) => new Option(text, key)));
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}
