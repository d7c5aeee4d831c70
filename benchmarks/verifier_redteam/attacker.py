r"""A searching attacker: parts of accepted wrong answers are tried more often.

Each try draws a gold g, a relation that makes another value of it (5 6 of 56, 1 1/2 of 11/2, g per cent, g!, a pair),
up to three ways to write it that keep its meaning (spaces, braces, fonts, signs of Unicode), and a frame. The answer is
written from the other value, so it is wrong by construction. Every part has a weight, which grows by half when a wrong
answer with it is accepted and decreases slowly otherwise; all parts stay possible. The accepted share is reported per
relation, over the tries with this relation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.verifier_redteam.judges import Ours, Peer
from benchmarks.verifier_redteam.pairs import Golds, Pair, boxed, other, put

ROUND = 100
GROWTH, DECAY, FLOOR, CEILING = 1.5, 0.995, 0.05, 50.0
MIN_TRIES = 100
"""Tries below which a relation has no rate."""

Relation = Callable[[random.Random, int], tuple[str, str]]
"""Of a whole number > 10: a gold made from it, and the writing of another value."""


def _of(gold: str, answer: str) -> Relation:
    """Templates with the places <g>, <w> (another number), <a> and <b> (the parts of the digits), <k> (small)."""

    def relation(rng: random.Random, g: int) -> tuple[str, str]:
        text = str(g)
        at = rng.randrange(1, len(text))
        if len(text) - at == 3 and at <= 3:
            at = len(text) - 1
        k = rng.randint(2, 9)
        places = {"g": g, "w": other(rng, g), "a": text[:at], "b": text[at:], "k": k, "kg": k * g, "k1": k + 1}
        return put(gold, places), put(answer, places)

    return relation


RELATIONS: Mapping[str, Relation] = {
    name: _of(gold, answer)
    for name, gold, answer in (
        ("another number", "<g>", "<w>"),
        ("minus", "<g>", "-<g>"),
        ("per cent", "<g>", r"<g>\%"),
        ("per mille", "<g>", r"<g>\permil"),
        ("inverse", "<g>", r"\frac{1}{<g>}"),
        ("square", "<g>", "<g>^2"),
        ("root", "<g>", r"\sqrt{<g>}"),
        ("factorial", "<g>", "<g>!"),
        ("degrees", r"<g>\%", r"<g>^\circ"),
        ("parts", "<g>", "<a> <b>"),
        ("parts by a comma", "<g>", "<a>,<b>"),
        ("parts by a point", "<g>", "<a>.<b>"),
        ("parts by a semicolon", "<g>", "<a>;<b>"),
        ("parts as a pair", "<g>", "(<a>,<b>)"),
        ("product", "<g>", r"<a>\cdot <b>"),
        ("power", "<g>", "<a>^{<b>}"),
        ("base", "<g>", "<g>_{<k>}"),
        ("ratio", "<g>", "<a>:<b>"),
        ("quotient", "<g>", "<a>/<b>"),
        ("mixed", "<k>1/<g>", r"<k> \frac{1}{<g>}"),
        ("mixed by a slash", "<k>1/<g>", "<k> 1/<g>"),
        ("imaginary", "<g>", "<g>i"),
        ("times a letter", "<g>", "<g>x"),
        ("letter times", "x", "<g>x"),
        ("index", "x_1", "x_{<g>}"),
        ("bar", "x", r"\bar{x}"),
        ("prime", "x", "x'"),
        ("million", "<g>", r"<g> \text{ million}"),
        ("dozen", "<g>", r"<g> \text{ dozen}"),
        ("half", "<g>", r"<g> \text{ and a half}"),
        ("about", "<g>", r"<w> \approx <g>"),
        ("equation", "<g>", "<g> = <w>"),
        ("inequality", "<g>", r"x \ne <g>"),
        ("bound", "<g>", r"\ge <g>"),
        ("set", "<g>", r"\{<g>, <w>\}"),
        ("interval", "<g>", "[<g>, <g>1)"),
        ("plus-minus", "<g>", r"\pm <g>"),
        ("logarithm", "<g>", r"\ln <g>"),
        ("sum", "<g>", "<g>+<k>"),
        ("repeating", "0.<g>", r"0.\overline{<g>}"),
        ("exponent", "<g>", "<g>e<k>"),
        ("unit of a unit", r"<g> \text{ cm}", r"<g> \text{ m}"),
        ("square unit", r"<g> \text{ cm}", r"<g> \text{ cm}^2"),
        ("tuple turned", "(<g>,<k>)", "(<k>,<g>)"),
        ("tuple to interval", "[<k>,<g>1)", "[<k>,<g>1]"),
        ("list counted", "<g>,<g>,-<k>", "<g>,-<k>,-<k>"),
        ("absolute", "<g>-x", "|x-<g>|"),
        ("minimum", "x", r"\min(x,<g>)"),
        ("clip", "x", r"\max(-<g>, x)"),
        ("floor", "n", r"\lfloor n + \frac{n}{<g>0} \rfloor"),
        ("trifle", "x", "x+10^{-<g>}"),
        ("small power", r"\frac{1}{2^{<g>}}", r"\frac{1}{2^{<g>1}}"),
        ("clock", "<k>:00", "<k1>:00"),
        ("cases", "B", r"b_1"),
        ("primes", "<g>", "<g>''"),
        ("exponent of ten", "<g>", r"<g>\times 10^{<k>}"),
        ("decimal shift", "<g>", "<g>0"),
        ("sine", r"\sin(x)", r"\sin(x+10^{-<g>})"),
        ("modulus", "<g>", r"<g> \pmod{<w>}"),
        ("factor", "<g>", r"<g>\pi"),
        ("assignments", "x=<g>, y=-<k>", "-<k>, <g>"),
        ("choose", "<g>", r"\binom{<g>}{<k>}"),
        ("union", "[<k>,<g>1]", r"[<k>,<g>]\cup[<g>2,<g>3]"),
    )
}


def _spaced(rng: random.Random, text: str) -> str:
    """Spaces around signs, where they do not part digits."""
    return "".join(f" {char} " if char in "+=/,;:-" and rng.random() < 0.5 else char for char in text)


def _superscripts(rng: random.Random, text: str) -> str:
    return text.replace("^2", "²").replace("-", "−") if "^{" not in text else text


WRITINGS: Mapping[str, Callable[[random.Random, str], str]] = {
    "as it is": lambda rng, text: text,
    "braces": lambda rng, text: "{" + text + "}",
    "brackets": lambda rng, text: f"({text})",
    "left and right": lambda rng, text: rf"\left({text}\right)",
    "bold": lambda rng, text: rf"\mathbf{{{text}}}",
    "roman": lambda rng, text: rf"\mathrm{{{text}}}",
    "text": lambda rng, text: rf"\text{{{text}}}",
    "spaces": _spaced,
    "display": lambda rng, text: rf"\displaystyle {text}",
    "dollars": lambda rng, text: f"${text}$",
    "thin": lambda rng, text: text.replace(" ", r"\,"),
    "back": lambda rng, text: text.replace(",", r",\!"),
    "tilde": lambda rng, text: text.replace(" ", "~"),
    "quad": lambda rng, text: text.replace(" ", r"\quad "),
    "signs": _superscripts,
    "full width": lambda rng, text: text.translate({48 + i: 0xFF10 + i for i in range(10)}),
    "stop": lambda rng, text: text + ".",
    "named": lambda rng, text: f"x = {text}",
    "stars": lambda rng, text: f"**{text}**",
    "thing": lambda rng, text: rf"{text} \text{{ apples}}",
    "plus": lambda rng, text: f"+{text}",
    "phantom": lambda rng, text: rf"\phantom{{0}}{text}",
    "zero": lambda rng, text: f"{text}+0",
    "one": lambda rng, text: rf"1\cdot {text}",
    "nested": lambda rng, text: rf"\boxed{{{text}}}",
}
FRAMES: Mapping[str, Callable[[random.Random, str], str]] = {
    "box": boxed,
    "phrase": lambda rng, text: f"The answer is ${text}$.",
    "bare phrase": lambda rng, text: f"The answer is {text}.",
    "hash": lambda rng, text: f"#### {text}",
    "tag": lambda rng, text: f"<answer>{text}</answer>",
    "bare": lambda rng, text: text,
    "bold": lambda rng, text: f"**Answer:** {text}",
    "box and more": lambda rng, text: rf"\boxed{{{text}}} is what we wanted.",
    "thinking": lambda rng, text: rf"<think>Hm.</think>Final: {text}",
    "unclosed": lambda rng, text: rf"\boxed{{{text}",
}
MAX_WRITINGS = 3


@dataclass
class Arms:
    """The weights of one kind of part."""

    names: Sequence[str]
    weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with equal weights."""
        self.weights = dict.fromkeys(self.names, 1.0)

    def draw(self, rng: random.Random) -> str:
        """A part, by weight."""
        return rng.choices(list(self.weights), list(self.weights.values()))[0]

    def learn(self, name: str, accepted: bool) -> None:
        """Raise or lower the weight of a part."""
        weight = self.weights[name] * (GROWTH if accepted else DECAY)
        self.weights[name] = min(max(weight, FLOOR), CEILING)


