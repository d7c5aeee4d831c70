"use strict";
// Draws the problem viewer from the JSON in #data. Text of a model only ever reaches the page through textContent.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 100, NS = "http://www.w3.org/2000/svg";
  const STATUS = {
    correct: ["✓", "ok", "right"], incorrect: ["✗", "no", "wrong"], no_answer: ["–", "un", "no answer"],
    unparseable: ["?", "un", "not readable as an answer"], timeout: ["…", "un", "no verdict: timeout"],
    limit: ["…", "un", "no verdict: limit"], error: ["!", "un", "no verdict: verifier error"], failed: ["!", "un", "failed"],
  };
  const KINDS = [
    ["", "all problems"], ["disagree", "the runs disagree"], ["missed", "a right candidate was not chosen"],
    ["cut", "an answer was cut by length"], ["unjudged", "no verdict or failed"], ["wrong", "all wrong"], ["right", "all right"],
  ];
  const state = { group: 0, kind: "", words: "", trees: false, shown: PAGE, problem: null, run: 0, pruned: true };

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
    return element;
  }
  const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const s = (name, attributes, ...children) => fill(document.createElementNS(NS, name), attributes, children);
  const group = () => data.groups[state.group];
  const mark = (status) => h("span", { class: `mark ${STATUS[status][1]}`, title: STATUS[status][2] }, STATUS[status][0]);
  const number = (value) => value.toLocaleString("en-US");

  // ---- the figure: tokens / FLOPs, kinds of curves, light / dark, tips
  for (const card of document.querySelectorAll("[data-figure]")) {
    const buttons = [...card.querySelectorAll("[data-axis-button]")];
    const show = (axis) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.axisButton === axis));
      for (const part of card.querySelectorAll("[data-axis]")) part.hidden = part.dataset.axis !== axis;
    };
    for (const button of buttons) button.addEventListener("click", () => show(button.dataset.axisButton));
    for (const box of card.querySelectorAll("[data-kind-box]")) {
      const update = () => {
        for (const curve of card.querySelectorAll(".curve")) if (curve.dataset.kind === box.dataset.kindBox) curve.style.display = box.checked ? "" : "none";
      };
      box.addEventListener("change", update);
      update();
    }
  }
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.style.colorScheme = dark ? "light" : "dark";
  });
  const tip = document.body.appendChild(h("div", { id: "tip", hidden: true }));
  document.addEventListener("pointermove", (event) => {
    const owner = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !owner;
    if (!owner) return;
    tip.textContent = owner.dataset.tip;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const top = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${top}px`;
  });

  // ---- one tree
  const FLAT = 84, LEFT = 20, TOP = 24, MOST = 20;
  const hidden = (node) => node.pruned && !state.pruned;
  function placed(nodes) {
    const children = nodes.map(() => []), tops = [];
    nodes.forEach((node, i) => { if (!hidden(node)) (node.up < 0 ? tops : children[node.up]).push(i); });
    const depth = [], y = [];
    const levels = Math.max(1, ...nodes.map((node, i) => (depth[i] = node.up < 0 ? 1 : depth[node.up] + 1)));
    const room = (i) => (levels === 1 ? 27 : nodes[i].pruned ? 23 : 42);
    let next = TOP;
    const place = (i) => {
      const below = children[i];
      below.forEach(place);
      if (below.length) y[i] = (y[below[0]] + y[below[below.length - 1]]) / 2;
      else { y[i] = next + room(i) / 2; next += room(i); }
    };
    tops.forEach(place);
    const longest = Math.max(6, ...nodes.map((node) => (node.leaf || node.pruned ? 0 : snippet(node).length)));
    return { children, depth, y, tops, levels, column: levels > 1 ? 46 + 7 * longest : FLAT, height: next + TOP };
  }
  const whole = (node) => (node.parts || []).map((part) => part[1]).join("");
  function snippet(node) {
    const lines = whole(node).split("\n").map((line) => line.trim()).filter(Boolean);
    const line = lines.length ? lines[lines.length - 1] : "";
    return line.length > MOST ? `${line.slice(0, MOST - 1)}…` : line;
  }
  function scale(nodes) {
    const scores = nodes.map((node) => node.score).filter((value) => value !== undefined);
    const low = Math.min(...scores), high = Math.max(...scores);
    const unit = low >= 0 && high <= 1;
    return (value) => (unit ? value : high > low ? (value - low) / (high - low) : 0.5);
  }
  function drawTree(answer, colour, select) {
    const nodes = answer.nodes, map = placed(nodes), share = scale(nodes);
    const x = (i) => LEFT + map.depth[i] * map.column, y = (i) => map.y[i];
    const rootY = map.tops.length ? (y(map.tops[0]) + y(map.tops[map.tops.length - 1])) / 2 : TOP;
    const edges = [], dots = [];
    nodes.forEach((node, i) => {
      if (map.y[i] === undefined) return;
      const from = node.up < 0 ? [LEFT, rootY] : [x(node.up), y(node.up)];
      const bend = from[0] + (map.levels > 1 ? 22 : map.column * 0.5);
      const kind = node.chosen ? " pick" : node.pruned ? " cut" : "";
      const edge = s("path", { class: `edge${kind}`, d: `M${from[0]} ${from[1]}C${bend} ${from[1]} ${bend - 10} ${y(i)} ${bend + 8} ${y(i)}H${x(i)}` });
      if (node.chosen) edges.push(edge); else edges.unshift(edge);
      dots.push(drawNode(node, i, x(i), y(i), kind, share, map, select));
    });
    const root = s("circle", { cx: LEFT, cy: rootY, r: 6, fill: "currentColor" });
    const width = LEFT + map.levels * map.column + 190;
    return s("svg", { class: colour, width, height: map.height, viewBox: `0 0 ${width} ${map.height}`, role: "group", "aria-label": "search tree" }, edges, root, dots);
  }
  function drawNode(node, i, x, y, kind, share, map, select) {
    const dot = s("circle", { class: "dot", cx: x, cy: y, r: 7 });
    if (node.score !== undefined && !node.pruned) dot.style.fill = `color-mix(in srgb, var(--accent) ${Math.round(100 * share(node.score))}%, var(--panel))`;
    const cross = node.pruned ? s("path", { class: "cross", d: `M${x - 3.5} ${y - 3.5}l7 7m0 -7l-7 7` }) : null;
    const label = [`step ${node.id}`, node.score === undefined ? "no score" : `score ${node.score.toFixed(2)}`, node.pruned ? "pruned" : "",
      node.chosen ? "on the chosen path" : "", node.status ? STATUS[node.status][2] : "", snippet(node)].filter(Boolean).join(", ");
    const open = () => select(i);
    return s("g", {
      class: `node${kind}`, tabindex: 0, role: "button", "aria-label": label, "data-node": i, onclick: open,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } },
    }, s("rect", { class: "hit", x: x - 14, y: y - 12, width: 28, height: 24 }), dot, cross, nodeText(node, x, y, map.levels > 1, !map.children[i].length));
  }
  function nodeText(node, x, y, deep, last) {
    const score = node.score === undefined ? "" : node.score.toFixed(2), words = [];
    const right = (style, text) => words.push(s("text", { class: style, x: x + 13, y: y + 4 }, text));
    if (deep && !(node.pruned && last)) {
      if (!node.leaf) words.push(s("text", { class: "step", x: x - 12, y: y - 6, "text-anchor": "end" }, snippet(node)));
      words.push(s("text", { class: "score", x: x - 12, y: y + 13, "text-anchor": "end" }, score));
    }
    if (node.leaf) {
      const [sign, tone] = STATUS[node.status] || ["·", "un"], final = node.final || (node.end === "length" ? "cut by length" : "no answer");
      right(`leafname ${tone}`, `${sign} ${final}`);
      const aside = [deep ? "" : score && `score ${score}`, node.chosen ? "← chosen" : ""].filter(Boolean).join("   ");
      words[words.length - 1].append(s("tspan", { class: "score", dx: 10 }, aside));
    } else if (last && node.pruned) {
      right("step", snippet(node));
      words[words.length - 1].append(s("tspan", { class: "score", dx: 8 }, score));
    } else if (last && node.end) right("cutname", node.end === "length" ? "cut by length" : "aborted");
    return words;
  }

  // ---- the text along one path
  function drawPath(answer, index) {
    const nodes = answer.nodes, path = [];
    for (let i = index; i >= 0; i = nodes[i].up) path.unshift(nodes[i]);
    const last = path[path.length - 1], share = scale(nodes);
    const box = h("div", { class: "path" });
    if (last && last.leaf) {
      box.append(h("div", { class: "verdict" }, last.status ? mark(last.status) : null, h("b", {}, last.final || "no answer"),
        last.status ? ` · ${STATUS[last.status][2]}` : "", last.reason ? ` · ${last.reason}` : "", last.end === "length" ? " · cut by length" : ""));
    } else if (last && last.pruned) box.append(h("div", { class: "verdict" }, "This branch was pruned."));
    let before = null;
    path.forEach((node, level) => {
      const head = h("div", { class: "step-head" }, h("span", {}, path.length > 1 ? `step ${level + 1}` : `sample ${node.id}`), h("span", {}, `${number(node.tokens || 0)} tokens`));
      if (node.injected) head.append(h("span", {}, `${node.injected} injected`));
      if (node.score !== undefined) head.append(h("span", { class: "nowrap" }, `score ${node.score.toFixed(3)} `, h("span", { class: "meter" }, h("i", { style: `width:${Math.round(100 * share(node.score))}%` }))));
      // In a tree every step is a node of its own, so its score is already there.
      if (path.length === 1 && node.steps && node.steps.length > 1) head.append(h("span", {}, `per step: ${node.steps.slice(-24).join("  ")}`));
      const texts = (node.parts || []).map(([thinking, text]) => {
        const title = thinking === before ? null : h("b", {}, thinking ? "thinking" : "answer");
        before = thinking;
        return h("div", { class: `text ${thinking ? "think" : "answer"}` }, title, text.replace(/^\n+|\n+$/g, ""));
      });
      box.append(h("div", {}, head, texts));
    });
    return box;
  }

  // ---- one problem
  const viewer = document.getElementById("viewer");
  const stage = h("div", { class: "card problem" }), filters = h("div", { class: "filters" }), list = h("div", { class: "card" });
  viewer.append(stage, filters, list);

  function drawProblem() {
    const row = state.problem;
    if (!row) { stage.replaceChildren(h("p", { class: "note" }, "No problem of this selection carries its tree.")); return; }
    const answers = group().trees[row.id];
    if (!answers[state.run]) state.run = Math.max(0, answers.findIndex(Boolean));
    const answer = answers[state.run];
    const head = h("div", { class: "problem-head" },
      h("span", { class: "pid" }, row.id), h("span", { class: "chip" }, "target ", h("b", {}, row.t)),
      row.k.map((kind) => h("span", { class: "chip" }, KINDS.find((known) => known[0] === kind)[1])),
      h("span", { class: "spacer" }), h("button", { type: "button", onclick: () => step(-1) }, "← previous"), h("button", { type: "button", onclick: () => step(1) }, "next →"));
    const tabs = h("div", { class: "tabs", role: "tablist" }, group().runs.map((name, i) => answers[i] && h("button", {
      type: "button", role: "tab", class: `c${i % 8}`, "aria-selected": String(i === state.run), onclick: () => { state.run = i; drawProblem(); },
    }, mark(answers[i].status), `${name} `, h("small", {}, answers[i].final || ""))));
    stage.replaceChildren(head, h("div", { class: "question" }, row.q), tabs, ...drawAnswer(answer, `c${state.run % 8}`));
  }
  function drawAnswer(answer, colour) {
    if (answer.error) return [h("div", { class: "verdict" }, mark("failed"), answer.error)];
    const facts = [`${number(answer.tokens)} tokens`, `${answer.seconds} s`, STATUS[answer.status][2], answer.reason,
      answer.end === "length" ? "cut by length" : "", answer.cause !== "done" ? `stopped: ${answer.cause}` : "", answer.enforced !== "none" ? `thinking budget held by ${answer.enforced}` : ""];
    const line = h("p", { class: "note" }, facts.filter(Boolean).join(" · "));
    if (!answer.nodes.length) return [line, answer.thinking && h("div", { class: "text think" }, h("b", {}, "thinking"), answer.thinking), h("div", { class: "text answer" }, h("b", {}, "answer"), answer.text)].filter(Boolean);
    const holder = h("div", {});
    const select = (i) => {
      for (const node of tree.querySelectorAll(".node")) node.classList.toggle("on", Number(node.dataset.node) === i);
      holder.replaceChildren(drawPath(answer, i));
    };
    const tree = drawTree(answer, colour, select);
    const levels = new Set(answer.nodes.map((node) => node.id.split(".").length)).size;
    const picked = answer.nodes.findLastIndex((node) => node.chosen);
    select(picked >= 0 ? picked : 0);
    const box = h("div", { class: "treebox" }, tree);
    const toggle = answer.nodes.some((node) => node.pruned) ? h("label", { class: "item" },
      h("input", { type: "checkbox", checked: state.pruned, onchange: (event) => { state.pruned = event.target.checked; drawProblem(); } }), "pruned branches") : null;
    const key = h("div", { class: "legend" }, toggle, ...[["pick", "chosen path"], ["cut", "pruned"]].filter(([kind]) => kind === "pick" || toggle).map(([kind, name]) =>
      h("span", { class: "item" }, s("svg", { class: `line ${colour}`, viewBox: "0 0 34 10" }, s("path", { class: `edge ${kind}`, d: "M1 5H33" })), name)),
      answer.nodes.some((node) => node.score !== undefined) ? h("span", { class: "item" }, h("i", { class: "ramp" }), "score, low to high") : null, h("span", { class: "item" }, "select a node to read its path"));
    // The box is in the page only after this returns; then the chosen leaf is brought into view.
    requestAnimationFrame(() => centre(box, tree.querySelector(`[data-node="${picked}"] .dot`)));
    return [line, key, h("div", { class: levels > 1 ? "stack" : "split" }, box, holder)];
  }
  function centre(box, dot) {
    if (!dot) return;
    box.scrollTop = dot.cy.baseVal.value - box.clientHeight / 2;
    box.scrollLeft = dot.cx.baseVal.value - box.clientWidth + 200;
  }
  function open(row, scroll) {
    state.problem = row;
    drawProblem();
    for (const line of list.querySelectorAll("tr")) line.classList.toggle("now", row && line.dataset.id === row.id);
    if (scroll) stage.scrollIntoView({ block: "start" });
  }
  function step(by) {
    const open_ = matching().filter((row) => row.id in group().trees);
    if (open_.length) open(open_[(open_.indexOf(state.problem) + by + open_.length) % open_.length]);
  }

  // ---- all problems
  function matching() {
    const words = state.words.toLowerCase();
    return group().rows.filter((row) => (!state.kind || row.k.includes(state.kind)) && (!state.trees || row.id in group().trees)
      && (!words || [row.id, row.q, row.t, ...row.c.map((cell) => (cell ? cell.join(" ") : ""))].some((text) => text.toLowerCase().includes(words))));
  }
  function drawList() {
    const rows = matching(), trees = group().trees;
    const head = h("tr", {}, h("th", { style: "width:21%" }, "problem"), h("th", {}, "question"), h("th", { style: "width:10%" }, "target"),
      group().runs.map((name, i) => h("th", { style: `width:${Math.min(15, 48 / group().runs.length)}%`, title: name }, h("i", { class: `swatch inline c${i % 8}` }), name)));
    const body = rows.slice(0, state.shown).map((row) => {
      const has = row.id in trees;
      return h("tr", { "data-id": row.id, class: has ? (row === state.problem ? "has now" : "has") : null, onclick: has ? () => open(row, true) : () => {} },
        h("td", { title: row.id }, has ? h("button", { class: "open", type: "button" }, row.id) : row.id), h("td", { class: "q", title: row.q }, row.q), h("td", {}, row.t),
        row.c.map((cell) => h("td", { title: cell ? STATUS[cell[0]][2] : "not run" }, cell ? [mark(cell[0]), cell[1]] : "·")));
    });
    const more = rows.length > state.shown ? h("button", { type: "button", onclick: () => { state.shown += PAGE * 4; drawList(); } }, `show more (${number(rows.length - state.shown)} left)`) : null;
    list.replaceChildren(h("p", { class: "note" }, `${number(rows.length)} of ${number(group().rows.length)} problems; those in blue open their tree above.`),
      h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", {}, head), h("tbody", {}, body))), ...(more ? [more] : []));
  }
  function drawFilters() {
    const option = ([value, text]) => h("option", { value }, value ? `${text} (${number(group().rows.filter((row) => row.k.includes(value)).length)})` : text);
    const again = () => { state.shown = PAGE; drawList(); };
    const groups = data.groups.length > 1 ? h("select", { "aria-label": "task", onchange: (event) => { state.group = Number(event.target.value); start(); } },
      data.groups.map((one, i) => h("option", { value: i, selected: i === state.group }, one.name))) : null;
    filters.replaceChildren(...[groups,
      h("select", { "aria-label": "which problems", onchange: (event) => { state.kind = event.target.value; again(); } }, KINDS.map(option)),
      h("input", { type: "search", placeholder: "find in problem, target or answer", "aria-label": "find", oninput: (event) => { state.words = event.target.value; again(); } }),
      h("label", { class: "item" }, h("input", { type: "checkbox", onchange: (event) => { state.trees = event.target.checked; again(); } }), "with tree"),
    ].filter(Boolean));
  }
  function start() {
    Object.assign(state, { kind: "", words: "", trees: false, shown: PAGE, run: group().best });
    const open_ = group().rows.filter((row) => row.id in group().trees);
    drawFilters();
    drawList();
    open(open_.find((row) => row.k.includes("disagree")) || open_[0] || null);
  }
  start();
})();
