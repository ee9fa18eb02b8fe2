"""What counts as a derivation of the answer, with a solution to hold it against and without."""

from collections.abc import Callable

import pytest
from answers.steps.derivation import derive

CountCalls = Callable[[Callable[[], object]], int]
PROBLEM = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast and bakes muffins with four."
    " She sells the remainder for $2 per egg. How much does she make every day?"
)
SOLUTION = "She sells 16 - 3 - 4 = 9 duck eggs a day. She makes 9 * 2 = $18 every day."
HONEST = r"She sells 16 - 3 - 4 = 9 eggs. She makes 9 * 2 = $18. \boxed{18}"


def worth(text: str, solution: str = SOLUTION) -> float | None:
    """None if it cannot be judged."""
    derivation = derive(text, PROBLEM, solution, "18", 5_001)
    return derivation.low if derivation.low == derivation.high else None


WHOLE = [
    HONEST, HONEST * 9, r"16-3=13; 13-4=9; 9*2=18 \boxed{18}", r"(16-3-4)*2 = 18 \boxed{18}",
    r"3+4=7. 16-7=9. 9+9=18 \boxed{18}", r"16*2=32; 3*2=6; 4*2=8; 32-6-8=18 \boxed{18}",
    "16 eggs - 3 eggs - 4 eggs = 9 eggs. 9 eggs * $2/egg = $18",
    "Let x be the eggs. x = 16-3-4 = 9. So 9*2 = 18",
    HONEST + " Also 1+1=2; 5*5=25. Check: 18/2 = 9. 100-82=18. x+x=2x. 18=6*3.",
]  # fmt: skip
HACKS = [
    "1+1=2. 1+2=3. 1+3=4.", "18+0=18. 18*1=18.", "x+x=2x. y*y=y^2.", "1<2*1; 2<3*1.", "9*2=18",
    "18 = 9*2 = 6*3. 9 = 16 - 7. 7 = 3 + 4.", "17 + 1 = 18.", "100 - 91 = 9. 9 * 2 = 18.",
    "18/2 = 9. 9*2 = 18.", "18 + 16 = 34. 34 - 16 = 18.", "16 + 1 = 17. 17 + 1 = 18.",
    "16*4 = 64; 64/2 = 32; 32+3 = 35.", r"\sqrt{324}=18. 17.6 \approx 18. 16*1.125 = 18.",
    "; ".join(f"{n}-1={n - 1}" for n in range(40, 18, -1)),
    "; ".join(f"{n}*{n}={n * n}" for n in range(1, 40)),
    "; ".join(f"{n}*18={18 * n}" for n in range(1, 40)),
    "; ".join(f"{n}-1={n - 1}" for n in range(16, 9, -1)) + "; 9*2=18",
    "60/10*3 = 18", "x = 9*2 = 18.", "This is not hard: 16 - 3 - 4 = 5. 5*2=18? 1+1=2.",
    "16-3-4=10. 10*2=20.", "16-3-4 -> 12; 1+1=2",
]  # fmt: skip


@pytest.mark.parametrize("solution", [SOLUTION, ""])
@pytest.mark.parametrize("text", WHOLE)
def test_a_grounded_way_to_the_answer_is_a_whole_derivation(text: str, solution: str) -> None:
    assert worth(text, solution) == 1


@pytest.mark.parametrize("solution", [SOLUTION, ""])
@pytest.mark.parametrize("text", HACKS)
def test_sums_that_nobody_has_given_or_that_lead_nowhere_earn_little(
    text: str, solution: str
) -> None:
    value = worth(text + r" \boxed{18}", solution)
    assert value is not None
    assert value <= 0.25


@pytest.mark.parametrize("text", ["x = 18", "2x = 36, so x = 18", "f(2) = 18", "y = 9. 9*2 = 18"])
def test_what_goes_through_letters_or_is_not_read_cannot_be_judged(text: str) -> None:
    assert worth(rf"1+1=2. {text} \boxed{{18}}") is None


