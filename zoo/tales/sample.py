"""Stories sampled from a small teacher, to widen a corpus that is too short to train on alone.

The teacher (Karpathy's stories260K, MIT licence) has read far more of TinyStories than the cut we train on. A quarter
of a million parameters sample quickly even on one core, so its output is the cheapest text there is; what it gets wrong
(loops, unfinished stories) is filtered out here rather than learned.

Shapes: B rows still being written, T positions so far, K key/value heads, D head size.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from zoo.tales.quality import distinct_ratio


class Teacher:
    """A Llama decoder reduced to what sampling from `<s>` needs: one token a step for many rows at once."""

    def __init__(self, folder: Path) -> None:
        """Read the Hugging Face layout in `folder` (config.json, model.safetensors, tokenizer.json)."""
        config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.layers: int = config["num_hidden_layers"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.groups: int = config["num_attention_heads"] // self.kv_heads
        self.head_dim: int = config["head_dim"]
        self.eps: float = config["rms_norm_eps"]
        self.bos: int = config["bos_token_id"]
        self.eos: int = config["eos_token_id"]
        self.context: int = config["max_position_embeddings"]
        inverse = config["rope_theta"] ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(self.context).float(), inverse).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm with the weight called `name`."""
        return functional.rms_norm(x, (x.shape[-1],), self.weights[name + ".weight"], self.eps)

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """Rotary embedding at one position, in the half-split layout of Hugging Face checkpoints."""
        low, high = x.chunk(2, dim=-1)
        return x * self.cos[position] + torch.cat((-high, low), dim=-1) * self.sin[position]

    def step(self, tokens: Tensor, position: int, cache: Tensor) -> Tensor:
        """Logits [B, vocab] after `tokens` [B] at `position`; fills `cache` [2, layers, B, K, T, D] there."""
        weights, rows = self.weights, tokens.shape[0]
        x = weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            h = self.norm(x, name + "input_layernorm")
            q = (h @ weights[name + "self_attn.q_proj.weight"].T).view(rows, self.kv_heads, self.groups, self.head_dim)
            k = (h @ weights[name + "self_attn.k_proj.weight"].T).view(rows, self.kv_heads, self.head_dim)
            v = (h @ weights[name + "self_attn.v_proj.weight"].T).view(rows, self.kv_heads, self.head_dim)
            cache[0, layer, :, :, position] = self.rotate(k, position)
            cache[1, layer, :, :, position] = v
            keys, values = cache[:, layer, :, :, : position + 1]
            scores = self.rotate(q, position) @ keys.transpose(-1, -2) * self.head_dim**-0.5
            attended = (scores.softmax(dim=-1) @ values).reshape(rows, -1)
            x = x + attended @ weights[name + "self_attn.o_proj.weight"].T
            h = self.norm(x, name + "post_attention_layernorm")
            gate = functional.silu(h @ weights[name + "mlp.gate_proj.weight"].T)
            x = x + (gate * (h @ weights[name + "mlp.up_proj.weight"].T)) @ weights[name + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm") @ weights["model.embed_tokens.weight"].T


def draw(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> Tensor:
    """One token a row [B] from the smallest set of tokens whose probability reaches `top_p`."""
    ordered, order = (logits / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
    ordered[ordered.cumsum(dim=-1) - ordered > top_p] = 0
    return order.gather(1, torch.multinomial(ordered, 1, generator=generator)).squeeze(1)


def write_batch(teacher: Teacher, rows: int, temperature: float, top_p: float, seed: int) -> Iterator[str]:
    """Up to `rows` stories that ended by themselves; rows that ended leave the batch, so the cache shrinks."""
    generator = torch.Generator().manual_seed(seed)
    cache = torch.zeros(2, teacher.layers, rows, teacher.kv_heads, teacher.context, teacher.head_dim)
    written = torch.full((rows, teacher.context + 1), teacher.bos)
    alive = torch.ones(rows, dtype=torch.bool)
    for position in range(teacher.context):
        written[:, position + 1] = draw(
            teacher.step(written[:, position], position, cache), temperature, top_p, generator
        )
        ended = alive & ((written[:, position + 1] == teacher.eos) | (written[:, position + 1] == teacher.bos))
        for row in ended.nonzero().flatten().tolist():
            yield teacher.tokenizer.decode(written[row, 1 : position + 1].tolist()).strip()
        alive &= ~ended
        if not alive.any():
            return
        if alive.sum() < 0.85 * len(alive):
            cache, written, alive = cache[:, :, alive], written[alive], alive[alive]


def is_sound(story: str) -> bool:
    """Whether a sampled story is long enough, finished, even in its quotes and free of loops."""
    if not 350 <= len(story) <= 2200 or story[-1] not in '.!?"':
        return False
    if not story.isascii() or story.count('"') % 2 or not story[0].isupper():
        return False
    return distinct_ratio([story], 4) > 0.93


def main() -> None:
    """Sample until the requested amount of sound text is written, one JSON string a line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="folder of stories260K in Hugging Face layout")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--rows", type=int, default=384)
    parser.add_argument("--temperature", type=float, default=0.9)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    teacher, kept, tried, size, started, seed = Teacher(args.teacher), 0, 0, 0, time.monotonic(), args.seed
    with torch.inference_mode(), args.out.open("a") as out:
        while size < args.megabytes * 1e6:
            for story in write_batch(teacher, args.rows, args.temperature, args.top_p, seed):
                if is_sound(story):
                    out.write(json.dumps(story) + "\n")
                    kept, size = kept + 1, size + len(story)
            seed, tried = seed + 1, tried + args.rows
            out.flush()
            print(f"{tried} tried, {kept} kept, {size / 1e6:.2f} MB, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
