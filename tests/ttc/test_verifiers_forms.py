"""One answer written in many ways, kind by kind: each way beside its near misses."""

from __future__ import annotations

import pytest

from tests.ttc.kept_verifiers import KeptVerifiers
from ttc.answers import extract, key
from ttc.core import Target
from ttc.verifiers.math import math
from ttc.verifiers.maths.asked import with_question

KEPT = KeptVerifiers(math)
ended = KEPT.ended()


def misjudged(gold: str, right: list[str], wrong: list[str], question: str = "") -> dict[str, str]:
    """The answers whose verdict is not what it should be, with that verdict."""
    wanted = {**dict.fromkeys(right, True), **dict.fromkeys(wrong, False)}
    verdicts = KEPT.judge([(Target(gold, question), rf"\boxed{{{answer}}}") for answer in wanted])
    return {
        answer: verdict.status
        for (answer, is_right), verdict in zip(wanted.items(), verdicts, strict=True)
        if verdict.correct != is_right
    }


def test_a_binomial_coefficient_is_one_however_it_is_written() -> None:
    spellings = [r"C(10,3)", r"{10 \choose 3}", r"\dbinom{10}{3}", r"^{10}C_3", r"{}_{10}C_{3}", r"_{10}C_3", "120"]
    assert misjudged(r"\binom{10}{3}", spellings, ["C(10,4)", "C(3,10)", "(10,3)", "30", r"^{10}C_4"]) == {}
    assert misjudged("C(10,3)", ["120", r"\binom{10}{3}"], ["720", "(10,3)", r"\binom{3}{10}"]) == {}
    assert misjudged(r"\binom{n}{2}", ["C(n,2)", "n(n-1)/2"], ["C(n,3)", r"\frac{n(n+1)}{2}"]) == {}


def test_a_capital_letter_before_coordinates_names_a_point() -> None:
    assert misjudged("(1,2)", ["A(1,2)", "P(1, 2)", "C(1,2)", "Q = (1,2)"], ["A(2,1)", "C(2,1)", "A(1,3)"]) == {}


def test_a_letter_beside_a_number_in_an_expression_is_no_unit() -> None:
    right = [r"\frac{3m}{2}-1", r"\frac{3m-2}{2}", "1.5m - 1", "(3m-2)/2"]
    assert misjudged("(3 m)/2 - 1", right, [r"\frac{3m}{2}+1", "3m-1", "(3m-1)/2", r"\frac{3}{2}-1"]) == {}
    assert misjudged("3 h^2 + 2 h", ["h(3h+2)", "2h+3h^2"], ["3h^2-2h", "5"]) == {}
    assert misjudged("2 g", [r"2 \cdot g", "2g"], [r"3 \cdot g", r"2 \cdot h", "g"]) == {}
    assert misjudged("8 m", ["8 m", "8", "800 cm"], ["8 cm", "5 m + 2 m"]) == {}


def test_a_vector_is_a_column_a_tuple_or_a_list() -> None:
    column = r"\begin{pmatrix}1\\2\end{pmatrix}"
    right = ["(1,2)", "[1,2]", r"\langle 1,2\rangle", "[[1],[2]]", "(1,2)^T", r"[1,2]^\top", r"\binom{1}{2}"]
    wrong = ["(2,1)", "[[2],[1]]", "(1,2,0)", r"\{1,2\}", "1", "(1,-2)", "(1,2]", r"\begin{pmatrix}1&2\end{pmatrix}"]
    assert misjudged(column, right, [*wrong, r"\binom{2}{1}", "2"]) == {}
    assert misjudged("(1,2)", [column, r"\begin{pmatrix}1&2\end{pmatrix}"], [r"\begin{pmatrix}2\\1\end{pmatrix}"]) == {}
    row = r"\begin{pmatrix}1&2&3\end{pmatrix}"
    assert misjudged(row, ["(1,2,3)", "[[1,2,3]]", "[1,2,3]"], ["[[1],[2],[3]]", "(3,2,1)", "[1,2]"]) == {}


def test_a_matrix_may_be_a_list_of_its_rows() -> None:
    matrix = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"
    right = ["[[1,2],[3,4]]", "((1,2),(3,4))", "[(1,2),(3,4)]", "A = [[1,2],[3,4]]", "[1, 2; 3, 4]"]
    wrong = ["[[1,3],[2,4]]", "[1,2,3,4]", "(1,2,3,4)", "[[1,2],[3,5]]", "[[3,4],[1,2]]", "-2", "[[1,2],[3,4],[5,6]]"]
    assert misjudged(matrix, [*right, r"\begin{pmatrix}1&3\\2&4\end{pmatrix}^T"], wrong) == {}
    assert misjudged("[[1,2],[3,4]]", [matrix, "[[1, 2], [3, 4]]"], ["[[1,2],[4,3]]", "[[1,3],[2,4]]"]) == {}
    ragged = r"\begin{pmatrix}1&3\\2\end{pmatrix}^T"
    assert misjudged(matrix, [], [ragged, r"\begin{pmatrix}\end{pmatrix}^T", "()^T"]) == {}


def test_an_interval_may_be_a_condition_or_a_set_by_a_condition() -> None:
    right = [
        r"\{x : x > 2\}",
        r"\{x \in \mathbb{R} \mid x>2\}",
        "x>2",
        "2<x",
        r"]2, \infty[",
        "{x | x > 2}",
        r"x \in (2,\infty)",
    ]
    wrong = [
        r"x \ge 2",
        "x<2",
        r"\{x : x \ge 2\}",
        r"\{x \in \mathbb{Z} : x > 2\}",
        "2",
        r"\{2\}",
        r"x \ne 2",
        r"]-2,\infty[",
    ]
    assert misjudged(r"(2,\infty)", right, wrong) == {}
    right = [r"\{x : -2 \le x < 3\}", r"x \ge -2 \text{ and } x < 3", r"\{x : x \ge -2 \text{ and } x < 3\}", "[-2,3["]
    wrong = ["(-2,3)", "[-2,3]", "-2<x<3", "]-2,3[", r"\{-2,3\}", r"x \le -2 \text{ or } x>3", r"x > -2, x \le 3"]
    assert misjudged("[-2,3)", [*right, r"x \geq -2, x < 3", r"x \ge -2 \land x < 3"], wrong) == {}
    right = [r"\{x \mid x < -1 \text{ or } x > 2\}", "x<-1, x>2", r"x < -1 \lor x > 2", r"\mathbb{R}\setminus[-1,2]"]
    wrong = [
        r"(-\infty,-1]\cup[2,\infty)",
        "-1<x<2",
        r"x<-1 \text{ and } x>2",
        r"\mathbb{R}\setminus(-1,2)",
        "x<-1, x<2",
    ]
    assert misjudged(r"(-\infty,-1)\cup(2,\infty)", [*right, r"]-\infty,-1[\cup]2,\infty["], wrong) == {}


