"""lpwm params: how many parameters each rung has at each width, counted on the meta device."""

import json
from dataclasses import dataclass

from lpwm.cli.terminal import say
from lpwm.core.errors import UserError
from lpwm.model import PAPER_RUNGS, PREDICTORS, PredictorConfig, title_of


@dataclass(frozen=True)
class Args:
    widths: tuple[int, ...] = (384, 768, 1536, 2048, 4096)  # Latent widths D.
    history: int = 3  # Context frames k.
    rungs: tuple[str, ...] = PAPER_RUNGS  # Which rungs.
    json: bool = False  # Print exact integers as JSON.


def count(rung: str, latent: int, history: int) -> int:
    import torch

    with torch.device("meta"):
        predictor = PredictorConfig(rung=rung, history=history).build(latent)
    return sum(p.numel() for p in predictor.parameters())


def rounded(rung: str, n: int) -> str:
    """The paper's rounding: one decimal of a million, two for the small rungs below ten million."""
    millions = n / 1e6
    return f"{millions:.1f}M" if "adaln" in rung or millions >= 9.995 else f"{millions:.2f}M"


def run(args: Args) -> int:
    for rung in args.rungs:
        PREDICTORS.check(rung)
    if not args.widths or min(args.widths) < 1:
        raise UserError("--widths needs one or more positive widths, for instance --widths 384 768.")
    counts = {rung: {D: count(rung, D, args.history) for D in args.widths} for rung in args.rungs}
    if args.json:
        say(json.dumps({"history": args.history, "predictor_parameters": counts}, indent=2))
        return 0
    width = max(len(title_of(rung)) for rung in args.rungs)
    say(f"{'predictor, k=' + str(args.history):<{width}}" + "".join(f"{'D=' + str(D):>10}" for D in args.widths))
    for rung, row in counts.items():
        say(f"{title_of(rung):<{width}}" + "".join(f"{rounded(rung, n):>10}" for n in row.values()))
    return 0
