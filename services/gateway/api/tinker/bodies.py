"""The JSON bodies of the SDK's requests, as far as they mean something here."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from protocol.operations import AdamW
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from services.gateway.api.openai.body import Part, unusable
from services.gateway.errors import explain_body, from_lines, wrong

B = TypeVar("B", bound=BaseModel)
EPHEMERAL = "version-"  # how the names of samplers begin that no client has named
_IDLE: tuple[Any, ...] = (None, False, 0, "", [], {})
_MOST_VALUES = 200_000  # a prompt has one for each token
Json = dict[str, Any]


def _adam_alone(config: Any) -> None:
    if config != {"type": "adamw"}:
        raise ValueError("there is only {'type': 'adamw'}")


AdamAlone = Annotated[None, BeforeValidator(_adam_alone)]


class _Fields(Part):
    """Unknown fields are refused, unless they ask for nothing or change nothing here."""

    PASSED: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_idle(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        idle = {name for name, value in data.items() if value in _IDLE} - cls.model_fields.keys()
        passed = idle | {"type", *cls.PASSED}
        return {n: v for n, v in data.items() if v is not None and n not in passed}


def _usable(body: Json) -> Json:
    if lines := unusable(body, _MOST_VALUES):
        raise from_lines(lines, code="invalid_request")
    return body


Sent = Annotated[Json, AfterValidator(_usable)]


def read(kind: type[B], body: Any) -> B:
    """A body of a kind; 400 names what is wrong with it."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise from_lines(explain_body(error), code="invalid_request") from error


class Lora(_Fields):
    """What is adapted; the head never is."""

    PASSED = ("train_unembed",)

    rank: int = Field(ge=0, le=512)
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _adapts_something(self) -> Lora:
        if not (self.train_mlp or self.train_attn):
            raise ValueError("the head alone is not adapted; set train_mlp or train_attn")
        return self


class NewModel(_Fields):
    """A model that begins with the weights of a base model, or with those of a saved state."""

    session_id: str = Field(pattern=r"^[\w.:-]{1,128}$")
    model_seq_id: int = Field(ge=0, lt=2**31)
    base_model: str = ""
    path: str = ""
    optimizer: bool = False
    user_metadata: Json = Field(default_factory=dict)
    lora_config: Lora = Lora(rank=0)
    optimizer_config: AdamAlone = None


class OptimStep(_Fields):
    adam_params: AdamW

    @model_validator(mode="before")
    @classmethod
    def _named_as_here(cls, data: Json) -> Json:
        if not isinstance(given := data.get("adam_params"), dict):
            return data
        names = {"grad_clip_norm": "max_grad_norm"}
        return data | {"adam_params": {names.get(name, name): v for name, v in given.items()}}


class Save(_Fields):
    PASSED = ("ttl_seconds", "user_metadata", "kind", "sampling_session_seq_id")

    path: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")
    overwrite: bool = False

    @property
    def sampler_name(self) -> str:
        if self.path.startswith(EPHEMERAL):
            raise wrong("path", f"names that begin with {EPHEMERAL!r} are not for clients")
        return self.path


class Load(_Fields):
    path: str
    optimizer: bool = False
    optimizer_config: AdamAlone = None


class Chunk(_Fields):
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]

    @model_validator(mode="before")
    @classmethod
    def _is_of_tokens(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type", "encoded_text") != "encoded_text":
            raise ValueError("only chunks of tokens are read, no images and no audio")
        return data


class Prompt(_Fields):
    chunks: list[Chunk]


class Sampling(_Fields):
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0)
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Sample(_Fields):
    PASSED = ("seq_id",)

    num_samples: int = Field(default=1, ge=1, le=256)
    prompt: Prompt
    sampling_params: Sampling = Sampling()
    base_model: str = ""
    model_path: str = ""
    sampling_session_id: str = ""
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=20)

    @property
    def as_asked_at_the_door(self) -> Json:
        """One of the samples, as the model door is asked for it."""
        given = self.sampling_params
        stop = [given.stop] if isinstance(given.stop, str) else given.stop or []
        sampling = {
            **given.model_dump(exclude={"stop"}, exclude_none=True),
            "stop": [each for each in stop if isinstance(each, str)],
            "stop_token_ids": [each for each in stop if isinstance(each, int)],
            "ignore_eos": given.stop == [],
            "logprobs": self.topk_sample_logprobs,
        }
        tokens = [token for chunk in self.prompt.chunks for token in chunk.tokens]
        return {"token_ids": tokens, "sampling_params": sampling}


def number_of(body: Json) -> int:
    """The number of an operation; 400 without one, since nothing tells then when it is its turn."""
    number = body.get("seq_id")
    if type(number) is not int or not 1 <= number < 2**31:
        raise wrong("seq_id", "must be the number of the request in its session, from 1")
    return number