def test_the_reals_without_points_are_a_union_of_intervals() -> None:
    right = [
        r"x \ne 2",
        r"\{x : x\neq 2\}",
        r"(-\infty,2)\cup(2,\infty)",
        r"x\in\mathbb{R}, x\neq 2",
        r"\mathbb{R}-\{2\}",
    ]
    wrong = [r"x\neq 3", r"\mathbb{R}", r"(-\infty,2)\cup[2,\infty)", "2", r"(2,\infty)", r"\mathbb{R}\setminus\{2,3\}"]
    assert misjudged(r"\mathbb{R}\setminus\{2\}", [*right, "all real numbers except 2"], wrong) == {}
    right = [r"x \ne 1, x \ne -1", r"x \ne 1, -1", r"(-\infty,-1)\cup(-1,1)\cup(1,\infty)"]
    assert misjudged(r"\mathbb{R}\setminus\{-1,1\}", right, [r"x \ne 1", r"x \ne 1, x = -1", "1, -1"]) == {}


def test_french_intervals_are_open_where_the_bracket_looks_away() -> None:
    assert (
        misjudged("(1,3)", ["]1,3[", r"\left]1,3\right[", r"x\in]1,3[", "]1;3["], ["[1,3]", "[1,3[", "]3,1[", "]1,4["])
        == {}
    )
    assert misjudged("]1,3[", ["(1,3)", "1<x<3"], ["[1,3]", "]1,3]", "[1,3)"]) == {}
    assert misjudged("(1,3]", ["]1,3]", r"1<x\le 3"], ["[1,3[", "]1,3["]) == {}
    french = r"]-\infty,1[ \cup ]3,+\infty["
    assert misjudged(r"(-\infty,1)\cup(3,\infty)", [french], [french.replace("1[", "1]")]) == {}


def test_the_empty_set_is_no_solution() -> None:
    right = ["no solution", "none", r"\varnothing", r"\{\}", r"\text{No real solutions}", "There are no solutions."]
    wrong = [
        "0",
        r"\{0\}",
        r"\{\emptyset\}",
        "one solution",
        "infinitely many solutions",
        "no other solution",
        "not none",
    ]
    for gold in (r"\emptyset", r"\text{no solution}", "none"):
        assert misjudged(gold, [*right, r"\emptyset", "the empty set", "No solution exists"], wrong) == {}
    assert misjudged("0", ["0"], [r"\emptyset", "no solution"]) == {}


def test_a_ratio_of_two_is_their_quotient() -> None:
    right = ["2/3", "4:6", r"\frac{2}{3}", "2 to 3", r"2 \text{ to } 3", "1:1.5"]
    assert misjudged("2:3", right, ["3:2", "3/2", "2", "2:3:1", "(2,3)", "3 to 2", "4:9", "2 m to 3"]) == {}
    assert misjudged(r"\frac{2}{3}", ["2:3", "4:6", "2 to 3"], ["3:2", "2:5"], "What is the ratio of a to b?") == {}
    assert misjudged("3", ["3:1"], ["1:3", "3:2"]) == {}
    assert misjudged("1:2:3", ["2:4:6"], ["1:2", "1/2", "3:2:1", "1/6"]) == {}


def test_odds_are_no_probability() -> None:
    question = "What is the probability that the coin falls so?"
    assert misjudged(r"\frac{2}{3}", ["2/3", "4/6"], ["2:3", "2 to 3"], question) == {}
    assert with_question(r"\frac{2}{3}", question).question == question


def test_a_time_is_the_same_by_both_clocks() -> None:
    wrong = ["3:30", "3:30 am", "03:30", "15:31", "3:31 pm", "16:30", "15", "12:30"]
    assert misjudged("15:30", ["3:30 pm", "3:30 PM", r"3:30 \text{ p.m.}", "15:30"], wrong) == {}
    assert misjudged("3:30 pm", ["15:30", "3:30 p.m.", "3:30"], ["3:30 am", "03:30", "4:30 pm"]) == {}
    assert misjudged("0.5", ["1:2"], ["15:30", "12:24"]) == {}
    assert misjudged("12:15 am", ["0:15", "00:15"], ["12:15 pm", "0:15 pm", "12:16 am"]) == {}
    assert misjudged("5 p.m.", ["5:00 pm", "17:00", r"5 \text{ PM}"], ["5 am", "5:01 pm", "5", "6 pm"]) == {}
    assert misjudged("12:00 pm", ["noon", "12 noon", "12 pm"], ["midnight", "12:00 am", "11 noon"]) == {}


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("12", ["twelve", r"\text{Twelve}", "a dozen", "twelve apples"], ["thirteen", "two", "twelfth", "not twelve"]),
        (
            r"\frac{1}{2}",
            ["one half", "one-half", "a half", "half"],
            ["one third", "two halves", "half a dozen", "one"],
        ),
        ("25", ["twenty-five", "Twenty Five"], ["twenty", "twenty-six", "fifty-two", "two five"]),
        ("3/4", ["three fourths", "three-quarters"], ["four thirds", "one quarter", "three", "three four"]),
        (
            "1250",
            ["one thousand, two hundred and fifty", "twelve hundred fifty"],
            ["one thousand two hundred", "twelve"],
        ),
        ("3.5", ["three and a half", "three and one half"], ["three", "half", "three and a quarter", "three halves"]),
        ("-3", ["negative three", "minus three"], ["three", "three minus"]),
        ("1", ["one"], ["zero", "two", "none", "one of them", "one or two", "one half"]),
        ("0", ["zero"], ["none of these", "ten", "one"]),
        ("twelve", ["12", r"\text{twelve}"], ["13", "eleven", "120"]),
    ],
)
def test_a_number_may_be_in_words(gold: str, right: list[str], wrong: list[str]) -> None:
    assert misjudged(gold, right, wrong) == {}


@pytest.mark.parametrize("kind", ["math", "number"])
def test_a_number_in_words_is_read_after_an_answer_phrase(kind: str) -> None:
    assert key(extract("He has 3 and 4, so the answer is seven.", kind).final or "", kind) == "7"
    assert key(extract("The answer is one of 4 and 5.", kind).final or "", kind) != "1"