def attacked(judge: Ours | Peer, seed: int, tries: int, golds: Golds, show: int) -> dict[str, Any]:
    """Search against one judge; the rates per relation."""
    rng = random.Random(seed)
    relations, writings, frames = Arms(list(RELATIONS)), Arms(list(WRITINGS)), Arms(list(FRAMES))
    tried: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for _ in range(-(-tries // ROUND)):
        drafts = [_draft(rng, golds, relations, writings, frames) for _ in range(ROUND)]
        accepted = judge.judge([pair for pair, *_ in drafts])
        for (pair, relation, ways, frame), accept in zip(drafts, accepted, strict=True):
            tried[relation] += 1
            hits[relation] += accept
            relations.learn(relation, accept)
            frames.learn(frame, accept)
            for way in ways:
                writings.learn(way, accept)
            if accept and hits[relation] <= show:
                print(f"  {judge.name}: {relation} ({', '.join(ways)}, {frame}): {pair.gold!r} = {pair.text!r}")
    rates = {name: hits[name] / tried[name] for name in RELATIONS if tried[name] >= MIN_TRIES}
    return {"tries": sum(tried.values()), "accepted": sum(hits.values()), "rates": rates, "tried": dict(tried)}


def _draft(
    rng: random.Random, golds: Golds, relations: Arms, writings: Arms, frames: Arms
) -> tuple[Pair, str, list[str], str]:
    fact = golds.fact(rng, 12, 99_999)
    relation, frame = relations.draw(rng), frames.draw(rng)
    ways = [writings.draw(rng) for _ in range(rng.randint(1, MAX_WRITINGS))]
    gold, text = RELATIONS[relation](rng, fact.value)
    for way in ways:
        text = WRITINGS[way](rng, text)
    verifier = rng.choice(("math", "number"))
    return Pair("What is it?", gold, FRAMES[frame](rng, text), False, verifier), relation, ways, frame


def measure(seeds: Sequence[int], tries: int, golds: Golds, peers: Sequence[Peer], show: int) -> dict[str, Any]:
    """Attack every judge on every seed."""
    table = {}
    for judge in (Ours(), *peers):
        table[judge.name] = {str(seed): attacked(judge, seed, tries, golds, show) for seed in seeds}
        judge.close()
    return table


def printed(table: Mapping[str, Any]) -> None:
    """The share accepted and the best relations of every run."""
    for judge, runs in table.items():
        for seed, run in runs.items():
            best = sorted(run["rates"].items(), key=lambda row: -row[1])[:6]
            told = ", ".join(f"{name} {100 * rate:.1f} %" for name, rate in best)
            print(f"{judge}, seed {seed}: {run['accepted']} of {run['tries']} accepted; best relations: {told}")
