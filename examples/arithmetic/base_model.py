"""Makes the tiny base model: a character tokenizer, a 604,288-parameter Qwen2, a warm start.

Run `python -m examples.arithmetic.base_model OUT_DIR`: about five minutes on one core. With
torch 2.13.0 (CPU), one thread and the default seed it reproduces the shipped `base-model/` bit for
bit on the kind of processor that made it (x86-64 with AVX-512); elsewhere the last bits may differ.
The last line printed is the digest of the weights, to compare with `SHIPPED_WEIGHTS_SHA256`.
"""

import hashlib
import random
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from examples.arithmetic.authors import write_solution
from examples.arithmetic.tasks import draw_side

SHIPPED_WEIGHTS_SHA256 = "7db468bb376fddc1a22446cf8593c5531b6424db327fe938a8482111fa162f67"

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = range(3)
# Printable ASCII less ` and ~, which makes 96 entries with the three above. Any other character
# would vanish from a prompt: byte-level BPE has no entry for "unknown".
CHARACTERS = "".join(chr(code) for code in range(32, 127) if chr(code) not in "`~")
SPACE_ENTRY = "\u0120"  # how byte-level BPE writes a space in its vocabulary
VOCABULARY_SIZE = 3 + len(CHARACTERS)
MAX_POSITIONS = 256

WARM_START_SEED = 20
NUM_BATCHES = 2_000
BATCH_SIZE = 64
WARM_UP_BATCHES = 50
PEAK_LEARNING_RATE = 2e-3
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
LOG_EVERY = 100
IGNORED_LABEL = -100


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, a BOS in front, and a decoder that puts nothing in between.

    Byte-level BPE without a single merge: AutoTokenizer gives every Qwen2 folder its own Qwen2
    class, which takes over a vocabulary, merges and post-processor, but no other kind of model.
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
        unk_token=None,  # said aloud, or the Qwen2 class adds a 97th entry of its own
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def make_model() -> Qwen2ForCausalLM:
    """The untrained model, small enough to be committed and sampled on a laptop."""
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


def imperfect_batches(
    tokenizer: PreTrainedTokenizerBase, rng: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids and labels, both [example, token], right-padded; labels only on the answers."""
    tasks = draw_side(rng, held_out=False)
    while True:
        batch = list(islice(tasks, BATCH_SIZE))
        texts = [f"{task.prompt}{write_solution(task, rng)}{EOS}" for task in batch]
        token_ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
        labels = token_ids.masked_fill(token_ids == PAD_ID, IGNORED_LABEL)
        for row, task in zip(labels, batch, strict=True):
            row[: 1 + len(task.prompt)] = IGNORED_LABEL  # the BOS and one token per character
        yield token_ids, labels


def learning_rate_factor(batch: int) -> float:
    """Linear warm-up, then linear decay to zero, as a factor of the peak."""
    warm_up = (batch + 1) / WARM_UP_BATCHES
    decay = (NUM_BATCHES - batch) / (NUM_BATCHES - WARM_UP_BATCHES)
    return min(warm_up, decay)


def warm_start(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Supervised training on the imperfect data, in place. Far fewer batches make RL fragile."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    batches = islice(imperfect_batches(tokenizer, random.Random(WARM_START_SEED)), NUM_BATCHES)
    started = time.monotonic()
    for number, (token_ids, labels) in enumerate(batches, start=1):
        # Padding is on the right, so causal attention needs no mask.
        loss = model(input_ids=token_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if number % LOG_EVERY == 0:
            elapsed_s = time.monotonic() - started
            print(f"batch {number}: loss {loss.item():.4f}, {elapsed_s:.0f} s", flush=True)


def weights_sha256(folder: Path) -> str:
    """The digest by which shipped weights are recognised."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def make_base_model(folder: Path) -> None:
    """Trains the model and writes it with its tokenizer: the whole of the shipped folder."""
    torch.set_num_threads(1)  # the order of additions, hence the last bits, depends on it
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(WARM_START_SEED)
    tokenizer = make_tokenizer()
    model = make_model()
    warm_start(model, tokenizer)
    model.half().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)  # a fresh one: a used one would save its padding too


if __name__ == "__main__":
    make_base_model(Path(sys.argv[1]))
    print(f"sha256 {weights_sha256(Path(sys.argv[1]))}")
