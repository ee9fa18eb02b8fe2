"""The JSON bodies of the SDK's requests."""

from __future__ import annotations

from collections.abc import Mapping
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

from services.gateway.api.openai.body import LenientPart, find_problems
from services.gateway.errors import explain_body, from_lines, wrong

B = TypeVar("B", bound=BaseModel)
EPHEMERAL = "version-"  # the prefix of samplers without a name of the client
MAX_VALUES = 200_000  # a prompt has one for each token
_IDLE: tuple[Any, ...] = (None, False, 0, "", [], {})
Json = dict[str, Any]


def _require_adam(config: Any) -> None:
    if config != {"type": "adamw"}:
        raise ValueError("there is only {'type': 'adamw'}")


AdamConfig = Annotated[None, BeforeValidator(_require_adam)]


class _Fields(LenientPart):
    """Unknown fields are refused, unless they ask for nothing."""

    IGNORED: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def has_effect(cls, name: str, value: Any, fields: Mapping[str, Any]) -> bool:
        if name == "type" or name in cls.IGNORED:
            return False
        return name in cls.model_fields or value not in _IDLE


def _require_usable(body: Json) -> Json:
    if lines := find_problems(body, MAX_VALUES):
        raise from_lines(lines, code="invalid_request")
    return body


JsonBody = Annotated[Json, AfterValidator(_require_usable)]


def parse(kind: type[B], body: Any) -> B:
    """Parse a body; 400 names the field that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise from_lines(explain_body(error), code="invalid_request") from error


class LoraConfig(_Fields):
    """The adapter of a model; its head is never adapted."""

    IGNORED = ("train_unembed",)

    rank: int = Field(ge=0, le=512)
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _adapts_something(self) -> LoraConfig:
        if not (self.train_mlp or self.train_attn):
            raise ValueError("the head alone is not adapted; set train_mlp or train_attn")
        return self


class CreateModel(_Fields):
    """A model that begins with the weights of a base model, or of a saved state."""

    session_id: str = Field(pattern=r"^[\w.:-]{1,128}$")
    model_seq_id: int = Field(ge=0, lt=2**31)
    base_model: str = ""
    path: str = ""
    optimizer: bool = False
    user_metadata: Json = Field(default_factory=dict)
    lora_config: LoraConfig = LoraConfig(rank=0)
    optimizer_config: AdamConfig = None


class OptimStep(_Fields):
    adam_params: AdamW

    @model_validator(mode="before")
    @classmethod
    def _rename_params(cls, data: Json) -> Json:
        params = data.get("adam_params")
        if not isinstance(params, dict):
            return data
        names = {"grad_clip_norm": "max_grad_norm"}
        renamed = {names.get(name, name): value for name, value in params.items()}
        return {**data, "adam_params": renamed}


class SaveWeights(_Fields):
    IGNORED = ("ttl_seconds", "user_metadata", "kind", "sampling_session_seq_id")

    path: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")
    overwrite: bool = False

    @property
    def sampler_name(self) -> str:
        if self.path.startswith(EPHEMERAL):
            raise wrong("path", f"names that begin with {EPHEMERAL!r} are not for clients")
        return self.path


class LoadWeights(_Fields):
    path: str
    optimizer: bool = False
    optimizer_config: AdamConfig = None


class Chunk(_Fields):
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]

    @model_validator(mode="before")
    @classmethod
    def _has_tokens(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type", "encoded_text") != "encoded_text":
            raise ValueError("only chunks of tokens are read, no images and no audio")
        return data


class Prompt(_Fields):
    chunks: list[Chunk]


class SamplingParams(_Fields):
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0)
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class SampleRequest(_Fields):
    IGNORED = ("seq_id",)

    num_samples: int = Field(default=1, ge=1, le=256)
    prompt: Prompt
    sampling_params: SamplingParams = SamplingParams()
    base_model: str = ""
    model_path: str = ""
    sampling_session_id: str = ""
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=20)

    def to_generate_request(self, model: str) -> Json:
        """Return the body of a request to /inference/v1/generate for one sample."""
        stop = self.sampling_params.stop
        stops = [stop] if isinstance(stop, str) else stop or []
        sampling = {
            **self.sampling_params.model_dump(exclude={"stop"}, exclude_none=True),
            "stop": [text for text in stops if isinstance(text, str)],
            "stop_token_ids": [token_id for token_id in stops if isinstance(token_id, int)],
            "ignore_eos": stop == [],
            "logprobs": self.topk_sample_logprobs,
        }
        token_ids = [token for chunk in self.prompt.chunks for token in chunk.tokens]
        return {"model": model, "token_ids": token_ids, "sampling_params": sampling}


def parse_number(body: Json) -> int:
    """Return the number of an operation; 400 without one, since operations run in its order."""
    number = body.get("seq_id")
    if type(number) is not int or not 1 <= number < 2**31:
        raise wrong("seq_id", "must be the number of the request in its session, from 1")
    return number
