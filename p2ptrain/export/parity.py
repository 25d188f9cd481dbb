"""Check that `transformers` computes the same results as our model from an exported folder.

The comparison loads torch, and the process that exports does not. So the comparison is a program of
its own (`trainer.tools.parity`).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.errors import ConfigError, P2PTrainError, TrainerDiverged
from p2ptrain.extras import install

PARAMETERS_MAX = 2_000_000_000
"""Largest model that is compared by default: the two fp32 copies take 16 GB."""

WANTED = "transformers>=4.56"
"""The package that users without transformers are told to install with pip. The message does not
name p2ptrain's extra "hf", because pip would then replace fastecdsa with a version that must be
compiled.
"""

RELATIVE_MAX = 1e-3
"""Largest difference, as a share of the largest logit. Different orders of summation in fp32 differ
by about 1e-6. A wrong rotary convention or a swapped matrix makes a difference of about one."""


@dataclass(frozen=True, slots=True)
class Parity:
    """The result of a comparison. `difference` is the largest difference between two logits of the
    same token, and `largest` is the largest logit."""

    tokens: int
    difference: float
    largest: float
    transformers: str

    @property
    def holds(self) -> bool:
        return self.difference <= RELATIVE_MAX * self.largest

    @property
    def words(self) -> str:
        return (
            f"transformers {self.transformers} computes the same logits: those of {self.tokens} "
            f"tokens differ by at most {self.difference:.2g}; the largest logit is "
            f"{self.largest:.3g}"
        )


def is_wanted(asked: bool | None, parameters: int, *, installed: bool) -> bool:
    """Return whether to compare: as the user `asked`, or by default unless there is a `hindrance`.
    `installed` says whether transformers can be imported.

    Raises ConfigError: the user asked for a comparison, but transformers is not installed.
    """
    if asked and not installed:
        raise ConfigError(
            "transformers is not installed, so there is nothing to compare with",
            do=f"{install(WANTED)}, or leave out --parity",
        )
    return asked if asked is not None else not hindrance(parameters, installed=installed)


def hindrance(parameters: int, *, installed: bool) -> str:
    """Return why the comparison is not made by default, and what to do; "" if it is made."""
    if not installed:
        return f"not installed ({install(WANTED)})"
    if parameters > PARAMETERS_MAX:
        return (
            f"the comparison of {parameters / 1e9:.1f} billion parameters takes a long time; "
            "pass --parity to compare them anyway"
        )
    return ""


def compare(folder: Path, python: str = sys.executable) -> Parity:
    """Compare the logits of our model and of transformers' in a program that `python` runs.

    Raises:
        P2PTrainError: (EXPORT-PARITY) the logits differ, or transformers cannot read the folder.
        TrainerDiverged: the logits are not finite.
    """
    command = [python, "-m", "p2ptrain.trainer.tools.parity", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = done.stderr.splitlines()[-6:]
        raise _fails("the comparison with transformers could not run", why)
    parity = Parity(**json.loads(done.stdout.splitlines()[-1]))
    if not math.isfinite(parity.difference):
        raise TrainerDiverged(
            "the model's output has numbers that are not finite, so it cannot be compared",
            likely="training diverged",
            do="choose an earlier outer step with --snapshot; --no-parity exports without a "
            "comparison",
        )
    if not parity.holds:
        raise _fails(
            "transformers computes different results from these weights",
            [f"logits differ by {parity.difference:.3g}; the largest is {parity.largest:.3g}"],
        )
    return parity


def _fails(what: str, evidence: list[str]) -> P2PTrainError:
    return P2PTrainError(
        what,
        code="EXPORT-PARITY",
        evidence=evidence,
        likely="the export is wrong, or transformers has changed in this version",
        do="report this; --no-parity exports without a comparison",
    )