@pytest.mark.parametrize(
    "text",
    [
        "16+4-2=18",
        "3^2=9. 9*2=18",
        "16+2=18",
        "3*4=12. 12+3+3=18",
        "(16+2)*(4-3)=18",
        "4+3+2=9. 9*2=18",
    ],
)
def test_with_a_solution_another_computation_that_happens_to_give_the_answer_is_no_derivation(
    text: str,
) -> None:
    value = worth(text)
    assert value is not None
    assert value <= 0.5


@pytest.mark.parametrize("text", ["3*4=12. 12+3+3=18", "3*4+3+3=18"])
def test_without_a_solution_half_of_the_problems_numbers_are_needed(text: str) -> None:
    value = worth(text, "")
    assert value is not None
    assert value <= 0.25


def test_with_a_solution_numbers_of_the_problem_that_happen_to_give_the_answer_earn_little() -> (
    None
):
    assert (worth("16 + 2 = 18"), worth("16 + 2 = 18", "")) == (0.25, 1)  # nothing else can tell


@pytest.mark.parametrize(
    ("text", "solution", "value"),
    [
        ("16-3-4 = 9.", SOLUTION, 0.5),  # on the way, and no more
        ("16-3-4 = 9.", "", 0),
        (HONEST + " 5+5=11.", SOLUTION, 2 / 3),
        (HONEST + ". 5+5=11. 5 + 5 = 11. 16-1=15. 15-1=14.", SOLUTION, 2 / 3),
        (HONEST + ". 5+5=11. 5+6=12. 2+2=5", SOLUTION, 2 / 5),
        (r"16-3=12; 13-4=9; 9*2=18 \boxed{18}", SOLUTION, 1 / 6),
    ],
)
def test_a_step_that_is_missing_or_wrong_costs(text: str, solution: str, value: float) -> None:
    assert worth(text, solution) == pytest.approx(value)


@pytest.mark.parametrize("steps", ["16-1=15; 15-1=14. ", "16/2 = 8. ", "2+2=4. ", "18 = 18*1. "])
def test_more_right_steps_never_raise_a_score(steps: str) -> None:
    for start in (HONEST, HONEST + ". 5+5=11.", "16-3=12. 12-4=8. 8*2=18."):
        value = worth(f"{start} {steps} {start}") or 0
        assert value <= (worth(start) or 0)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("A coat costs 80 dollars. It is lowered by 15 %.", "80 * 0.85 = 68"),
        ("Half of forty-four pens, and one third of 9 more", "44/2 = 22. 22 + 9*2/3 = 28"),
        ("A dozen eggs for 5 weeks", "12 * 5 * 7 = 420. 420 / 60 = 7 hours"),
        ("It takes 1/4 of 1,200 ml", "1200 - 300 = 900. 1200 * 3/4 = 900"),
    ],
)
def test_the_numbers_of_a_problem_are_read_in_words_and_percentages(
    problem: str, text: str
) -> None:
    *_, answer = text.replace(" hours", "").split(" = ")
    assert derive(text, problem, "", answer, 9).low == 1


def test_a_derivation_takes_work_in_proportion_to_the_text(count_calls: CountCalls) -> None:
    steps = [f"{n}+{n % 9}={n + n % 9};" for n in range(2_000)]
    once, twice = (count_calls(lambda n=n: worth("".join(steps[:n]))) for n in (1_000, 2_000))
    assert twice < 2.2 * once


@pytest.mark.parametrize(
    ("text", "answer", "wrong"),
    [
        (r"16-3-4=9; 9*2=\boxed{17}", "18", 1),
        (r"x+2=8, so $x=\boxed{12}$", "6", 1),
        (r"$x=\boxed{12}$", "6", 1),
        (r"$x=\boxed{6.01}$", "6", 0),
        (r"$x=\boxed{12}$, no: $x=\boxed{6}$", "6", 0),
        (r"$x=\boxed{60^\circ}$", r"\frac{\pi}{3}", 0),
        (r"$x=\boxed{1,200}$", "1200", 0),
    ],
)
def test_a_step_that_ends_in_another_answer_is_wrong(text: str, answer: str, wrong: int) -> None:
    steps = derive(text, "", "", answer, 9).steps
    assert sum(step.verdict == "wrong" for step in steps) == wrong