def test_a_residue_is_a_class_of_whole_numbers() -> None:
    right = [r"x \equiv 3 \pmod{7}", r"3 \bmod 7", "3 (mod 7)", "x ≡ 3 (mod 7)", r"n \equiv 10 \pmod 7", r"-4 \mod 7"]
    wrong = [r"x \equiv 4 \pmod 7", r"3 \pmod 8", r"7 \pmod 3", r"x\equiv 3 \pmod{14}", "7", "10", r"x \equiv 3"]
    assert misjudged(r"3 \pmod 7", [*right, r"3 \text{ mod } 7", "3"], [*wrong, r"y \not\equiv 3 \pmod 7"]) == {}
    assert misjudged(r"x \equiv 3 \pmod{7}", [r"3 \pmod 7", r"x \equiv 10 \pmod 7"], [*wrong, "3", "x = 3"]) == {}
    question = "What is the remainder when $2^{10}$ is divided by $7$?"
    right = [r"3 \pmod 7", r"2^{10} \equiv 3 \pmod 7", r"x \equiv 3 \pmod 7"]
    assert misjudged("3", right, [r"4 \pmod 7", r"10 \pmod 7", r"3 \pmod 2"], question) == {}
    assert with_question("3", question).question == question
    assert misjudged("3", [], right) == {}
    right = [r"x \equiv 3, 1 \pmod 7", r"x \equiv 1 \pmod 7 \text{ or } x \equiv 3 \pmod 7"]
    assert misjudged(r"1, 3 \pmod 7", right, [r"x\equiv 1 \pmod 7", r"x \equiv 1,4 \pmod 7", r"1, 3 \pmod 8"]) == {}


@pytest.mark.parametrize(
    "answer",
    [
        r"\color{red}{42}",
        r"\textcolor{blue}{42}",
        r"\underline{42}",
        r"\large 42",
        r"\boldsymbol{42}",
        r"\mathbf{\text{42}}",
        r"\boxed{\boxed{42}}",
        r"42\ ",
        r" 42.\ ",
    ],
)
def test_looks_mean_nothing(answer: str) -> None:
    assert misjudged("42", [answer], [answer.replace("42", "43"), answer.replace("42", r"\overline{42}")]) == {}


def test_a_box_in_a_box_is_one() -> None:
    assert misjudged(r"12 m^{2} n", [r"\boxed{12 m^{2} n}"], [r"\boxed{12 m^{2}}"]) == {}
    assert misjudged("22.1cm^{2}", [r"\boxed{22.1cm^{2}}"], [r"\boxed{22.1cm^{3}}"]) == {}
    assert misjudged("{1,2,3}", ["{1,2,3}.", r"\{3,2,1\}"], ["{1,2}."]) == {}


def test_repeating_decimals_have_dots_above_or_behind_them() -> None:
    assert (
        misjudged(r"\frac{1}{3}", ["0.333...", r"0.3333\ldots", r"0.\dot{3}"], ["0.333", "0.343...", "3.33..."]) == {}
    )
    assert misjudged(r"\frac{1}{6}", ["0.1666..."], ["0.1616...", "0.666..."]) == {}
    assert misjudged(r"0.\overline{27}", ["0.272727...", r"0.\dot{2}\dot{7}", "3/11"], ["0.277...", "0.2727"]) == {}
    assert misjudged(r"\pi", [r"\pi"], ["3.14159...", "3.1415..."]) == {}


def test_angles_may_have_minutes_and_seconds() -> None:
    assert (
        misjudged(r"5^\circ 30'", [r"5.5^\circ", r"5^{\circ}30^{\prime}", "5°30′"], [r"5.3^\circ", r"30^\circ 5'"])
        == {}
    )
    assert misjudged(r"10^\circ 0' 36''", [r"10.01^\circ"], [r"10.36^\circ", r"10^\circ 36'"]) == {}


def test_units_are_fractions_products_and_signs() -> None:
    assert misjudged("60 km/h", [r"60\ \frac{\text{km}}{\text{h}}"], [r"60\ \frac{\text{m}}{\text{s}}"]) == {}
    right = [r"9.8 \frac{\text{m}}{\text{s}^2}", r"9.8 \text{ m s}^{-2}"]
    assert misjudged(r"9.8 \text{ m/s}^2", right, [r"9.8 \frac{\text{m}}{\text{s}}", r"9.8 \text{ m s}^{-1}"]) == {}
    assert misjudged(r"\$18", ["US$18", r"US\$ 18.00"], ["18¢", "US$19"]) == {}
    assert misjudged("75 cents", ["75¢", "$0.75"], ["75 euros", "$75"]) == {}


def test_a_vector_may_be_a_sum_over_i_j_and_k() -> None:
    right = [r"\mathbf{i}+2\mathbf{j}-3\mathbf{k}", r"\hat{i}+2\hat{j}-3\hat{k}", "i+2j-3k", "<1,2,-3>", "$<1,2,-3>$"]
    wrong = ["i+2j+3k", "2i+j-3k", "i+2j", "i+2j-3k+4", "<2,1,-3>", r"\(<2,1,-3>\)"]
    assert misjudged(r"\langle 1,2,-3\rangle", right, wrong) == {}
    assert misjudged("(2,0)", ["2i+0j"], ["2i", "2j", "2"]) == {}
    assert misjudged(r"\begin{pmatrix}1\\2\\-3\end{pmatrix}", right, wrong) == {}


def test_names_that_mean_nothing_may_differ() -> None:
    assert misjudged("f(x) = x^2", ["f(t)=t^2"], ["f(t)=t^3", "g(t)=t^2", "f(t)=x^2"]) == {}
    assert misjudged("x^2 + C", ["x^2 + c", "K + x^2"], ["x^2", "x^2 + y", "x^2 - C", "x^3 + c", "x^2 + 2"]) == {}
    assert misjudged(r"\pm 3", ["x_1 = 3, x_2 = -3", "x_1 = -3, x_2 = 3"], ["x_1 = 3, x_2 = 3", "x = 3, y = -3"]) == {}
    assert misjudged(r"1011_2", [r"1011_{\text{two}}"], [r"1011_{\text{three}}", r"101_{\text{two}}"]) == {}


def test_words_that_say_the_same_are_the_same() -> None:
    assert misjudged("DNE", ["does not exist", "The limit does not exist."], ["0", r"\infty", "exists"]) == {}
    endless = [r"\text{infinity}", "infinitely many", r"\text{There are infinitely many solutions}"]
    assert misjudged(r"\infty", endless, [r"-\infty", "finitely many", r"\text{not infinite}"]) == {}
    assert misjudged("infinitely many", [r"\infty"], [r"-\infty", "0"]) == {}
    assert misjudged("infinitely many", ["Infinitely many solutions"], ["none", "finitely many", "one"]) == {}


