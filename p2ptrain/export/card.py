"""The model card: the README.md of an exported folder, for readers who do not know the run."""

from __future__ import annotations

from p2ptrain.errors import counted
from p2ptrain.export.provenance import Provenance
from p2ptrain.export.tensor_file import Dtype
from p2ptrain.ids import Digest
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.names import label
from p2ptrain.trainer.formats.huggingface import FAMILIES
from p2ptrain.trainer.formats.shapes import parameter_count

_BITS = {
    "fp32": "fp32, identical to the run's weights, bit for bit",
    "bf16": "bf16, each weight rounded from the run's fp32 value",
}


CONTRIBUTORS_MAX = 200
"""Maximum number of peers that the card names. `p2ptrain.json` has all of them."""

_MARKUP = frozenset("\\`*_{}[]<>()#+-!|&~^=$:@\"'")
"""The characters that Markdown, HTML or mathematics in Markdown may interpret. They are written as
character references. Without ":" and "@", no address becomes a link."""


def card(origin: Provenance, spec: ModelSpec, dtype: Dtype, theta: Digest, example: str) -> str:
    """Return the model card. `example` is a text that the model's tokenizer can encode."""
    warning = [] if origin.loudly is None else [f"> **{origin.loudly}**", ""]
    tokens = "unknown" if origin.tokens is None else f"{origin.tokens:,}"
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            "tags: [p2ptrain]",
            "---",
            "",
            f"# {origin.run_name}, outer step {origin.step}",
            "",
            *warning,
            f"{FAMILIES[spec.qk_norm][1]} of {parameter_count(spec):,} parameters, trained "
            "with p2ptrain by peers that average their weights over the internet and sign a "
            "ledger of their work.",
            *_about(origin),
            "| | |",
            "|---|---|",
            f"| run | `{origin.run}` ({origin.run_name}) |",
            f"| organiser | {label(origin.organiser)}, `{origin.organiser}` |",
            *([f"| contact | {_literal(origin.contact)} |"] if origin.contact else []),
            f"| outer step | {origin.step} of {origin.steps_planned} planned |",
            f"| tokens trained on | {tokens} |",
            f"| data | index `{origin.data_index}`: {origin.train_blocks:,} blocks of "
            f"{origin.block_tokens:,} tokens |",
            f"| snapshot | `{origin.snapshot}` of outer step {origin.snapshot_step} |",
            f"| certified by | {origin.words} |",
            f"| ledger | height {origin.ledger_height}, newest entry `{origin.ledger_head}` |",
            f"| blake3 of θ, fp32 | `{theta}` |",
            f"| weights here | {_BITS[dtype]} |",
            f"| model | {_model(spec)} |",
            "",
            "`p2ptrain.json` has the same facts for programs. Anyone who holds the run's "
            "ledger can check the weights: `p2ptrain verify`, `p2ptrain ckpt verify`.",
            "",
            "## Use",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
            'model = AutoModelForCausalLM.from_pretrained("FOLDER")',
            f'tokens = tokenizer("{example}", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**tokens, max_new_tokens=50)[0]))",
            "```",
            "",
            f'or `p2ptrain chat FOLDER "{example}"`.',
            "",
            "## Licence",
            "",
            _licence(origin),
            "",
            *_contributors(origin),
        ]
    )


def _model(spec: ModelSpec) -> str:
    return (
        f"{counted(spec.layers, 'layer')} of width {spec.width}, "
        f"{counted(spec.heads, 'head')}, {counted(spec.kv_heads, 'key-value head')}, "
        f"feed-forward {spec.ffn}, vocabulary {spec.vocab}, context {spec.sequence}, "
        f"rotary base {spec.rope_base:g}, {'tied' if spec.tied else 'untied'} embeddings"
    )


def _about(origin: Provenance) -> list[str]:
    """Return the organiser's description of the run as a paragraph, if there is one."""
    return ["", _literal(origin.description), ""] if origin.description else [""]


def _licence(origin: Provenance) -> str:
    if origin.licence:
        return f"The run's organiser names this licence: {_literal(origin.licence)}"
    return (
        "The run's organiser decides on the licence of the weights; this export does not "
        "know it. Ask before you pass them on."
    )


def _contributors(origin: Provenance) -> list[str]:
    """Return a section that names who contributed, with the tokens that a quorum certified."""
    if not origin.contributors:
        return []
    total = sum(tokens for _, tokens in origin.contributors)
    named = origin.contributors[:CONTRIBUTORS_MAX]
    more = len(origin.contributors) - len(named)
    return [
        "## Contributors",
        "",
        "Thanks to everyone who trained this model. The members certified these tokens in the "
        "run's ledger, and anyone can count them from its first entry on.",
        "",
        "| peer | tokens | share |",
        "|---|---|---|",
        *(f"| {label(peer)} | {tokens:,} | {tokens / total:.1%} |" for peer, tokens in named),
        *([f"| {counted(more, 'more peer')} | | |"] if more else []),
        "",
    ]


def _literal(text: str) -> str:
    """Return `text` for Markdown, in which all of its characters stand for themselves. The
    organiser's text could otherwise contain HTML, images, or the end of a table."""
    return "".join(f"&#{ord(each)};" if each in _MARKUP else each for each in text)
