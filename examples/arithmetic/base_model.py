"""The parts of the tiny base model: a tokenizer, an untrained Qwen2, imperfect solutions.

`python -m examples.arithmetic.base_model` writes them to `runs/base-model`, where
`weir sft examples/arithmetic/sft.toml DIR` finds them. The files are always the same.
"""

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from examples.arithmetic.authors import write_solution
from examples.arithmetic.tasks import draw_side

FOLDER = Path("runs/base-model")

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
PAD_ID, BOS_ID, EOS_ID = range(3)
# Printable ASCII less ` and ~, which makes 96 entries with the three above. Any other character
# would vanish from a prompt: byte-level BPE has no entry for "unknown".
CHARACTERS = "".join(chr(code) for code in range(32, 127) if chr(code) not in "`~")
SPACE_ENTRY = "\u0120"  # how byte-level BPE writes a space in its vocabulary
VOCABULARY_SIZE = 3 + len(CHARACTERS)
MAX_POSITIONS = 256

SEED = 20
NUM_SOLUTIONS = 128_000


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per character and a BOS in front.

    It is byte-level BPE without merges: AutoTokenizer gives every Qwen2 folder its own Qwen2 class,
    which accepts a vocabulary, merges and a post-processor, but no other kind of model.
    """
    byte_level = [SPACE_ENTRY if character == " " else character for character in CHARACTERS]
    ids = {entry: number for number, entry in enumerate([PAD, BOS, EOS, *byte_level])}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=None,  # by default the Qwen2 class adds a 97th entry
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def make_model() -> Qwen2ForCausalLM:
    """Make the untrained model."""
    config = Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    return Qwen2ForCausalLM(config)


def imperfect_solutions() -> Iterator[dict[str, str]]:
    """Yield random training tasks, each with one solution. Far fewer of them make RL fragile."""
    rng = random.Random(SEED)
    for number, task in enumerate(islice(draw_side(rng, held_out=False), NUM_SOLUTIONS)):
        yield task.record | {"id": f"{number}", "solution": write_solution(task, rng)}


def write_parts(folder: Path) -> None:
    """Write the untrained model with its tokenizer, and the solutions to imitate."""
    torch.manual_seed(SEED)
    make_model().save_pretrained(folder / "untrained")
    make_tokenizer().save_pretrained(folder / "untrained")
    with (folder / "solutions.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in imperfect_solutions())


if __name__ == "__main__":
    write_parts(FOLDER)