def test_a_list_without_spaces_is_no_number() -> None:
    assert misjudged("36,36,108", ["36, 36, 108", r"36, 36 \text{ and } 108"], ["36, 36108", "36, 108"]) == {}
    assert misjudged("1234567", ["1 234 567", "1,234,567"], ["1 234 568", "1 234"]) == {}


def test_a_comma_between_two_numbers_is_a_decimal_one_beside_a_single_number() -> None:
    assert misjudged("2.5", ["2,5", "2,50", "2{,}5"], ["2, 5", "(2,5)", r"\{2,5\}", "-2,5", "2,5,0", "25"]) == {}
    assert misjudged("0.125", ["0,125"], ["125", "0, 125"]) == {}
    assert misjudged("125", ["125,0"], ["0,125", "00,125", "1,25"]) == {}
    assert misjudged(r"12.5\%", [r"12,5\%", r"12,5 \,\%"], [r"1,25\%"]) == {}
    assert misjudged(r"\$12.50", ["12,50 USD", r"12,5\text{ dollars}"], ["12,50 EUR", "1250"]) == {}
    assert misjudged("2,5", ["2, 5", "5,2"], ["2.5"]) == {}
    assert misjudged("0.2", ["0,2"], [r"\frac12,5", "x,5"]) == {}
    assert misjudged("3125", ["3,125"], ["3.125"]) == {}


def test_an_angle_is_the_same_in_degrees_and_in_radians() -> None:
    right = [r"60^\circ", r"60 \text{ degrees}", r"\frac{\pi}{3} \text{ rad}"]
    assert misjudged(r"\frac{\pi}{3}", right, ["60", r"\frac{\pi}{3}^\circ", r"30^\circ", r"3^\circ"]) == {}
    assert misjudged(r"60^\circ", ["60", r"60 \text{ degrees}"], [r"60 \text{ rad}", r"\frac{\pi}{3}^\circ"]) == {}
    assert misjudged("60", [r"60^\circ"], [r"\frac{\pi}{3}"]) == {}


def test_an_amount_of_money_is_in_the_unit_that_is_asked() -> None:
    dollars, cents = "How many dollars does it cost?", "What is the price in cents?"
    assert misjudged("0.75", ["0.75", r"75 \text{ cents}", r"\$0.75"], [r"0.75 \text{ cents}", "75"], dollars) == {}
    assert misjudged("75", ["75", r"75 \text{ cents}", r"\$0.75"], [r"\$75", r"0.75 \text{ cents}"], cents) == {}
    assert misjudged("18", [r"18 \text{ dollars per day}", r"\$18"], [r"18 \text{ cents}"], dollars) == {}
    assert with_question("0.75", dollars).question == dollars
    assert with_question("75", "How many of his 100 cents, or dollars, are gone?").question == ""


def test_a_ratio_is_no_time() -> None:
    assert misjudged("15:30", ["15:30", "3:30 pm"], ["1:2", "3:6", "0.5"]) == {}
    assert misjudged("10:20", ["10:20"], ["1:2"]) == {}
    assert misjudged("10:20", ["1:2", "2:4"], ["2:1"], "What is the ratio of boys to girls?") == {}


def test_a_day_of_a_year_is_the_same_in_any_order() -> None:
    right = ["15 March", "March 15th", "Mar. 15", r"\text{March 15}", "15th of March"]
    assert misjudged("March 15", right, ["March 16", "15 May", "March", "15", "March 15, 2024", "March 15 or 16"]) == {}


def test_a_length_in_several_units_is_one_length() -> None:
    right = [r"64 \text{ inches}", r"5 \text{ feet } 4 \text{ inches}", "5 ft 4 in"]
    wrong = [r"5.4 \text{ ft}", "64", r"4 \text{ ft } 5 \text{ in}", r"5 \text{ ft } 16 \text{ in}", r"5 \text{ ft}"]
    assert misjudged(r"5\text{ ft } 4\text{ in}", right, wrong) == {}
    assert misjudged(r"2 \text{ m}, 30 \text{ cm}", [r"30 \text{ cm}, 2 \text{ m}"], [r"230 \text{ cm}"]) == {}


def test_a_solution_is_no_inequality_that_the_question_has() -> None:
    assert misjudged("(1,5)", ["1<x<5"], ["|x-3|<2"], "Solve $|x-3|<2$.") == {}


def test_vectors_over_axes_in_unlike_marks_are_compared() -> None:
    gold = r"2\mathbf{i}-3\mathbf{j}+\mathbf{k}"
    right = [r"2\hat{i}-3\hat{j}+\hat{k}", r"2\vec{i} + \vec{k} - 3\vec{j}", r"2i - 3j + k"]
    assert (
        misjudged(gold, right, [r"2\hat{i}+3\hat{j}+\hat{k}", r"2\hat{i}-3\hat{j}", r"2\hat{j}-3\hat{i}+\hat{k}"]) == {}
    )


def test_an_equation_that_holds_is_its_last_side_beside_an_expression() -> None:
    wrong = [r"(x-2)(x-3)=x^2-5x+6", r"x^2-5x+7=(x-2)(x-3)"]
    assert misjudged("(x-2)(x-3)", ["x^2-5x+6=(x-2)(x-3)"], wrong, "Factor $x^2-5x+6$.") == {}


def test_an_approximation_beside_a_value_is_that_value_rounded_or_cut_off() -> None:
    right = [r"\sqrt5\approx 2", r"\sqrt5\approx 2.236", r"\sqrt{5} \approx 2.23"]
    assert misjudged(r"\sqrt{5}", right, [r"\sqrt5\approx 3", r"\sqrt5\approx 2.24 - 0.1", r"\sqrt5\approx -2"]) == {}
    assert misjudged(r"-\sqrt{5}", [r"-\sqrt5\approx -2.2"], [r"-\sqrt5\approx -2.3", r"-\sqrt5\approx 2.2"]) == {}


def test_a_remainder_is_by_the_modulus_of_the_question() -> None:
    question = "Find the remainder when $3^{100}$ is divided by 7."
    assert with_question("4", question).question == question
    assert misjudged("4", [r"4\pmod 7", r"\equiv 4 \pmod{7}"], [r"4\pmod 5", r"4\pmod{10}"], question) == {}


