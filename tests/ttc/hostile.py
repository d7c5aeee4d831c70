"""Texts made to hang, crash, exhaust or fool a verifier, by name."""

from __future__ import annotations

from collections.abc import Iterator

MEGA = 1_000_000


def hostile_texts() -> dict[str, str]:
    """Every hostile text by its name."""
    made = dict(_all())
    made.update({f"phrase {name}": f"The answer is {text}" for name, text in _finals() if len(text) < 2000})
    return made


def _all() -> Iterator[tuple[str, str]]:
    for name, final in _finals():
        yield f"box {name}", rf"\boxed{{{final}}}"
    yield from _texts()


def _finals() -> Iterator[tuple[str, str]]:
    yield from _large_values()
    yield from _deep_nesting()
    yield from _long_lists()
    yield from _code()
    yield from _odd_characters()
    yield from _beyond_the_grammar()


def _large_values() -> Iterator[tuple[str, str]]:
    for height in (3, 4, 6, 12, 30, 100):
        yield f"power tower {height}", "10^{" * height + "10" + "}" * height
    yield "power tower of letters", "x^{" * 20 + "x" + "}" * 20
    yield "power tower right", "9^9^9^9^9^9"
    yield "stars", "9**9**9**9**9"
    yield "factorial 10^10", "(10^{10})!"
    yield "factorial 10^6", "1000000!"
    yield "factorial of factorial", "((100!)!)!"
    yield "five factorials", "9!!!!!"
    yield "many factorials", "3" + "!" * 3000
    yield "binomial", r"\binom{10^{9}}{5\cdot 10^{8}}"
    yield "exp of exp", r"\exp(\exp(\exp(\exp(100))))"
    yield "sinh", r"\sinh(10^{100})"
    yield "sine of a huge number", r"\sin(10^{1000000})"
    yield "sine of 10^300", r"\sin(10^{300})"
    yield "root of a huge degree", r"\sqrt[1000000007]{2}"
    yield "root of degree zero", r"\sqrt[0]{2}"
    yield "zero denominator", r"\frac{1}{0}"
    yield "zero to the zero", "0^0"
    yield "zero to a negative power", r"0^{-1}"
    yield "log of zero", r"\ln 0"
    yield "tangent of a pole", r"\tan(\pi/2)"
    yield "float overflow", "1e9999"
    yield "exponent overflow", "1e99999999"
    yield "tiny", "1e-9999"
    yield "4301 digits", "9" * 4301
    yield "100000 digits", "9" * 100_000
    yield "a million decimals", "0." + "3" * MEGA
    yield "1000 digits to a power", "7" * 1000 + "^{1000}"
    yield "expanded power", "(x+1)^{5000}"
    yield "expanded power of many letters", "(a+b+c+d+f+g+h)^{999999}"
    yield "negative huge power", "2^{-10^{15}}"
    yield "fractional huge power", "2^{10^{15}+0.5}"
    yield "gcd of giants", r"\gcd(10^{999}, 7^{999})"
    yield "base out of range", "12_{99999999999}"
    yield "repeating decimal", r"0.\overline{" + "142857" * 100 + "}"
    yield "difference of near giants", r"(10^{6000}+1)-10^{6000}"


def _deep_nesting() -> Iterator[tuple[str, str]]:
    for depth in (50, 500, 5000, 100_000):
        yield f"parentheses {depth}", "(" * depth + "1" + ")" * depth
        yield f"roots {depth}", r"\sqrt{" * depth + "2" + "}" * depth
        yield f"fractions {depth}", r"\frac{1}{1+" * depth + "1" + "}" * depth
    yield "open parentheses", "(" * 20_000
    yield "open braces", "{" * 20_000
    yield "nested boxes", r"\boxed{" * 20_000 + "1" + "}" * 20_000
    yield "nested text", r"\text{" * 3000 + "1" + "}" * 3000
    yield "nested bars", "|" * 4000
    yield "minus signs", "-" * 4000 + "1"
    yield "nested sets", r"\{" * 2000 + "1" + r"\}" * 2000
    yield "nested functions", r"\sin(" * 3000 + "x" + ")" * 3000
    yield "subscripts", "x" + "_{x" * 2000 + "}" * 2000
    yield "matrices in matrices", r"\begin{pmatrix}" * 200 + "1" + r"\end{pmatrix}" * 200
    yield "moderate fractions", r"\frac{1}{1+" * 38 + "x" + "}" * 38
    yield "moderate roots", r"\sqrt{1+" * 38 + "2" + "}" * 38
    yield "moderate functions", r"\sin(" * 19 + "x" + ")" * 19


