"""The playground: its files, and the page itself in a real browser, by mouse and by keyboard, in light and dark."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from serve.http.app import read_pages
from serve.operator.config import PresetSpec, ServeLimits
from serve.operator.keys import key_from_secret
from tests.serve.actor import actor
from tests.serve.browsing import Playground, browser
from tests.serve.running import Running, running, scripted, served
from tests.serve.slow import SlowEngine, until
from ttc.engines.embedded.engine import embedded
from ttc.scorers.prm import prm

SECRET = "alice-secret-1"
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
QUESTION = "(12+30*2)*3-45/9+17"
GROWTH = """(watched) => {
  window.seen = [];
  const note = () => {
    const now = document.querySelectorAll(watched);
    const size = watched.includes("text") ? [...now].map((el) => el.textContent.length).join() : now.length;
    if (window.seen.at(-1) !== size) window.seen.push(size);
  };
  new MutationObserver(note).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""
"""Notes every size that what is watched has had."""

CONTRAST = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const paint = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = color;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (el) => {
    for (let at = el; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const el of document.querySelectorAll("body *")) {
    const own = [...el.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== "");
    if ((!own && !("value" in el)) || !el.checkVisibility() || el.disabled || el.tagName === "OPTION") continue;
    const [a, b] = [light(rgba(getComputedStyle(el).color)), light(behind(el))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${el.tagName}.${el.className} "${el.textContent.slice(0, 20)}" ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Every visible text whose contrast with what is behind it is below WCAG's AA."""


def test_the_files_are_open_guarded_by_a_policy_and_load_nothing_from_elsewhere() -> None:
    pages = read_pages()
    assert {"/", "/playground/main.js", "/playground/style.css"} <= {page.path for page in pages}
    with running(served(scripted()), keys=[key_from_secret("alice", SECRET)]) as server, server.client() as client:
        for page in pages:
            reply = client.get(page.path)
            assert (reply.status_code, reply.content) == (200, page.content)
            assert reply.headers["content-type"] == page.media_type
            assert reply.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert client.head(page.path).status_code == 200
        assert client.get("/playground/").status_code == 401
        assert client.get("/v1/models").status_code == 401
        assert "/" not in client.get("/openapi.json", headers={"x-api-key": SECRET}).json()["paths"]
    for page in pages:
        text = page.content.decode()
        assert not re.search(r"[\"'(`]/(v1|version|playground)\b", text), f"{page.path}: a proxy may add to a path"
        elsewhere = set(re.findall(r"https?://[^\s\"'`]+", text)) - NAMESPACES
        assert not elsewhere and not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(", text), page.path


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model = served(embedded(), "nano-teacher", scorers={"prm": prm()})
    presets = [PresetSpec("nano-teacher:tree-16", "nano-teacher", "tree", {"n": 16})]
    with running(model, presets=presets, limits=ServeLimits(progress_interval_s=0.02)) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.slow
def test_an_answer_streams_with_its_thought_apart(chromium: Any, server: Running) -> None:
    view = Playground(chromium, server.url).ready()
    view.page.fill("#question", QUESTION)
    view.page.evaluate(GROWTH, ".answer.text, .thinking .text")
    view.page.click("#run")
    view.ends()
    assert len(view.page.evaluate("window.seen")) > 3
    answer, thought = (view.page.locator(one).text_content() for one in (".answer", ".thinking .text"))
    assert "boxed" in answer and "=" in thought and "boxed" not in thought
    assert "tokens" in view.page.locator(".thinking .hint").text_content()
    assert int(view.meter("tokens")) > 10 and "FLOP" in view.meter("compute")
    assert view.page.locator(".search").is_hidden(), "one draw is no search"
    assert view.problems == []


@pytest.mark.slow
def test_a_tree_grows_with_coloured_nodes_and_dimmed_pruned_ones(chromium: Any, server: Running) -> None:
    view = Playground(chromium, server.url).ready()
    view.page.fill("#question", QUESTION)
    view.page.fill("#price", "2")
    view.set("strategy", "tree")
    view.set("n", "16")
    view.page.evaluate(GROWTH, "g.node")
    view.page.click("#run")
    view.ends()
    sizes = view.page.evaluate("window.seen")
    assert len(sizes) > 2 and sizes == sorted(sizes)
    nodes = view.page.locator("g.node")
    assert nodes.count() == sizes[-1] == int(view.meter("nodes")) > 16
    seen = nodes.evaluate_all(
        "all => all.map(el => [el.getAttribute('class'), Number(getComputedStyle(el).opacity),"
        " getComputedStyle(el.querySelector('.dot')).fill])"
    )
    pruned = [opacity for state, opacity, _ in seen if " pruned" in state]
    kept = [opacity for state, opacity, _ in seen if " pruned" not in state]
    assert len(pruned) == int(view.meter("pruned")) > 0
    assert max(pruned) < 0.5 and min(kept) == 1
    assert len({fill for _, _, fill in seen}) > 2, "the colours tell scores apart"
    assert sum(" chosen" in state for state, _, _ in seen) == 1
    assert float(view.meter("price")) == pytest.approx(2e-6 * int(view.meter("tokens").replace(",", "")), rel=0.01)
    view.page.locator(".ledger summary").click()
    assert view.page.locator(".ledger tbody tr.chosen").count() == 1
    assert "scored" in view.page.locator(".costs").text_content()
    assert view.problems == []


@pytest.mark.slow
def test_two_strategies_answer_side_by_side(chromium: Any, server: Running) -> None:
    view = Playground(chromium, server.url).ready()
    view.page.check("#compare")
    view.set("mode", "budget")
    view.set("budget", "5")
    view.set("strategy", "majority")
    view.set("n", "4")
    view.set("model", "nano-teacher:tree-16", panel=1)
    view.set("strategy", "", panel=1)
    view.page.click("#run")
    view.ends(panel=0)
    view.ends(panel=1)
    boxes = [box.bounding_box() for box in view.page.locator(".output").all()]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert view.page.locator(".thinking .hint").nth(0).text_content() == "5 tokens, cap 5, ended by the cap"
    assert view.page.locator("svg.tree").nth(0).locator("g.node").count() == 4
    assert view.page.locator(".costs").nth(1).text_content().startswith("tree on nano-teacher")
    told = view.page.locator("#difference").text_content()
    assert "answer" in told and "times the tokens" in told and "times the time" in told
    assert "B takes" in told and all(float(times) >= 1 for times in re.findall(r"([\d.e+]+) times", told))
    assert view.problems == []


@pytest.mark.slow
def test_stop_frees_the_engine_and_keeps_the_page_usable(chromium: Any) -> None:
    with running(served(SlowEngine(30))) as server:
        view = Playground(chromium, server.url).ready()
        view.set("strategy", "majority")
        for stop in (lambda: view.page.click("#stop"), lambda: view.page.keyboard.press("Escape")):
            view.page.click("#run")
            assert until(lambda: not server.service.idle, 10)
            stop()
            view.ends("stopped")
            assert until(lambda: server.service.idle)
            view.expect(view.page.locator("#run")).to_be_enabled()
        assert view.problems == []


@pytest.mark.slow
def test_a_keyboard_is_enough(chromium: Any, server: Running) -> None:
    view = Playground(chromium, server.url).ready()
    keys, seen = view.page.keyboard, []
    for _ in range(9):
        keys.press("Tab")
        seen.append(view.page.evaluate("document.activeElement.id || document.activeElement.dataset.name"))
    assert seen == ["key", "price", "question", "run", "compare", "follow", None, "model", "mode"]
    keys.press("Tab")
    keys.type("tree")
    for _ in range(7):
        keys.press("Shift+Tab")
    keys.press("Control+A")
    keys.type("7*8-5")
    keys.press("Control+Enter")
    view.ends()
    assert view.page.locator(".costs").text_content().startswith("tree on")
    view.page.locator("svg.tree").focus()
    said = [view.page.locator(".node-text").text_content()]
    for key in ("ArrowLeft", "ArrowDown", "ArrowUp", "ArrowRight", "Home", "End"):
        keys.press(key)
        said.append(view.page.locator(".node-text").text_content())
    assert "chosen" in said[0], "the chosen one is read first"
    assert said[1] != said[0] and said[2] != said[1] and said[3] == said[1]
    active = view.page.locator("svg.tree").get_attribute("aria-activedescendant")
    assert view.page.locator(f"[id='{active}']").get_attribute("aria-selected") == "true"
    unnamed = view.page.locator("input, select, textarea").evaluate_all(
        "all => all.filter(el => el.labels.length === 0 && !el.ariaLabel).map(el => el.outerHTML)"
    )
    assert unnamed == [] and view.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(chromium: Any, server: Running, scheme: Any, tmp_path: Any) -> None:
    view = Playground(chromium, server.url, color_scheme=scheme).ready()
    view.page.check("#compare")
    view.set("strategy", "best_of_n")
    view.page.locator(".settings details").nth(1).locator("summary").click()
    view.page.locator("[data-name=max_tokens]").nth(1).fill("0")
    view.page.click("#run")
    view.ends(panel=0)
    view.ends("failed", panel=1)
    assert "max_tokens must be at least 1" in view.page.locator(".output .error").nth(1).text_content()
    view.page.locator(".ledger summary").first.click()
    assert view.page.evaluate(CONTRAST) == []
    view.page.locator("h1").evaluate("el => el.style.setProperty('color', '#777')")
    assert len(view.page.evaluate(CONTRAST)) == 1, "the check itself can fail"
    view.page.locator("h1").evaluate("el => el.style.removeProperty('color')")
    view.page.screenshot(path=str(tmp_path / f"{scheme}.png"), full_page=True)
    ground = view.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 380) == (scheme == "light")


@pytest.mark.slow
def test_a_tree_fits_zooms_and_shows_its_chosen_path(chromium: Any, server: Running) -> None:
    view = Playground(chromium, server.url, viewport={"width": 390, "height": 800}).ready()
    view.page.fill("#question", QUESTION)
    view.set("strategy", "tree")
    view.set("n", "64")
    view.page.click("#run")
    view.ends()
    frame, tree = view.page.locator(".scroll.tall"), view.page.locator("svg.tree")
    shown = "el => { const [a, b] = [el, el.closest('.scroll')].map((one) => one.getBoundingClientRect());"
    shown += " return a.top >= b.top - 1 && a.bottom <= b.bottom + 1; }"
    assert view.page.locator("g.node.chosen").evaluate(shown), "the chosen node is in view"
    assert not view.page.locator("#keys").is_visible(), "a phone has no such keys"
    sizes = [tree.bounding_box()["height"]]
    for name in ("in", "out", "fit"):
        view.page.click(f"[data-zoom={name}]")
        sizes.append(tree.bounding_box()["height"])
    assert sizes[1] > sizes[0] and sizes[2] == pytest.approx(sizes[0], rel=0.01)
    assert sizes[3] <= frame.bounding_box()["height"] + 1
    assert view.problems == []


@pytest.mark.slow
def test_mathematics_is_set_and_the_answer_is_shown_as_the_answer(chromium: Any) -> None:
    said = r"So \(x^2=\frac{1}{2}\), $\sqrt[3]{8}$ costs $5 \unknown{x}, and \boxed{\frac{7}{2}} it is."
    with running(served(scripted({"12+30*2": [said]}))) as server:
        view = Playground(chromium, server.url).ready()
        view.page.click("#run")
        view.ends()
        answer = view.page.locator(".answer")
        assert answer.locator("mfrac").count() == 2 and answer.locator("msup, mroot").count() == 2
        assert answer.locator(".boxed").count() == 1 and r"\frac{7}{2}" in answer.text_content()
        assert view.page.locator(".final math").count() == 1
        assert "costs $5" in answer.inner_text()
        assert view.problems == []


@pytest.mark.slow
def test_a_conversation_goes_on_under_a_system_prompt_and_is_there_as_code(chromium: Any) -> None:
    with running(served(scripted({"again": ["once more"]}))) as server:
        view = Playground(chromium, server.url).ready()
        view.page.check("#follow")
        view.page.locator("#ask summary").click()
        view.page.fill("#system", "Be 'short'.")
        for question in ("hi", "again"):
            view.page.fill("#question", question)
            view.page.click("#run")
            view.ends()
        assert view.page.locator(".turns li").all_text_contents() == ["hi", "hello there"]
        assert view.page.locator(".answer").text_content() == "once more"
        view.page.locator(".request summary").click()
        curl = view.page.locator(".code").text_content()
        assert "Be '\\''short'\\''." in curl and "hello there" in curl and server.url in curl
        told = json.loads(subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True).stdout)
        assert told["choices"][0]["message"]["content"] == "once more"
        view.page.click("[data-as=Python]")
        code = view.page.locator(".code").text_content()
        out: list[Any] = []
        exec(compile(code, "snippet", "exec"), {"print": out.append})
        assert out == ["once more"]
        view.page.uncheck("#follow")
        assert view.page.locator(".turns").is_hidden() and view.problems == []


@pytest.mark.slow
def test_calls_of_functions_are_shown(chromium: Any) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    with running(served(actor())) as server:
        view = Playground(chromium, server.url).ready()
        view.page.locator(".settings summary").click()
        view.page.fill("[data-name=tools]", json.dumps([tool]))
        view.page.click("#run")
        view.ends()
        assert view.page.locator(".calls li").text_content() == 'weather{\n  "city": "Paris"\n}'
        view.page.fill("[data-name=tools]", "[")
        view.page.click("#run")
        view.ends("failed")
        assert "no JSON" in view.page.locator(".output .error").text_content()
        assert view.problems == []


@pytest.mark.slow
def test_text_of_a_model_is_text(chromium: Any) -> None:
    hostile = "<think><b>bold</b></think><img src=x onerror=\"document.title='owned'\"><script>1</script>"
    with running(served(scripted({"12+30*2": [hostile]}))) as server:
        view = Playground(chromium, server.url).ready()
        view.set("strategy", "majority")
        view.page.click("#run")
        view.ends()
        assert "onerror" in view.page.locator(".answer").text_content()
        assert view.page.locator(".output img, .output script, .output b").count() == 0
        assert view.page.title() == "ttc playground" and view.problems == []


@pytest.mark.slow
def test_a_key_is_asked_for_and_stays_in_memory(chromium: Any) -> None:
    with running(served(scripted()), keys=[key_from_secret("alice", SECRET)]) as server:
        view = Playground(chromium, server.url)
        view.expect(view.page.locator("#trouble")).to_contain_text("a key is needed")
        assert view.page.evaluate("document.activeElement.id") == "key"
        view.page.keyboard.type(SECRET)
        view.page.keyboard.press("Tab")
        view.ready()
        assert view.page.locator("#trouble").is_hidden()
        view.page.fill("#question", "hi")
        view.page.keyboard.press("Control+Enter")
        view.ends()
        kept = view.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        assert kept == [0, 0, ""]
        view.page.reload()
        view.expect(view.page.locator("#trouble")).to_contain_text("a key is needed")