def test_units_with_points_and_scales_of_temperature_are_read_and_articles_are_none_of_a_word() -> None:
    assert (
        misjudged(r"12 \text{ square inches}", [r"12 \text{ sq. in.}"], [r"12 \text{ sq. ft.}", r"12\text{ in.}"]) == {}
    )
    right = [r"20 \text{ degrees Celsius}", r"20^\circ\text{C}", r"20\text{ Celsius}"]
    assert misjudged(r"20^\circ C", right, [r"20 \text{ degrees Fahrenheit}", r"20\text{ K}"]) == {}
    assert misjudged("Tuesday", [r"\text{a Tuesday}"], [r"\text{a Thursday}", r"\text{not a Tuesday}"]) == {}


def test_pieces_of_a_thing_are_a_unit_and_half_of_one_is_none() -> None:
    right = [r"25 \text{ pieces of candy}", r"25\text{ cups of flour}", "25"]
    assert (
        misjudged("25", right, [r"25 \text{ multiples of } 3", r"25\text{ halves of it}", r"25\text{ of them}"]) == {}
    )
    wrong = [r"25\text{ cups of flour}", r"25\text{ cm of candy}"]
    assert misjudged(r"25 \text{ pieces of candy}", ["25", r"25\text{ pieces}"], wrong) == {}


def test_ordinals_undefined_values_and_equations_in_bold_are_read() -> None:
    assert misjudged("3rd", [r"3\text{rd}", r"3^{\text{rd}}", "3"], ["4th", r"\frac13", "3rd?"]) == {}
    assert misjudged("undefined", [r"\text{not defined}", r"\text{is undefined}"], [r"\text{defined}", "0"]) == {}
    assert misjudged("7", [r"\mathbf{x = 7}", r"\textbf{x = 7}"], [r"\mathbf{x = 8}", r"\mathbf{2x = 7}"]) == {}


def test_coordinates_with_names_are_those_of_a_point_in_any_order() -> None:
    assert misjudged("(2,-1)", ["y=-1, x=2", "x=2, y=-1"], ["y=2, x=-1", "x=-1, y=2", "x=2, y=1"]) == {}
    assert misjudged("(2,-1,0)", ["z=0, x=2, y=-1"], ["z=2, x=-1, y=0"]) == {}
    assert misjudged("(2,-1)", ["a=2, b=-1"], ["a=-1, b=2"]) == {}


def test_functions_of_seldom_used_names_are_computed() -> None:
    right = [r"2\operatorname{arccot}(3)", r"2\arctan\frac13", r"2\cot^{-1}(3)", r"2\,\text{arccot}\,3"]
    assert misjudged(r"2\arccot 3", right, [r"2\arctan 3", r"\arccot 3", r"\arccot 6"]) == {}
    right = [r"\frac{\pi}{2}-\arctan x", r"\arctan\frac1x"]  # of a negative x the two conventions differ
    assert misjudged(r"\arccot x", right, [r"\arctan x", r"\cot x", r"\frac{1}{\cot x}"]) == {}
    right = [r"\ln(x+\sqrt{x^2+1})", r"\operatorname{arsinh}x", r"\operatorname{asinh}(x)"]
    assert misjudged(r"\sinh^{-1} x", right, [r"\frac{1}{\sinh x}", r"\ln(x-\sqrt{x^2+1})"]) == {}
    assert misjudged(r"\tanh^{-1} x", [r"\frac12\ln\frac{1+x}{1-x}"], [r"\ln\frac{1+x}{1-x}", r"\coth x"]) == {}


def test_cis_is_a_cosine_and_i_times_a_sine() -> None:
    right = [r"2\text{cis}(60^\circ)", r"2\operatorname{cis} \frac{\pi}{3}", r"1+i\sqrt3", r"2e^{i\pi/3}"]
    wrong = [r"2\text{cis}(30^\circ)", r"\text{cis}\,60^\circ", r"2\text{cis}(-60^\circ)", r"2\cos 60^\circ"]
    assert misjudged(r"2(\cos 60^\circ + i \sin 60^\circ)", right, wrong) == {}
    assert misjudged(r"\operatorname{cis} 150^\circ", [r"\cos 150^\circ+i\sin150^\circ"], [r"e^{150}"]) == {}


def test_a_constant_of_integration_takes_up_every_other_constant() -> None:
    assert misjudged(r"\ln|2x|+C", [r"\ln|x|+C", r"\ln|x|+C_1"], [r"2\ln|x|+C", r"\ln|x|", r"\ln|x|+\ln C"]) == {}
    right = [r"-\frac12\cos^2x+C", r"-\frac14\cos 2x+C"]
    assert misjudged(r"\frac12\sin^2 x+C", right, [r"\frac14\cos 2x+C", r"\frac12\cos^2x+C"]) == {}
    assert misjudged(r"\frac{x^2}{2}-x+C", [r"\frac{(x-1)^2}{2}+c"], [r"\frac{(x+1)^2}{2}+C", r"\frac{x^2}{2}+C"]) == {}
    assert misjudged("f(x)=2x+c", ["f(x)=2x+C"], ["f(x)=2x+1", "f(x)=cx+2", "f(x)=2x+c+1"]) == {}
    assert misjudged("A+B+C", ["C+B+A"], ["A+B+C+1"]) == {}
    assert misjudged("x+k", ["k+x"], ["x+c", "x+k+1"]) == {}


def test_a_chemical_formula_is_what_it_says_however_it_is_set() -> None:
    right = [r"\mathrm{H_2SO_4}", r"\text{H}_2\text{SO}_4", r"\ce{H2SO4}", "H₂SO₄", "H_{2}SO_{4}"]
    assert misjudged("H_2SO_4", right, ["H_2SO_3", "HSO_4", "H_4SO_2", r"\ce{HNO3}", "SO_4H_2"]) == {}
    right = [r"\ce{Fe^3+}", r"\text{Fe}^{3+}", r"\mathrm{Fe^{+3}}"]
    assert misjudged("Fe^{3+}", right, ["Fe^{2+}", "Fe^{3-}", "Fe", "Fe_3"]) == {}
    assert misjudged(r"\mathrm{Ca(OH)_2}", [r"\ce{Ca(OH)2}"], [r"\text{CaOH}_2", "CaO_2H_2"]) == {}
    assert misjudged("C_5^2", ["10"], ["C_5"]) == {}


