"""μP for the ladder: rates and initializations under which one learning rate serves every width.

Rule for Adam-type optimizers: a matrix whose fan-in is a *width* learns at η·384/fan_in; biases, norms, embeddings
and matrices whose fan-in is set by the problem (pixels of a patch, raw actions, a rank) learn at η. Hidden matrices
start at N(0, 1/fan_in), embeddings at N(0, 0.02²); deliberate initializations come afterwards.

The authors' code scales by 384/fan_in whatever the fan-in is: `input_lr="fan_in"`. Their published (λ, η) were tuned
with it.

Linear, Embedding and normalization layers are known. For any other parameter its module, or one that holds it, says
what it is: `mup = {"gru.weight_*": "hidden", "gru.bias_*": "bias"}`, patterns of names relative to that module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError, nearest
from lpwm.core.rng import generator
from lpwm.optim.config import OPTIMIZERS, OptimConfig

BASE_WIDTH = 384
Kind = Literal["hidden", "input", "bias", "norm", "embedding"]
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)  # the last: batch, instance


@dataclass(frozen=True)
class Row:
    """One parameter in the schema."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    fan_in: int  # 0 where it has none
    rate: float  # multiple of η
    std: float  # of the initialization; 0 = constant
    parameter: Tensor


def _kinds(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor, Kind]]:
    declared: dict[str, Kind] = {}
    for prefix, module in model.named_modules():  # outer modules first: the innermost declaration stands
        declared |= _declared(prefix, module)
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(prefix=prefix, recurse=False):
            yield name, module, p, declared.get(name) or _known(name, module, p)


def _declared(prefix: str, module: nn.Module) -> dict[str, Kind]:
    """What a module says of its parameters, by full name."""
    kinds: dict[str, Kind] = {}
    patterns = getattr(module, "mup", {}).items()
    for name, p in module.named_parameters():
        kind = next((kind for pattern, kind in patterns if fnmatchcase(name, pattern)), None)
        if kind is None:
            continue
        full = f"{prefix}.{name}" if prefix else name
        if kind not in get_args(Kind):
            raise UserError(f"{full} is declared {kind!r} for μP: {nearest(str(kind), get_args(Kind))}.")
        if kind in ("hidden", "input") and p.ndim < 2:
            raise UserError(
                f"{full} of shape {tuple(p.shape)} is declared {kind!r} for μP, which is for matrices: declare it "
                "'bias' or 'norm'."
            )
        kinds[full] = kind
    return kinds


def _known(name: str, module: nn.Module, p: Tensor) -> Kind:
    if isinstance(module, nn.Linear):
        return "bias" if p.ndim == 1 else "input" if getattr(module, "problem_fan_in", False) else "hidden"
    if isinstance(module, _NORMS):
        return "norm"
    if isinstance(module, nn.Embedding):
        return "embedding"
    leaf = name.rpartition(".")[2]
    raise UserError(
        f"μP does not know what {name} of shape {tuple(p.shape)} in {type(module).__name__} is: declare it in its "
        f"module, or in one that holds it, as mup = {{'*{leaf}': 'hidden'}} (a matrix whose fan-in is a width), "
        "'input' (its fan-in is the problem's), 'embedding', 'bias' (starts at 0) or 'norm' (starts as built)."
    )


def schema(model: nn.Module, config: OptimConfig | None = None) -> list[Row]:
    """Name, kind, fan-in, rate and initialization of every parameter; works on the meta device."""
    config = config or OptimConfig()
    rows = []
    for name, module, p, kind in _kinds(model):
        fan_in = p.numel() // p.shape[0] if kind in ("hidden", "input") else 0
        scaled = kind == "hidden" or (kind == "input" and config.input_lr == "fan_in")
        rate = BASE_WIDTH / fan_in if config.mup and scaled else 1.0
        if fan_in:
            std = fan_in**-0.5
        else:
            std = getattr(module, "position_std", 0.02) if kind == "embedding" else 0.0
        rows.append(Row(name, tuple(p.shape), kind, fan_in, rate, std, p))
    return rows


@torch.no_grad()
def initialize(model: nn.Module, *key: int | str) -> None:
    """N(0, 1/fan_in) for matrices, N(0, 0.02²) for embeddings, 0 for biases, norms as they are; then deliberate ones.
    Drawn on the CPU from the key, parameter by parameter, so that a seed means the same weights on every device."""
    for row in schema(model):
        if row.kind == "bias":
            row.parameter.zero_()
        elif row.std:
            g = generator("init", *key, row.name)
            row.parameter.copy_(torch.randn(row.shape, generator=g) * row.std)
    for module in model.modules():
        deliberate = getattr(module, "deliberate_init", None)
        if callable(deliberate):
            deliberate()


def groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Parameter groups, one per (rate, decayed or not), in a fixed order. `scale` is the multiple of η."""
    table: dict[tuple[float, bool], list[Tensor]] = {}
    for row in schema(model, config):
        table.setdefault((row.rate, row.kind in ("hidden", "input")), []).append(row.parameter)
    return [
        {
            "params": params,
            "lr": config.lr * rate,
            "peak": config.lr * rate,  # what a schedule multiplies
            "scale": rate,
            "weight_decay": config.weight_decay if matrix else 0.0,
        }
        for (rate, matrix), params in table.items()
    ]


def build(model: nn.Module, config: OptimConfig, **options: Any) -> torch.optim.Optimizer:
    """The optimizer over the groups. Decay in AdamW is decoupled and scaled by each group's own rate, as in torch."""
    made = groups(model, config)
    for group in made:
        if config.name == "adam":
            group["weight_decay"] = 0.0
        if options.get("capturable"):  # a captured graph reads the rate from memory
            group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    make = OPTIMIZERS.get(config.name)
    return make(made, lr=config.lr, betas=config.betas, eps=config.eps, **options)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Every group's rate is `factor` times its peak."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # a graph reads the tensor; a number would be frozen into it
            group["lr"].fill_(group["peak"] * factor)
        else:
            group["lr"] = group["peak"] * factor


def table(model: nn.Module, config: OptimConfig | None = None) -> str:
    """The schema as text: name, shape, kind, fan-in, rate, init."""
    rows = [("parameter", "shape", "kind", "fan-in", "rate", "init")]
    for r in schema(model, config):
        init = f"N(0, {r.std:.3g}²)" if r.std else ("1 or 0" if r.kind == "norm" else "0")
        rows.append((r.name, "×".join(map(str, r.shape)), r.kind, str(r.fan_in or "–"), f"{r.rate:.4g}η", init))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
