/**
 * The page: a question, one panel or two, and the keys that ask and stop.
 */

import { Api } from "./api.js";
import { difference } from "./difference.js";
import { Panel } from "./panel.js";

const byId = (id) => document.getElementById(id);
const [question, compare, run, stop] = ["question", "compare", "run", "stop"].map(byId);
const api = new Api();
const panels = [new Panel("A", price), new Panel("B", price)];
/** What panel B starts with, so that two panels differ: the first of these that is offered. */
const CONTRAST = ["tree", "majority"];

function price() {
  return byId("price").value === "" ? null : Number(byId("price").value);
}

function shown() {
  return compare.checked ? panels : panels.slice(0, 1);
}

function arrange() {
  byId("panels").replaceChildren(...shown().map((panel) => panel.root));
  byId("panels").classList.toggle("two", compare.checked);
}

/** Read what the server offers; what goes wrong is said, and the key can be given. */
async function connect() {
  const trouble = byId("trouble");
  trouble.hidden = true;
  try {
    const offers = await api.offers();
    const count = offers.models.length;
    byId("server").textContent = `version ${offers.version}, ${count === 1 ? "1 model" : `${count} models and presets`}`;
    const scored = offers.models[0]?.ttc?.scorers?.length > 0;
    const names = offers.strategies.filter((one) => scored || !one.needs_scorer).map((one) => one.name);
    panels[0].settings.offer(offers);
    panels[1].settings.offer(offers, CONTRAST.find((name) => names.includes(name)));
    run.disabled = false;
  } catch (error) {
    run.disabled = true;
    byId("server").textContent = "not connected";
    trouble.textContent = error.message;
    trouble.hidden = false;
    if (error.status === 401) byId("key").focus();
  }
}

async function ask() {
  if (run.disabled || !byId("ask").reportValidity()) return;
  busy(true);
  byId("difference").hidden = true;
  const asked = { question: question.value, system: byId("system").value.trim(), follow: byId("follow").checked };
  await Promise.all(shown().map((panel) => panel.run(api, asked)));
  busy(false);
  tell(shown().map((panel) => panel.outcome()));
}

/** Say what two whole replies differ in. */
function tell(outcomes) {
  if (outcomes.length < 2 || outcomes.includes(null)) return;
  byId("difference").textContent = difference(...outcomes);
  byId("difference").hidden = false;
}

/** Swap which of the two buttons can be pressed; a disabled one would swallow keys, so focus moves with it. */
function busy(running) {
  const [off, on] = running ? [run, stop] : [stop, run];
  on.disabled = false;
  if (document.activeElement === off) on.focus();
  off.disabled = true;
  compare.disabled = running;
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
stop.addEventListener("click", () => panels.forEach((panel) => panel.stop()));
compare.addEventListener("change", arrange);
byId("follow").addEventListener("change", () => panels.forEach((panel) => panel.forget()));
byId("key").addEventListener("change", (event) => {
  api.key = event.target.value;
  connect();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
  if (event.key === "Escape") panels.forEach((panel) => panel.stop());
});

arrange();
connect();