def test_or_between_two_unknowns_is_no_pair() -> None:
    assert misjudged("x=2, y=-1", [r"y=-1 \text{ and } x=2"], [r"x=2 \text{ or } y=-1"]) == {}
    assert misjudged(r"x=2 \text{ or } y=-1", [r"y=-1 \text{ or } x=2"], ["x=2, y=-1", "(2,-1)"]) == {}
    right = [r"x=2, y=1 \text{ or } x=1, y=2", r"x=1, y=2, \text{ or } x=2, y=1"]
    assert misjudged("(2,1),(1,2)", right, [r"x=1, y=1 \text{ or } x=2, y=2"]) == {}


def test_what_a_letter_runs_over_is_no_part_of_a_value_whose_gold_says_nothing_of_it() -> None:
    right = [r"2^{n-1} \text{ for all } n \ge 1", r"2^{n-1}, n>0", r"2^{n-1} \text{ where } n \in \mathbb{N}"]
    assert misjudged("2^{n-1}", right, [r"2^{n-1} \text{ for all } n \ge 3", r"2^{n+1}, n>0", "2^{n-1}, m>0"]) == {}
    right = [
        r"2x+c \text{ for any constant } c",
        r"2x+C, C\in\mathbb{R}",
        r"2x+c \text{ where } c \text{ is a constant}",
    ]
    assert misjudged("2x+c", right, [r"2x \text{ for any constant } c"]) == {}
    assert misjudged(r"n=2^k, k\ge 0", [], [r"n=2^k, k\ge 1"]) == {}
    assert misjudged(r"\frac{x+1}{x-2}", [r"\frac{x+1}{x-2}, x\ne 2"], [r"\frac{x-1}{x-2}, x\ne 2"]) == {}
    assert misjudged("cx^2", [], [r"cx^2, c\ne 0"]) == {}
    question = "Find all positive integers that have no odd divisor but one."
    assert misjudged("n=2^k", ["n=2^m"], ["n=3^m", "n=2m"], question) == {}
    assert misjudged("n=2^k", [], ["n=2^m"], "Let m be odd. Find all n.") == {}


def test_a_derivative_has_one_name_in_every_notation() -> None:
    right = [
        "y'=3x^2",
        r"\frac{dy}{dx}=3x^2",
        r"\frac{d}{dx}f(x)=3x^2",
        r"\frac{d}{dx}\left[f(x)\right] = 3x^2",
        "3x^2",
    ]
    assert misjudged("f'(x)=3x^2", right, ["y=3x^2", "f''(x)=3x^2", r"\frac{d^2y}{dx^2}=3x^2", "f'(x)=3x"]) == {}
    assert misjudged(r"\frac{dV}{dt} = 36\pi", [r"36\pi", r"V'(t)=36\pi"], [r"12\pi", r"V(t)=36\pi"]) == {}
    assert misjudged("f''(x)=6x", [r"\frac{d^2y}{dx^2}=6x", "y''=6x"], ["y'=6x"]) == {}


def test_a_rounded_value_in_brackets_says_no_more_than_the_value() -> None:
    right = [r"3\sqrt{13} \text{ (approximately } 10.817)", r"3\sqrt{13}\ (\approx 10.82)", "3\\sqrt{13} (about 10.8)"]
    assert misjudged(r"3\sqrt{13}", right, [r"3\sqrt{13}\ (\approx 11.82)", r"3\sqrt{11}\ (\approx 10.82)"]) == {}


def test_an_extreme_value_may_say_of_what_it_is_one() -> None:
    right = [r"\min f = -3", r"\min f(x) = -3", r"\min_{x} f(x) = -3", r"\min_{x>0} f(x) = -3", "minus 3"]
    assert misjudged("-3", right, [r"\min f = 3", r"\min(-3, 2)", "minus 4"]) == {}


def test_units_and_money_have_the_names_that_books_give_them() -> None:
    coulomb = r"1.6\times10^{-19}\,\mathrm{C}"
    assert misjudged(coulomb, [r"1.6\times10^{-19}\text{ coulombs}"], [r"1.6\times10^{-19}\text{ mC}"]) == {}
    assert misjudged(r"5\,\mathrm{N/C}", [r"5\text{ V/m}"], [r"5\text{ V}"]) == {}
    assert misjudged(r"25^\circ C", ["25 C"], [r"25\text{ coulombs}"]) == {}
    assert (
        misjudged(r"\text{Rs. }500", ["500", r"\text{Rs } 500", r"500 \text{ rupees}", "₹500"], [r"\$500", "50"]) == {}
    )
    assert misjudged("22.4 L", [r"22.4\ \mathrm{dm^3}"], [r"22.4\ \mathrm{cm^3}", "22.4 dm"]) == {}
    assert misjudged("2.5 ha", [r"25000\text{ m}^2"], [r"2500\text{ m}^2"]) == {}
    assert misjudged("1234.5", ["1.234{,}5", "1.234,5"], ["1.234", "1{,}2345"]) == {}


def test_alternatives_with_a_comma_are_all_members_of_a_set() -> None:
    assert (
        misjudged(
            r"\{1,2,4\}", [r"1,\ 2\text{ or }4", r"1, 2, \text{ or } 4"], [r"1,\ 2\text{ or }5", r"1\text{ or }2"]
        )
        == {}
    )
    assert misjudged("1", [], [r"1,\ 2\text{ or }4"]) == {}


def test_a_base_a_date_and_a_change_are_read_in_words() -> None:
    right = [r"4210 \text{ base } 5", r"4210 \text{ (base } 5)", r"4210 \text{ (base 5)}"]
    assert misjudged("4210_{5}", right, [r"4210 \text{ base } 6", "4210 base"]) == {}
    assert misjudged(r"\text{June 20}", [r"\text{June }20", r"\mathrm{June}~20"], [r"\text{June }21", "20"]) == {}
    right = [r"\Delta E \approx 10^{-4}\text{ eV}", r"\Delta E = 0.0001\text{ eV}"]
    assert misjudged(r"10^{-4}\text{ eV}", right, [r"\Delta E = 10^{-3}\text{ eV}"]) == {}
    assert misjudged(r"\Delta H = -5", ["-5"], [r"\Delta S = -5", "5"]) == {}
    assert misjudged("4", [r"\text{a factor of }4"], [r"\text{a factor of }5", r"\text{half of }4"]) == {}
    assert misjudged(r"[-2,1]\cup[3,4]", [r"[-2,1]\bigcup[3,4]"], [r"[-2,1]\bigcap[3,4]"]) == {}


