"""One training step: a pure loss on a clip, and the engines that apply it. Legend: B clips of the global batch, b of
this rank, T frames, K positions, D latent width, A action block."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lpwm.core.compiled import compiled
from lpwm.core.errors import UserError
from lpwm.core.graphs import Graph, warm_up
from lpwm.core.rng import seed_of
from lpwm.losses import Objective
from lpwm.losses.base import ALONE, Draw, Group
from lpwm.model import WorldModel
from lpwm.model.layers import BatchNorm
from lpwm.optim import set_rates
from lpwm.train.distributed import Ranks
from lpwm.train.monitors import ActivityWindow, observe

Terms = dict[str, Tensor]


def clip_loss(
    model: WorldModel, objective: Objective, pixels: Tensor, actions: Tensor, draw: Draw, group: Group, share: float
) -> Terms:
    """loss = mean((ẑ−z)²) + λR(z) [+ …] of this rank's clips, with the codes z and predictions ẑ. The predictor is
    causal over k positions and is trained at each of them."""
    return code_loss(model, objective, model.encode(pixels), actions, draw, group, share)


def code_loss(
    model: WorldModel, objective: Objective, z: Tensor, a: Tensor, draw: Draw, group: Group = ALONE, share: float = 1.0
) -> Terms:
    """The same from the codes on."""
    K, n = min(model.config.predictor.history, z.shape[1] - 1), objective.config.rollout_steps
    zhat = model.predict(z[:, :K], a[:, :K])
    multistep = model.rollout(z[:, :1], a[:, None, :n]).squeeze(1) if n > 1 else None
    return {**objective(z, zhat, draw, multistep, group, share), "z": z.detach(), "zhat": zhat.detach()}


@dataclass
class Stepper:
    """Forward, backward, average over ranks, clip, update: `stepper(pixels, actions, draw, factor, step)`. On CUDA the
    forward and backward passes are compiled and the whole update is captured once as a CUDA graph, whose inputs are
    fixed buffers; randomness (the draw, dropout's seed) stays outside. On CPU the same code runs eagerly."""

    model: WorldModel
    objective: Objective
    optimizer: torch.optim.Optimizer
    batch: int  # B, global
    seed: int = 0
    clip: float = 0.0
    precision: torch.dtype = torch.float32
    compiled: bool = False
    graphed: bool = False
    kernels: bool = False
    accumulate: int = 1
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.ranks.join_norms(self.model)
        self._loss = compiled(clip_loss) if self.compiled else clip_loss  # first: kernels are kept where it says
        if self.kernels and self.compiled and self.precision == torch.bfloat16:
            self.model.encoder.vit.use_kernels()
        self._group = self.ranks.group(self.batch)
        self._share = self.ranks.share(self.batch)
        self.activity = ActivityWindow(self.model.config.latent, self.device)
        self._graph: Graph[Terms] | None = None
        self._watch: Graph[Terms] | None = None
        self._inputs: list[Tensor] = []
        self._calls = 0
        self._factor: float | None = None  # of the rates that the optimizer has
        self._dropout = any(getattr(m, "dropout", 0) for m in self.model.modules())
        if self.accumulate > 1 and any(isinstance(m, BatchNorm) for m in self.model.modules()):
            raise UserError(
                "gradient accumulation cannot be exact with BatchNorm, whose statistics need the whole batch at once: "
                "use accumulate=1, or LayerNorm (projector.norm=layer, predictor.head_norm=layer)."
            )

    def __call__(self, pixels: Tensor, actions: Tensor, draw: Draw, factor: float, step: int) -> Terms:
        """One update. `factor` scales every rate (the schedule). The result stays on the device."""
        if factor != self._factor:  # eight small kernels less on CUDA
            self._factor = factor
            set_rates(self.optimizer, factor)
        if self._dropout:
            torch.manual_seed(seed_of("dropout", self.seed, step, self.ranks.rank))
        if not self.graphed:
            return self._update(pixels, actions, draw)
        return self._replay([pixels, actions, *draw])

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)

    def monitors(self, actions: Tensor, out: Terms) -> Terms:
        """`observe` on the step just made, and the norm of its gradient. Captured as a graph once the step is one."""
        if self._graph is None:
            return self._observe(actions, out)
        if self._watch is None:
            fixed, outputs = self._inputs[1], self._graph.outputs
            warm_up(lambda: self._observe(fixed, outputs))
            self._watch = Graph(lambda: self._observe(fixed, outputs))
        return dict(self._watch.replay())

    def _observe(self, actions: Tensor, out: Terms) -> Terms:
        with self.autocast():
            values = observe(self.model, out["z"], actions, self._group)
        if "gradient_norm" not in out:  # the step needs it only when it clips; the gradients are still there
            values["gradient_norm"] = self._norm()
        return values

    def _norm(self) -> Tensor:
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def _update(self, pixels: Tensor, actions: Tensor, draw: Draw) -> Terms:
        self.optimizer.zero_grad(set_to_none=True)
        backward = self._accumulated if self.accumulate > 1 else self._whole
        terms = backward(pixels, actions, draw)
        self.ranks.average_gradients(self.parameters)
        if self.clip:
            terms["gradient_norm"] = self._norm()
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, terms["gradient_norm"])
        self.optimizer.step()
        self.activity.update(terms["z"])
        return terms

    def _whole(self, pixels: Tensor, actions: Tensor, draw: Draw) -> Terms:
        with self.autocast():
            terms = self._loss(self.model, self.objective, pixels, actions, draw, self._group, self._share)
        terms["loss"].backward()
        return {k: v.detach() for k, v in terms.items()}

    def _accumulated(self, pixels: Tensor, actions: Tensor, draw: Draw) -> Terms:
        """The same gradient in less memory: two passes over micro-batches. The regularizer needs all codes at once, but
        only the codes. Pass one encodes without gradient and takes dR/dz; pass two encodes again, piece by piece, and
        adds ⟨dR/dz, z⟩ to the piece's own prediction loss, whose gradient is then exactly that of the whole."""
        lam, b = self.objective.config.lam, pixels.shape[0]
        pieces = [slice(i * b // self.accumulate, (i + 1) * b // self.accumulate) for i in range(self.accumulate)]
        if any(p.stop == p.start for p in pieces):
            raise UserError(f"{b} clips cannot be accumulated in {self.accumulate} pieces: use fewer.")
        with torch.no_grad(), self.autocast():
            codes = torch.cat([self.model.encode(pixels[p]) for p in pieces])
        codes.requires_grad_()
        with self.autocast():
            value = self.objective.regularizer(codes, draw, self._group)
        (slope,) = torch.autograd.grad(lam * value, codes)
        total: Terms = {}
        predictions = []
        for p in pieces:
            part = (p.stop - p.start) / b
            with self.autocast():
                z = self.model.encode(pixels[p])
                alone = self.objective.without_regularizer()
                terms = code_loss(self.model, alone, z, actions[p], (), ALONE, self._share * part)
                (terms["loss"] + (z.float() * slope[p].float()).sum()).backward()
            predictions.append(terms.pop("zhat"))
            del terms["z"]
            for name, term in terms.items():
                total[name] = total.get(name, torch.zeros_like(term)) + term.detach()
        total["regularizer"] = value.detach()
        total["loss"] = total["loss"] + lam * value.detach()
        return {**total, "z": codes.detach(), "zhat": torch.cat(predictions)}

    def _replay(self, inputs: list[Tensor]) -> Terms:
        """Three eager updates on a side stream (they compile and allocate), then capture, then replay."""
        self._calls += 1
        if self._graph is None and self._calls <= 3:
            return warm_up(lambda: self._update(inputs[0], inputs[1], tuple(inputs[2:])))
        if self._graph is None:
            self._inputs = [x.clone() for x in inputs]
            pixels, actions, *draw = self._inputs
            self.optimizer.zero_grad(set_to_none=True)
            self._graph = Graph(lambda: self._update(pixels, actions, tuple(draw)))
        for fixed, fresh in zip(self._inputs, inputs, strict=True):
            fixed.copy_(fresh, non_blocking=True)
        return self._graph.replay()
