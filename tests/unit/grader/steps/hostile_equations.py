"""A judge of equations that hangs or crashes at some, as no real one should."""

from services.grader.steps import Step, judging
from tests.unit.grader import hostile


def judge(text: str, most: int) -> list[Step]:
    """As the real one; but it hangs where 66 and crashes where 77 is written."""
    if "66" in text:
        hostile.spin()
    if "77" in text:
        hostile.segfault()
    return judging.judge(text, most)