def test_signs_of_tex_stand_for_what_they_show() -> None:
    interval = r"(-\infty,-2)\cup(3,\infty)"
    assert misjudged(interval, [r"x \notin [-2,3]"], [r"x \notin (-2,3)", r"x \in [-2,3]", r"x \notin [-3,2]"]) == {}
    assert (
        misjudged(r"\frac{a+b}{2}", [r"{a+b}\over 2", r"\mathbf{\frac{a+b}{2}}"], [r"a+{b \over 2}", r"{a-b}\over 2"])
        == {}
    )
    assert misjudged(r"\langle 1,-2,3\rangle", [r"\left<1,-2,3\right>"], [r"\left<1,2,3\right>"]) == {}
    assert misjudged(r"6.02\times10^{23}", [r"6.02\text{E}23", r"6.02\text{E}+23"], [r"6.02\text{E}22"]) == {}
    assert misjudged("4", [r"4\times"], [r"5\times", r"4\times 2"]) == {}
    assert misjudged("4210_{5}", [r"4210_{\text{base }5}", r"4210_{\text{base 5}}"], [r"4210_{\text{base }6}"]) == {}
    right = [r"\text{All real numbers except } 2", r"\text{all real numbers except } x=2"]
    assert misjudged(r"\mathbb{R}\setminus\{2\}", right, [r"\text{All real numbers except } 3"]) == {}
    assert (
        misjudged(
            r"9.8\,\mathrm{m/s^2}", [r"9.80~\frac{\mathrm{m}}{\mathrm{s}^2}"], [r"9.8\,\frac{\mathrm{m}}{\mathrm{s}}"]
        )
        == {}
    )
    assert misjudged(r"10\ \Omega", [r"10\ \text{Ω}", r"0.01\text{ kΩ}"], [r"10\text{ kΩ}"]) == {}
    assert (
        misjudged("f(x)=0, f(x)=x", [r"f(x) \equiv 0 \text{ and } f(x)=x"], [r"f(x) \equiv 1 \text{ and } f(x)=x"])
        == {}
    )


def test_a_share_may_be_said_in_per_cent_behind_an_equals_sign() -> None:
    right = [r"\frac38 = 37.5\%", r"\frac38\approx 37.5\%", "0.375 = 37.5%"]
    assert misjudged(r"\frac{3}{8}", right, [r"\frac38 = 38\%", r"\frac38 = 3.75\%", r"\frac58 = 62.5\%"]) == {}
    question = "What is the probability of a six?"
    assert misjudged(r"\frac16", [r"1/6\approx 16.67\%"], [r"1/6\approx 61.67\%", r"16\%"], question) == {}
    assert misjudged("24", ["4!=24"], ["4!", "4!=25", r"4 \ne 24"]) == {}


def test_a_letter_before_words_is_the_name_of_an_option_unless_the_gold_is_a_letter() -> None:
    assert misjudged(r"\text{ellipse}", [r"\text{(E) ellipse}"], [r"\text{(E) circle}", r"\text{not an ellipse}"]) == {}
    assert misjudged(r"\text{(C) red}", [r"\text{(C) red}"], [r"\text{(B) red}"]) == {}
    assert misjudged(r"\text{(C)}", [r"\text{(C)}\ 12", "C"], [r"\text{(B)}\ C", r"\text{(D)}\ C"]) == {}


def test_a_verdict_is_met_by_one_with_its_reason() -> None:
    right = [r"\text{yes, it is possible}", "Yes", r"\text{Yes, because 4 is even}"]
    assert (
        misjudged(r"\text{Yes}", right, [r"\text{no, it is not}", r"\text{Yes or no}", r"\text{yes, if n is even}"])
        == {}
    )


def test_a_progression_is_a_residue_class() -> None:
    assert misjudged(r"n \equiv 1 \pmod{6}", ["n=6k+1", "n = 6m - 5"], ["n=6k-1", "n=3k+1", "n=6k", "k=6n+1"]) == {}
    assert misjudged("n=6k+1", [r"n \equiv 1 \pmod 6", "n=1+6k"], [r"n \equiv 5 \pmod 6", r"n \equiv 1 \pmod 3"]) == {}


def test_inverse_functions_and_functions_called_y_have_names() -> None:
    inverse = r"f^{-1}(x)=\frac{x+3}{2}"
    right = [r"\frac{x+3}{2}", r"f^{-1}(y)=\frac{y+3}{2}", r"y=\frac{x+3}{2}"]
    assert (
        misjudged(inverse, right, [r"f^{-1}(x)=\frac{x-3}{2}", "f(x)=2x-3", r"f(x)=\frac{x+3}{2}", r"\frac{2}{x+3}"])
        == {}
    )
    assert misjudged("y=Ce^{2x}", ["y(x)=Ce^{2x}", "Ce^{2x}"], ["y(x)=e^{2x}", "y(x)=Ce^{x}"]) == {}
    assert misjudged("yx=5", ["xy=5"], ["y=5", "x=5"]) == {}


def test_a_reaction_is_its_molecules_on_both_sides() -> None:
    right = [r"\ce{2H2 + O2 -> 2H2O}", r"\mathrm{2H_2+O_2\rightarrow 2H_2O}", r"O_2 + 2H_2 \to 2H_2O"]
    wrong = [r"H_2 + O_2 \to H_2O", r"2H_2O \to 2H_2 + O_2", r"2H_2 + O_2 \to 2H_2O_2", "2H_2 + O_2"]
    assert misjudged(r"2H_2 + O_2 \to 2H_2O", right, wrong) == {}
    right = [r"\ce{Fe^3+ + e^- -> Fe^2+}", r"\mathrm{Fe^{3+} + e^- \to Fe^{2+}}"]
    assert misjudged(r"Fe^{3+} + e^- \to Fe^{2+}", right, [r"Fe^{2+} \to Fe^{3+} + e^-"]) == {}
    assert misjudged(r"\mathrm{CH_4}", [r"\text{CH}_4 \text{ (methane)}"], [r"\text{CH}_3 \text{ (methyl)}"]) == {}


def test_a_quantity_that_books_name_may_stand_before_its_value() -> None:
    right = [
        r"\operatorname{rank}(A)=2",
        r"\text{rank }A=2",
        r"\dim V=2",
        r"\deg p = 2",
        r"\sigma^2=2",
        r"\mathrm{Var}(X)=2",
    ]
    assert misjudged("2", right, [r"\operatorname{rank}(A)=3", r"2\dim V=2", r"\dim V + 1 = 2"]) == {}
    assert misjudged("4.76", [r"\text{pH}=4.76", r"\text{pH} \approx 4.76"], [r"\text{pH}=4.67"]) == {}
    assert misjudged(r"E(X)=\frac72", [r"\mathbb{E}[X]=\frac72", "3.5"], [r"\mathbb{E}[X]=\frac73"]) == {}
    partial = [r"\frac{\partial f}{\partial x}=2xy+3", "f_x=2xy+3", "f_x(x,y)=2xy+3"]
    assert misjudged("2xy+3", partial, [r"\frac{\partial f}{\partial x}=2xy", "f_x(1,2)=2xy+4"]) == {}
    assert misjudged("(2x, 3y^2)", [r"\nabla f=(2x,3y^2)", r"\nabla f(x,y)=(2x,3y^2)"], [r"\nabla f=(3y^2,2x)"]) == {}
    assert misjudged("F_{n+1}", ["a_n=F_{n+1}", "F_{n + 1}"], ["F_{n-1}", "F_n+1", "F_{n+2}"]) == {}


