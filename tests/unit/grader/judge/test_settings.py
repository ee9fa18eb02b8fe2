"""The judge's variables of the environment."""

from pathlib import Path

import pytest

from services.chassis.deployment import DeploymentError
from services.grader.judge.settings import JudgeSettings, deployed_judges
from tests.tables import table

GIVEN = {"WEIR_JUDGE_URL": "http://127.0.0.1:8000/v1/", "WEIR_JUDGE_MODEL": "gpt-oss-20b"}


def test_without_a_url_there_is_no_judge_and_what_is_not_given_has_a_default() -> None:
    assert deployed_judges({}) == deployed_judges({**GIVEN, "WEIR_JUDGE_URL": ""}) == {}
    url = "http://127.0.0.1:8000/v1"
    model = "gpt-oss-20b"
    assert deployed_judges(GIVEN) == {"": JudgeSettings(url, model)}


def test_everything_can_be_given_and_the_key_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    numbers = {"CONCURRENCY": "7", "TIMEOUT_S": "2.5"}
    variables = {f"WEIR_JUDGE_{name}": text for name, text in numbers.items()}
    for name, value in (("", "secret"), ("_FILE", str(tmp_path / "key"))):
        key = {f"WEIR_JUDGE_API_KEY{name}": value}
        settings = deployed_judges(GIVEN | variables | key)[""]
        judges = (settings.api_key, settings.concurrency, settings.timeout_s)
        assert judges == ("secret", 7, 2.5)
        assert "secret" not in repr(settings)


@table(
    """
    name                   | value
    WEIR_JUDGE_MODEL       |
    WEIR_JUDGE_URL         | 127.0.0.1:8000
    WEIR_JUDGE_URL         | http://
    WEIR_JUDGE_URL         | http://h:1e9/v1
    WEIR_JUDGE_URL         | http://h:99999/v1
    WEIR_JUDGE_URL         | http://h/v1?key=1
    WEIR_JUDGE_URL         | http://u:secret@h/v1
    WEIR_JUDGE_URL         | u:secret@h:1e9
    WEIR_JUDGE_API_KEY     | ключ
    WEIR_JUDGE_CONCURRENCY | 0
    WEIR_JUDGE_TIMEOUT_S   | nan
""",
    ("WEIR_JUDGE_API_KEY", "a\nb"),
)
def test_what_is_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(DeploymentError, match=name) as refused:
        deployed_judges({**GIVEN, name: value})
    assert "secret" not in str(refused.value)


STRICT = '{"strict": {"url": "http://10.0.0.5:8000/v1/", "model": "big", "api_key": "k1"}}'


def test_more_judges_have_names_and_the_habits_of_the_first() -> None:
    variables = GIVEN | {"WEIR_JUDGE_API_KEY": "k0", "WEIR_JUDGE_TIMEOUT_S": "7"}
    judges = deployed_judges(variables | {"WEIR_JUDGES": STRICT})
    assert list(judges) == ["", "strict"]
    strict = judges["strict"]
    assert (strict.url, strict.model, strict.api_key) == ("http://10.0.0.5:8000/v1", "big", "k1")
    assert strict.timeout_s == judges[""].timeout_s == 7
    plain = deployed_judges(
        variables | {"WEIR_JUDGES": '{"big": {"url": "http://10.0.0.5:8000/v1"}}'}
    )
    assert (plain["big"].model, plain["big"].api_key) == ("big", None)  # no key of another server
    assert list(deployed_judges(variables)) == [""]
    assert list(deployed_judges({"WEIR_JUDGES": STRICT})) == ["strict"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "WEIR_JUDGES: "),
        ('{"a": {"url": "", "api_key": "k1"}}', "WEIR_JUDGES.a.url: "),
        ('{"a": {"url": "ftp://x", "api_key": "k1"}}', "WEIR_JUDGES.a: WEIR_JUDGE_URL"),
        ('{"a": {"url": "http://x/v1", "key": "k1"}}', "WEIR_JUDGES.a.key: "),
        ('{"judge": {"url": "http://x/v1"}}', "'judge'"),
    ],
)
def test_what_is_wrong_with_more_judges_is_named_without_a_key(text: str, problem: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        deployed_judges({"WEIR_JUDGES": text})
    assert problem in str(caught.value)
    assert "k1" not in str(caught.value)
