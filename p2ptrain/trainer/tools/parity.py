"""A program that compares our logits for an exported folder with those of `transformers`.

`python -m p2ptrain.trainer.tools.parity DIR` prints JSON. It needs transformers 4.56 or newer (the
extra "hf"). Both models compute in fp32 on the CPU, whatever the type of the stored weights. The
tokens are drawn from a fixed seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from p2ptrain.trainer.tools.exported import load_model

SEQUENCE_MAX = 128
"""Maximum length of the compared sequences. This length is enough to detect a wrong rotary
convention; longer sequences would make the comparison slow."""


@torch.inference_mode()
def measure(folder: Path) -> dict[str, object]:
    """Return the fields of `p2ptrain.export.parity.Parity`."""
    import transformers

    ours = load_model(folder, torch.device("cpu"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    spec = ours.spec
    generator = torch.Generator().manual_seed(1)
    shape = (2, min(spec.sequence, SEQUENCE_MAX))
    tokens = torch.randint(spec.vocab, shape, generator=generator)
    mine, other = ours(tokens), theirs(tokens).logits
    return {
        "tokens": tokens.numel(),
        "difference": (mine - other).abs().max().item(),
        "largest": mine.abs().max().item(),
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))  # noqa: T201 — this line is the result.