def _long_lists() -> Iterator[tuple[str, str]]:
    yield "plus signs", "+".join(["1"] * 5000)
    yield "short plus signs", "+".join(["x"] * 700)
    yield "products", r"\cdot".join(["x"] * 500)
    yield "quotients", "/".join(["2"] * 1900)
    yield "set of 300", r"\{" + ",".join(map(str, range(300))) + r"\}"
    yield "set of 300 roots", r"\{" + ",".join(rf"\sqrt{{{n}}}" for n in range(300)) + r"\}"
    yield "set of 60 roots", r"\{" + ",".join(rf"\sqrt{{{n}}}" for n in range(60)) + r"\}"
    yield "tuple of 1000", "(" + ",".join(["1"] * 1000) + ")"
    yield "repeated numbers", "1 " * 200_000
    yield "repeated letters", "x" * 200_000
    yield "commas", "," * 4000
    yield "equals", "=".join(["x"] * 1500)
    yield "inequalities", "<".join(["x"] * 1500)
    yield "unions", r"\cup".join(["(0,1)"] * 200)
    yield "ratios", ":".join(["1"] * 1400)
    yield "thousands groups", "111," * 50_000
    yield "megabyte of digits", "7" * MEGA
    yield "megabyte of words", "word " * (MEGA // 5)
    yield "megabyte of backslashes", "\\" * MEGA
    yield "megabyte of dollars", "$" * MEGA
    yield "many variables", "+".join(f"x_{{{n}}}" for n in range(250))
    yield "wide matrix", r"\begin{pmatrix}" + "&".join(["1"] * 600) + r"\end{pmatrix}"
    yield "plus-minus", r"\pm 1 \pm 2 \pm 3 \pm 4"
    yield "tall polynomial", "+".join(f"{n}x^{{{n}}}" for n in range(200))


def _code() -> Iterator[tuple[str, str]]:
    yield "import", "__import__('os').system('touch /tmp/ttc_was_here')"
    yield "eval", "eval(\"__import__('os').system('touch /tmp/ttc_was_here')\")"
    yield "exec", "exec(open('/etc/passwd').read())"
    yield "lambda", "(lambda: [].append(1))()"
    yield "subclasses", "().__class__.__bases__[0].__subclasses__()"
    yield "format string", "{0.__class__.__init__.__globals__}"
    yield "percent format", "%s%s%s%n%n"
    yield "shell", "$(touch /tmp/ttc_was_here); `id`"
    yield "while", "while True: pass"
    yield "sympify", "Symbol('x').func(open('/tmp/ttc_was_here','w'))"
    yield "json", '{"status": "ok", "equal": true}'
    yield "reply frame", "\x00\x00\x00\x10" + '{"equal":true}'
    yield "pickle", "cos\nsystem\n(S'touch /tmp/ttc_was_here'\ntR."
    yield "html", "<script>alert(1)</script>"
    yield "sql", "'; DROP TABLE golds; --"
    yield "latex input", r"\input{/etc/passwd}"
    yield "latex write", r"\immediate\write18{touch /tmp/ttc_was_here}"
    yield "latex loop", r"\def\x{\x\x}\x"
    yield "new command", r"\newcommand{\a}{\a\a}\a"
    yield "correct word", "correct"
    yield "always equal", "__eq__"


def _odd_characters() -> Iterator[tuple[str, str]]:
    yield "nul", "\x00"
    yield "nul inside", "5\x005"
    yield "lone surrogate", "\ud800"
    yield "surrogates", "\ud800\udfff" * 500
    yield "right to left", "\u202e5\u202c"
    yield "zero width", "5\u200b\u200d\ufeff" * 100
    yield "combining marks", "5" + "\u0301" * 5000
    yield "ligature blow-up", "\ufdfa" * 4000
    yield "emoji", "🙂" * 1000
    yield "superscript digits", "2" + "⁹" * 2000
    yield "roman numerals", "Ⅷ"
    yield "circled digits", "⑤"
    yield "mixed digits", "١2३"
    yield "control characters", "".join(map(chr, range(32)))
    yield "private use", "\ue000\U0010ffff"
    yield "vertical fractions", "½" * 500
    yield "newlines", "\n" * 5000 + "5"
    yield "non-breaking spaces", "5\u00a0" * 1000
    yield "only braces", "}{"
    yield "only backslash", "\\"
    yield "tabs and returns", "\t\r\v\f5"


def _beyond_the_grammar() -> Iterator[tuple[str, str]]:
    yield "sum to 10^9", r"\sum_{k=1}^{1000000000} \frac{1}{k}"
    yield "sum of powers", r"\sum_{k=1}^{10^{10}} k^{k}"
    yield "nested sums", r"\sum_{a=1}^{99}\sum_{b=1}^{99}\sum_{c=1}^{99}\sum_{d=1}^{99} \sin(abcd)"
    yield "product to 10^7", r"\prod_{k=1}^{10000000} (1+\frac{1}{k^2})"
    yield "odd integral", r"\int_0^{\pi} \frac{\sin(x^x)}{x^{x^x}+\cos(e^x)} dx"
    yield "nested integrals", r"\int_0^1\int_0^1\int_0^1 e^{xyz}\sin(x+y+z) dx dy dz"
    yield "limit", r"\lim_{x\to 0} \frac{\sin(\tan x)-\tan(\sin x)}{x^7}"
    yield "limit at infinity", r"\lim_{n\to\infty} n^{n^n}"
    yield "derivative", r"\frac{d}{dx} x^{x^{x^x}}"
    yield "sum in a tower", r"10^{10^{\sum_{k=1}^{10} k}}"
    yield "factorial sum", r"\sum_{k=1}^{100000} k!"
    yield "big matrix power", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{1000000}"
    yield "determinant", r"\det\begin{pmatrix}1&2\\3&4\end{pmatrix}"
    yield "modulus", r"7^{10^{10}} \bmod 13"
    yield "modulus before spaces", "mod" + " " * 3000
    yield "matrix of unlike rows, turned", r"\begin{pmatrix}1&2\\3\end{pmatrix}^T"
    yield "congruence", r"x\equiv 3 \pmod{10^{100}}"
    yield "sum with a long body", r"\sum_{k=1}^{n} " + "+".join(["k"] * 300)
    yield "many commands", r"\alpha\beta" * 400
    yield "unknown commands", r"\foo\bar\baz" * 300


def _texts() -> Iterator[tuple[str, str]]:
    """Whole texts that are hard on extraction."""
    yield "empty", ""
    yield "megabyte of spaces", " " * MEGA
    yield "megabyte of newlines", "\n" * MEGA
    yield "megabyte without an answer", "so we think again. " * (MEGA // 19)
    yield "many boxes", r"\boxed{1} " * 100_000
    yield "many unclosed boxes", r"\boxed{" * 150_000
    yield "many unclosed boxes on lines", "\\boxed{1\n" * 100_000
    yield "many unbraced boxes", r"\boxed 1 " * 100_000
    yield "many phrases", "the answer is " * 70_000
    yield "many colons", "answer: " * 120_000
    yield "many hashes", "#### \n" * 160_000
    yield "many tags", "<answer>" * 120_000
    yield "many open thoughts", "<think>" * 140_000
    yield "many thoughts", "<think>1</think>" * 60_000
    yield "many numbers", "1,111,111 " * 100_000
    yield "long grouped number", "1" + ",111" * 250_000
    yield "slashes", "1/" * 500_000
    yield "phrase with a long tail", "the answer is " + "x " * 400_000
    yield "phrase with spaces", "the answer is" + " " * MEGA + "5"
    yield "the and spaces", ("the" + " " * 1000) * 1000
    yield "or or or", r"\boxed{1} " + "or " * 300_000
    yield "braces", "{}" * 500_000
    yield "escaped braces", r"\boxed{\{" * 50_000
    yield "phrase with dollars", "the answer is " + "$" * 4000
    yield "phrase with commas", "the answer is " + "1," * 2000
    yield "phrase with letters", "the answer is " + "ab1" * 1300
