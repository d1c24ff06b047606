"""The seeds of one cell as one model with an extra axis: N small models, one kernel where there were N.

Parameters of the same name are stacked, (N, …), and the networks run through torch.func.vmap; the objective, which
sorts and gathers, is computed seed by seed. Adam is elementwise and gradients are clipped seed by seed, so each seed
gets the update it would have got alone, up to rounding. The N ordinary models stay: their parameters are views of the
stacks, so that logs, monitors, held-out errors and checkpoints are those of ordinary runs, and a run may be continued
stacked or alone.

Legend: N seeds, B clips, T frames, K positions, D latent width, A action block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from lpwm.core.errors import UserError
from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.model.layers import BatchNorm
from lpwm.optim import set_rates
from lpwm.sweep.stack_layers import spell_out
from lpwm.train import RunConfig
from lpwm.train.step import Terms, compiled


def check_stackable(config: RunConfig) -> None:
    """What would not be the same run when stacked is refused."""
    remedy = "train its seeds one after another (without --stack-seeds)"
    with torch.device("meta"):
        model = WorldModel(config.model, 2)
    if any(isinstance(m, BatchNorm) for m in model.modules()):
        raise UserError(
            f"models with BatchNorm cannot be stacked, as its running statistics change in place: {remedy}."
        )
    if any(getattr(m, "dropout", 0) for m in model.modules()):
        raise UserError(
            "models with dropout cannot be stacked, as its noise is drawn for one model at a time: use "
            f"model.predictor.dropout = 0, or {remedy}."
        )
    if config.train.accumulate > 1:
        raise UserError(f"stacked seeds cannot accumulate gradients: {remedy}, or use train.accumulate = 1.")


class _Net(nn.Module):
    """encode and predict as one module, for functional_call."""

    def __init__(self, model: WorldModel, steps: int) -> None:
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, pixels: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        z = self.model.encode(pixels)
        K = min(self.model.config.predictor.history, z.shape[1] - 1)
        zhat = self.model.predict(z[:, :K], actions[:, :K])
        if self.steps == 1:
            return z, zhat
        return z, zhat, self.model.rollout(z[:, :1], actions[:, None, : self.steps]).squeeze(1)


@dataclass
class StackedStepper:
    """Forward, backward, clip, update for N models at once: the counterpart of `train.step.Stepper`.

    `graphed`: the whole update is captured once as a CUDA graph; `compiled`: the networks go through torch.compile.
    """

    models: Sequence[WorldModel]
    objective: Objective
    optimizers: Sequence[torch.optim.Optimizer]  # one per model, perhaps restored; their state is taken over
    clip: float = 0.0
    precision: torch.dtype = torch.float32
    compiled: bool = False
    graphed: bool = False

    def __post_init__(self) -> None:
        self.device = next(self.models[0].parameters()).device
        steps = self.objective.config.rollout_steps
        nets = [_Net(m, steps) for m in self.models]
        self.params, self.buffers = stack_module_state(nets)
        skeleton = spell_out(copy.deepcopy(nets[0]).to("meta").train(), self.compiled)
        for name, stacked in self.params.items():
            for i, net in enumerate(nets):
                net.get_parameter(name).data = stacked.data[i]

        def call(params: dict[str, Tensor], buffers: dict[str, Tensor], pixels: Tensor, actions: Tensor) -> Any:
            return functional_call(skeleton, (params, buffers), (pixels, actions))

        run: Callable[..., Any] = vmap(call)
        self._run = compiled(run) if self.compiled else run
        self.optimizer = self._stack_optimizer(nets[0])
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: list[Terms] = []
        self._calls = 0

    def _stack_optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """Adam over the stacks, group by group as over one model, with the state of the N optimizers."""
        names = {id(p): name for name, p in net.named_parameters()}
        first = self.optimizers[0]
        groups = []
        for group in first.param_groups:
            hyper = {k: v.clone() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
            groups.append({**hyper, "params": [self.params[names[id(p)]] for p in group["params"]]})
        made = type(first)(groups)  # type: ignore[call-arg]
        for number, group in enumerate(made.param_groups):
            for j, stacked in enumerate(group["params"]):
                alone = [o.state.get(o.param_groups[number]["params"][j], {}) for o in self.optimizers]
                if all(alone):
                    made.state[stacked] = {
                        k: v.clone() if k == "step" else torch.stack([s[k] for s in alone]) for k, v in alone[0].items()
                    }
        return made

    def spread(self) -> None:
        """Give the N optimizers views of the stacked state, for checkpoints."""
        for i, alone in enumerate(self.optimizers):
            for mine, theirs in zip(self.optimizer.param_groups, alone.param_groups, strict=True):
                theirs["lr"] = mine["lr"]
                for stacked, p in zip(mine["params"], theirs["params"], strict=True):
                    state = self.optimizer.state.get(stacked, {})
                    alone.state[p] = {k: v if k == "step" else v[i] for k, v in state.items()}

    def __call__(
        self, pixels_NBTchw: Tensor, actions_NBTA: Tensor, draws: Sequence[tuple[Tensor, ...]], factor: float
    ) -> list[Terms]:
        """One update of all; the terms of each seed, with its codes and predictions."""
        set_rates(self.optimizer, factor)
        flat = [pixels_NBTchw, actions_NBTA, *(t for draw in draws for t in draw)]
        return self._replay(flat) if self.graphed else self._update(flat)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)

    def _update(self, flat: Sequence[Tensor]) -> list[Terms]:
        self.optimizer.zero_grad(set_to_none=True)
        N, per = len(self.models), (len(flat) - 2) // len(self.models)
        out: list[Terms] = []
        with self.autocast():
            found = self._run(self.params, self.buffers, flat[0], flat[1])
            for i in range(N):
                z, zhat, *rest = (x[i] for x in found)
                draw = tuple(flat[2 + i * per : 2 + (i + 1) * per])
                terms = self.objective(z, zhat, draw, rest[0] if rest else None)
                out.append({**terms, "z": z, "zhat": zhat})
        torch.stack([terms["loss"] for terms in out]).sum().backward()
        norms = self._clip()
        self.optimizer.step()
        found = [{k: v.detach() for k, v in terms.items()} for terms in out]
        return [{**terms, "gradient_norm": norms[i]} for i, terms in enumerate(found)]

    def _clip(self) -> Tensor:
        """The norm of each seed's gradient (N,); each is cut to `clip` on its own."""
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
        if self.clip:
            scale = (self.clip / (norms + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
            for g in grads:
                g.mul_(scale.view(-1, *(1,) * (g.ndim - 1)))
        return norms

    def _replay(self, flat: Sequence[Tensor]) -> list[Terms]:
        """As `Stepper`: three eager updates on a side stream, then capture, then replay."""
        self._calls += 1
        if self._graph is None and self._calls <= 3:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out = self._update(flat)
            torch.cuda.current_stream().wait_stream(side)
            return out
        if self._graph is None:
            self._inputs = [x.clone() for x in flat]
            self._graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self._graph):
                self._outputs = self._update(self._inputs)
        for fixed, fresh in zip(self._inputs, flat, strict=True):
            fixed.copy_(fresh, non_blocking=True)
        self._graph.replay()
        return self._outputs