def test_an_equation_that_holds_for_all_values_is_no_answer_to_another() -> None:
    tautologies = ["x=x", "0=0", "x^2-5x+6=(x-2)(x-3)", r"\sin^2x+\cos^2x=1", "y+x=x+y"]
    assert misjudged("2x-3y+z=7", ["z=7-2x+3y"], tautologies) == {}
    assert misjudged("(x-1)^2+(y+2)^2=9", ["x^2-2x+y^2+4y=4"], tautologies) == {}
    assert misjudged(r"\sin x+y=3", [r"2\sin x+2y=6"], tautologies) == {}
    assert misjudged("x^2+y^2<4", ["4>y^2+x^2"], ["x-x<0", "0<1", r"-\sin^2x-\cos^2x<0"]) == {}
    identity = r"\sin^2x+\cos^2x=1"
    assert misjudged(identity, [r"\cos^2x+\sin^2x=1"], [r"y\sin x=3", "x=x", r"\sin^2x+\cos^2x=2"]) == {}


def test_the_order_of_what_has_none_does_not_count() -> None:
    assert misjudged(r"\gcd(a,b)=1", [r"\gcd(b,a)=1"], [r"\gcd(a,b)=2", r"\gcd(a,c)=1"]) == {}
    assert misjudged(r"a \le b \le c", [r"c \ge b \ge a", r"a\leq b\leq c"], ["a<b<c", r"c \le b \le a"]) == {}


def test_a_complex_number_has_a_polar_form_with_and_without_functions() -> None:
    right = [r"4\operatorname{cis}\frac{\pi}{6}", r"4(\cos\frac{\pi}{6}+i\sin\frac{\pi}{6})", r"2\sqrt3+2i"]
    assert (
        misjudged(r"4e^{i\pi/6}", right, [r"4\operatorname{cis}60^\circ", r"4\cos\frac{\pi}{6}", r"4e^{-i\pi/6}"]) == {}
    )
    assert misjudged("e^2", ["e^2"], [r"e^2\cos 0"]) == {}


def test_farads_hertz_and_arabic_marks_are_read() -> None:
    assert misjudged(r"2\,\mu\text{F}", [r"2\times10^{-6}\text{ F}"], [r"2\times10^{-9}\text{ F}"]) == {}
    assert misjudged(r"20^\circ F", ["20 F"], [r"20\text{ farads}"]) == {}
    assert misjudged(r"440\text{ Hz}", [r"440\ \mathrm{s^{-1}}"], [r"440\text{ s}", r"44\ \mathrm{s^{-1}}"]) == {}
    assert misjudged("2.5", ["٢٫٥"], ["٥٫٢", "٢٥"]) == {}


def test_values_with_names_are_told_from_every_other_shape() -> None:
    others = ["1011_2", "Tuesday", "2024-01-05", "7:05", r"\emptyset", "2:3", "[1,2]", r"x \ge 2", r"3 \bmod 7", "|x|"]
    for gold in ("x=1, y=2", r"\lambda_1 = 2, \lambda_2 = 5"):
        assert misjudged(gold, [gold], others) == {}
        for other in others:
            assert misjudged(other, [], [gold]) == {}


def test_an_amount_is_held_to_the_unit_that_is_asked_for() -> None:
    question = "After how many hours is the tank empty?"
    wrong = [r"16\text{ minutes}", r"t = 16\text{ days}", r"1.6\text{ hours}"]
    assert misjudged("16", ["16", r"16\text{ hours}", r"960\text{ minutes}", r"t = 16\text{ h}"], wrong, question) == {}


def test_a_number_in_front_of_a_matrix_or_a_vector_goes_to_its_entries() -> None:
    gold = r"\begin{pmatrix}\frac45&-\frac35\\-\frac15&\frac25\end{pmatrix}"
    scaled = r"\begin{pmatrix}4&-3\\-1&2\end{pmatrix}"
    right = [
        rf"\frac15{scaled}",
        rf"A^{{-1}}=\frac{{1}}{{5}}{scaled}",
        r"-\frac15\begin{pmatrix}-4&3\\1&-2\end{pmatrix}",
    ]
    assert misjudged(gold, right, [scaled, rf"5{scaled}", r"\frac15\begin{pmatrix}2&-3\\-1&4\end{pmatrix}"]) == {}
    right = [r"\frac15(3,4)", r"\frac{(3,4)}{5}", r"\frac{3\hat i+4\hat j}{5}"]
    assert misjudged(r"\left(\frac35,\frac45\right)", right, ["(3,4)", r"\frac15(4,3)", r"\frac{1}{25}(3,4)"]) == {}


def test_constants_of_a_solution_have_any_letter_and_order() -> None:
    question = "Solve the differential equation $y''+y'-2y=0$."
    gold = "y = C_1 e^{x} + C_2 e^{-2x}"
    right = [r"y=Ae^x+Be^{-2x}", r"y=c_1e^{x}+c_2e^{-2x}", r"y = C_1 e^{-2x} + C_2 e^{x}"]
    wrong = [r"y=Ae^x+Ae^{-2x}", r"y=C_1e^{x}+C_2e^{2x}", r"y=e^x+e^{-2x}"]
    assert misjudged(gold, right, wrong, question) == {}
    assert misjudged("C = \\frac{A}{2\\pi}", [], ["C = \\frac{B}{2\\pi}"], "Solve for the circumference.") == {}


def test_the_preposition_behind_a_number_is_no_inch() -> None:
    assert extract("The answer is 5 in total.", "math").final == "5"
    assert extract("The answer is that there are 5 in each box.", "math").final == "5"
    assert extract("The answer is that it is 5 in.", "math").final == "5 in"


def test_a_distribution_is_no_point() -> None:
    assert misjudged(r"\mathcal{N}(0, 1)", [r"\mathcal{N}(0,1)"], ["(0,1)", "]0,1[", r"\mathcal{N}(1,0)"]) == {}
