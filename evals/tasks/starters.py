"""Twenty word problems of two to five steps, written for this toolkit, to ask any model without a download.

    Ana buys 3 pens at $4 and 2 books at $11. She pays with a $50 note. How many dollars does she get back?    16

For a first look only: twenty problems cannot tell two good models apart, and strong models solve nearly all of them. To
measure, use `gsm8k`, `math500`, or a file of your own.
"""

from __future__ import annotations

from collections.abc import Iterator

from evals.task import Item, Task, boxed_question, sample
from ttc.core import Problem, Sampling
from ttc.verifiers.maths.asked import with_question


def starters() -> Task:
    """Twenty word problems that come with the package; for a first look."""
    return Task(
        name="starters",
        kind="number",
        load=lambda limit, seed: sample(list(_items()), limit),
        sampling=Sampling(max_tokens=1024),
        note="twenty problems are for a first look: gsm8k, math500 or a file of your own measures",
    )


def _items() -> Iterator[Item]:
    for number, (text, answer) in enumerate(PROBLEMS, start=1):
        problem = Problem(f"starters-{number}", boxed_question(text), "number", {})
        yield Item(problem, with_question(str(answer), text))


PROBLEMS: tuple[tuple[str, int], ...] = (
    (
        "Ana buys 3 pens at $4 each and 2 books at $11 each. She pays with a $50 note. How many dollars does she get "
        "back?",
        50 - (3 * 4 + 2 * 11),
    ),
    (
        "A train has 8 carriages with 46 seats each. 129 seats are taken and 17 are broken. How many can still be "
        "used?",
        8 * 46 - 129 - 17,
    ),
    (
        "A baker makes 15 trays of 12 rolls. He sells three quarters of them in the morning and 28 in the afternoon. "
        "How many rolls are left?",
        15 * 12 - 15 * 12 * 3 // 4 - 28,
    ),
    (
        "Tom is 4 years older than Lea. In 6 years the sum of their ages will be 50. How old is Tom now?",
        (50 - 2 * 6 - 4) // 2 + 4,
    ),
    (
        "A tank holds 240 litres and is one third full. A pipe fills it at 8 litres a minute, while a leak loses 3 "
        "litres a minute. After how many minutes is it full?",
        (240 - 240 // 3) // (8 - 3),
    ),
    (
        "A shop sells a coat for $80. It is first reduced by 25 %, and then by a further $12. How many dollars does it "
        "cost now?",
        80 * 3 // 4 - 12,
    ),
    (
        "Five friends share a bill of $135 equally, but one has forgotten his purse, so that the other four pay. How "
        "many dollars must each of the four pay if $7 of the bill are taken off first?",
        (135 - 7) // 4,
    ),
    (
        "A number is doubled, 9 is added, and the result is multiplied by 3. This gives 81. What is the number?",
        (81 // 3 - 9) // 2,
    ),
    ("A farmer has chickens and cows, 30 animals with 86 legs in all. How many cows does he have?", (86 - 2 * 30) // 2),
    (
        "Mia reads 18 pages on Monday. On each following day she reads 4 pages more than on the day before. How many "
        "pages has she read by the end of Friday?",
        sum(18 + 4 * day for day in range(5)),
    ),
    (
        "A cyclist rides for 2 hours at 18 km an hour, rests for 30 minutes, and rides back the same way at 12 km an "
        "hour. How many minutes is the cyclist away from home?",
        120 + 30 + 36 * 60 // 12,
    ),
    (
        "A rectangular garden is 14 m long and 9 m wide. A path 1 m wide runs along the inside of all four edges. How "
        "many square metres of the garden are not path?",
        (14 - 2) * (9 - 2),
    ),
    ("How many whole numbers from 1 to 100 are divisible by 3 or by 5?", 100 // 3 + 100 // 5 - 100 // 15),
    (
        "A printer prints 24 pages in 90 seconds. At this speed, how many pages does it print in 6 minutes?",
        24 * 360 // 90,
    ),
    (
        "A class of 32 pupils goes to the zoo. A child's ticket costs $6, and every eighth child is free. Two teachers "
        "pay $11 each. How many dollars do they pay together?",
        (32 - 32 // 8) * 6 + 2 * 11,
    ),
    (
        "In a box are red, blue and green balls. There are twice as many red balls as blue ones and 5 more green balls "
        "than blue ones. In all there are 61. How many red balls are there?",
        (61 - 5) // 4 * 2,
    ),
    (
        "A clock gains 4 minutes every 3 hours. It is set right at noon. How many minutes is it fast at midnight of "
        "the following day, 36 hours later?",
        4 * 36 // 3,
    ),
    (
        "The average of four numbers is 23. Three of them are 17, 29 and 21. What is the fourth number?",
        4 * 23 - 17 - 29 - 21,
    ),
    (
        "Workers pack 6 boxes an hour each. 5 workers start at 8 o'clock, and 3 of them leave at 10 o'clock. How many "
        "boxes are packed by 1 o'clock in the afternoon?",
        5 * 6 * 2 + 2 * 6 * 3,
    ),
    (
        "A snail climbs a wall 20 m high. By day it climbs 5 m, and by night it slides back 2 m. On which day does it "
        "reach the top?",
        (20 - 5) // (5 - 2) + 1,
    ),
)
