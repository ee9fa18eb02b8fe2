"""The learner on a GPU: the numbers of a CPU, in the memory and the time that are expected."""

from pathlib import Path

import pytest

from tests.gpu.report import PARTS, Part, measured

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_of_the_report_is_as_expected(part: Part, models: Path) -> None:
    result = measured(part, models, left_s=800)
    print(result)
    assert result.is_as_expected
