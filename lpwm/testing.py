"""The contracts as functions: what every world, predictor and solver promises.

`check_world("ball")`, `check_predictor(GRUPredictor)` and `check_solver(lpwm.CEMConfig(samples=64))` return nothing, or
raise `ContractError`, which says which promise broke, with the numbers. They take seconds on a CPU.

N environments, S state entries, A action entries; B batch, K positions, D latent width, H blocks.
"""

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.model.predictors import PREDICTORS, steps_as_forward
from lpwm.model.predictors.check import TOLERANCE, rolls_out_by_steps, scrambled, step_errors
from lpwm.optim import OptimConfig, schema
from lpwm.plan import LatentProblem, Problem, make_solver
from lpwm.worlds import WORLDS, SimWorld, TensorWorld, WorldSpec, make_policy, make_world, rollout, row_keys


class ContractError(UserError):
    """A promise that does not hold."""


@dataclass(frozen=True)
class _Checks:
    """Raises for a part of the library, by name."""

    who: str

    def __call__(self, holds: Any, promise: str) -> None:
        if not bool(holds):
            raise ContractError(f"{self.who}: {promise}.")

    def tensor(self, value: Any, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
        self(isinstance(value, Tensor), f"{what} must be a tensor, not {type(value).__name__}")
        given, wanted = (f"{d} of shape {tuple(s)}" for d, s in ((value.dtype, value.shape), (dtype, shape)))
        self(given == wanted, f"{what} must be {wanted}, not {given}".replace("torch.", ""))

    def equal(self, a: Tensor, b: Tensor, promise: str, tolerance: float = 0.0) -> None:
        a, b = a.double(), b.double()
        apart = float((a - b).abs().max()) if a.shape == b.shape and a.numel() else float(a.shape != b.shape)
        self(apart <= tolerance, f"{promise} (they differ by up to {apart:.3g})")

    def inside(self, value: Tensor, low: tuple[float, ...], high: tuple[float, ...], what: str) -> None:
        for k, (least, most) in enumerate(zip(low, high, strict=True)):
            a, b = float(value[..., k].min()), float(value[..., k].max())
            told = f"entry {k} is in [{a:.6g}, {b:.6g}] and not in [{least:g}, {most:g}]"
            self(a >= least and b <= most, f"{what} must stay in its bounds, but {told}")


# Worlds -------------------------------------------------------------------------------------------------------


def check_world(world: Any, **options: Any) -> None:
    """A world, or its name with options: spec, draws by row, steps, frames, success, factors, policies."""
    if isinstance(world, str):
        world = make_world(world, **options)
    check = _Checks(f"world {type(world).__name__}")
    live, pure = hasattr(world, "open"), hasattr(world, "step")
    check(live != pure, "it must have either step (a TensorWorld) or open (a SimWorld)")
    missing = sorted(n for n in dir(SimWorld if live else TensorWorld) if n[0] != "_" and not hasattr(world, n))
    check(not missing, f"it lacks {', '.join(missing)}")
    check(isinstance(world.spec, WorldSpec), f"spec must be a WorldSpec, not {type(world.spec).__name__}")
    check = _Checks(f"world {world.spec.name!r}")
    moves = _check_steps if pure else _check_live
    for part in (_check_spec, _check_draws, moves, _check_frames, _check_success, _check_policies):
        part(check, world)


def _check_spec(check: _Checks, world: Any) -> None:
    spec = world.spec
    for names, low, high in (("action", spec.action_low, spec.action_high), ("state", spec.state_low, spec.state_high)):
        size = len(getattr(spec, f"{names}_names"))
        sizes = {len(low), len(high)}
        check(sizes == {size} or (names == "state" and sizes == {0}), f"{names}_low and _high need {size} numbers each")
        check(all(a < b for a, b in zip(low, high, strict=True)), f"{names}_low must be below {names}_high")
    check(spec.frame >= 8 and spec.episode >= 1, f"frame is {spec.frame} and episode {spec.episode}: at least 8 and 1")
    kind = type(world)
    try:
        options = json.loads(json.dumps(spec.options))
        build: Any = WORLDS.get(spec.name) if spec.name in WORLDS else None
        known = getattr(build, "func", build) is kind  # of a family of names it is a partial
        again = make_world(spec.name, **options) if known else kind(**options)
    except TypeError as error:
        raise ContractError(f"{check.who}: spec.options must be JSON that rebuilds it: {error}.") from None
    check(again == world and hash(again) == hash(world), "spec.options must rebuild an equal world, of equal hash")
    try:
        pickle.dumps(world)
    except Exception as error:
        importable = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
        check(not importable, f"worker processes need to pickle it: {error}")


def _check_draws(check: _Checks, world: Any) -> None:
    spec = world.spec
    for name in ("sample_state", "sample_goal"):
        draw = getattr(world, name)
        rows = draw(20, (0, "check"), 5)
        check.tensor(rows, (20, spec.state_dim), torch.float32, name)
        check(rows.isfinite().all(), f"{name} must be finite")
        promise = f"row i of {name} must depend on (key, start + i) alone, not on how many are drawn"
        check.equal(draw(3, (0, "check"), 12), rows[7:10], promise)
        check(not torch.equal(draw(20, (1, "check"), 5), rows), f"{name} must depend on the key")
        check.tensor(draw(0, (0,)), (0, spec.state_dim), torch.float32, f"{name} of no rows")
        if spec.state_low:
            check.inside(draw(100, (2,)), spec.state_low, spec.state_high, name)
    same = torch.equal(world.sample_state(5, (3,)), world.sample_goal(5, (3,)))
    check(not same, "starts and goals of one key must differ")


def _actions(world: Any, n: int, steps: int) -> Tensor:
    low, high = (torch.tensor(b) for b in (world.spec.action_low, world.spec.action_high))
    return low + (high - low) * torch.rand((n, steps, len(low)), generator=generator("actions"))


def _check_steps(check: _Checks, world: Any) -> None:
    n, spec = 16, world.spec
    state, actions = world.sample_state(n, (4,)), _actions(world, n, 30)
    states = [state]
    for action in actions.unbind(1):
        before = states[-1].clone()
        after = world.step(states[-1], action)
        check.tensor(after, (n, spec.state_dim), torch.float32, "step")
        check.equal(states[-1], before, "step must not change its argument")
        states.append(after)
    path = torch.stack(states, 1)
    check(path.isfinite().all(), "step must stay finite")
    check(not torch.equal(path[:, 0], path[:, -1]), "30 random actions must change the state")
    if spec.state_low:
        check.inside(path, spec.state_low, spec.state_high, "the state after a step")
    close = 1e-5 * (1 + float(path.abs().max()))
    again = world.step(path[:, :-1], actions)
    check.equal(again, path[:, 1:], "step must take any leading shape, and no row may depend on others", close)
    one = world.step(path[5, 3], actions[5, 3])
    check.equal(one, path[5, 4], "step of one row must equal its row of a batch", close)


def _check_live(check: _Checks, world: Any) -> None:
    n, spec = 4, world.spec
    state, actions = world.sample_state(n, (4,)), _actions(world, n, 6)
    live = world.open(state)
    try:
        check.equal(live.states, state, "open(states) must start there", 1e-3)
        path = torch.stack([live.step(a) for a in actions[:, :3].unbind(1)], 1)
        check.tensor(path, (n, 3, spec.state_dim), torch.float32, "three steps of the simulators")
        ahead, before = live.branches(actions[:, None, 3:]), live.states.clone()
        snapshot = live.snapshot()
        onward = torch.stack([live.step(a) for a in actions[:, 3:].unbind(1)], 1)
        check.equal(live.states, onward[:, -1], "states must be those after the last step")
        check.equal(ahead[:, 0], onward, "branches must foretell the steps, and move nothing")
        again = world.open(snapshot)
        check.equal(again.states, before, "open(snapshot) must continue where it was taken")
        check.equal(again.step(actions[:, 3]), onward[:, 0], "open(snapshot) must continue exactly")
        again.close()
        rows = torch.tensor([2, 0])
        check.equal(live.restart(rows, state[rows]), state[rows], "restart must start rows anew", 1e-3)
        check.equal(live.states[1], onward[1, -1], "restart must leave the other rows alone")
        check.equal(live.step(actions[rows, 0], rows), path[rows, 0], "rows must move alone, as from their start")
    finally:
        live.close()


def _check_frames(check: _Checks, world: Any) -> None:
    state = world.sample_state(4, (5,))
    for size, rows in ((None, 1), (65, 1), (32, 4)):
        side = size or world.spec.frame
        frames = world.render(state[:rows], size)
        check.tensor(frames, (rows, 3, side, side), torch.uint8, f"render(state, {size})")
        check(frames.is_contiguous(), f"render(state, {size}) must be contiguous")
    check.equal(frames, world.renderer(32)(state), "renderer(32) must draw what render does")
    check.equal(frames[2:3], world.render(state[2:3], 32), "a frame must not depend on the other rows")
    check(len(frames.flatten(1).unique(dim=0)) > 1, "different states must give different frames")
    check.tensor(world.render(state[:0], 32), (0, 3, 32, 32), torch.uint8, "render of no states")


def _check_success(check: _Checks, world: Any) -> None:
    spec, n = world.spec, 200
    state, goal = world.sample_state(n, (6,)), world.sample_goal(n, (6,))
    distance, success = world.distance(state, goal), world.success(state, goal)
    check(isinstance(distance, Tensor) and distance.shape == (n,), f"distance must give one number per row, ({n},)")
    check.tensor(success, (n,), torch.bool, "success")
    check(float(distance.min()) >= 0, f"distance must not be negative, and is {float(distance.min()):.3g}")
    check.equal(world.distance(state, state), torch.zeros(n), "the distance of a state from itself must be 0")
    check(world.success(state, state).all(), "a state must succeed where it is itself the goal")
    check(not success.all(), f"all of {n} random starts already succeed at random goals")
    if spec.success_within:
        wrong = int((success != (distance < spec.success_within)).sum())
        told = f"success_within = {spec.success_within:g}, and differs in {wrong} of {n} rows"
        check(not wrong or hasattr(world, "plan_cost"), f"success must be distance < {told}")
    grid = world.distance(state.view(10, 20, -1), goal.view(10, 20, -1))
    check.equal(grid.flatten(), distance, "distance must take any leading shape", 1e-4)
    factors = world.factors(state)
    check(tuple(factors) == spec.factors, f"factors are {tuple(factors)}, and spec.factors says {spec.factors}")
    for name, value in factors.items():
        check(value.shape == (n,), f"factor {name!r} must have shape ({n},), not {tuple(value.shape)}")


def _check_policies(check: _Checks, world: Any) -> None:
    spec, n, steps = world.spec, 6, 8
    state, goal = world.sample_state(n, (7,)), world.sample_goal(n, (7,))
    for name in dict.fromkeys(("random", spec.policy)):
        policy = make_policy(world, name)
        _, actions = rollout(world, policy, state, goal, row_keys((7,), n), steps)
        check.tensor(actions, (n, steps, spec.action_dim), torch.float32, f"actions of policy {name!r}")
        check.inside(actions, spec.action_low, spec.action_high, f"an action of policy {name!r}")
        part = rollout(world, policy, state[2:4], goal[2:4], row_keys((7,), 2, start=2), steps)[1]
        check.equal(part, actions[2:4], f"policy {name!r} must act by the row's key alone", 1e-3)


# Predictors ---------------------------------------------------------------------------------------------------

Build = Callable[[PredictorConfig, int], nn.Module]


def check_predictor(build: Build | str, *, history: int = 3, latent: int = 12) -> None:
    """A registered name, or what builds a predictor: shapes, causality, `step`, `freeze` and μP."""
    name = build if isinstance(build, str) else getattr(build, "__name__", "predictor")
    check = _Checks(f"predictor {name!r}")
    config = PredictorConfig(rung=name if isinstance(build, str) else "lti", history=history, **_SMALL)
    with torch.random.fork_rng(devices=[]):
        made: Any = PREDICTORS.get(build)(config, latent) if isinstance(build, str) else build(config, latent)
    check(isinstance(made, nn.Module), f"it must build a torch.nn.Module, not {type(made).__name__}")
    lags = getattr(made, "lags", history)
    check(isinstance(lags, int) and lags >= 1, f"lags must be at least 1, and is {lags!r}")
    probe: Any = scrambled(made, name).double()
    _check_forward(check, probe, lags, latent)
    if hasattr(made, "step"):
        _check_step(check, made, name, lags, latent)
    _check_model(check, made, name, history, latent)


_SMALL: dict[str, Any] = {"heads": 2, "head_dim": 8, "mlp": 32, "head_hidden": 24, "rank": 4, "dropout": 0.0}


@torch.no_grad()
def _check_forward(check: _Checks, probe: Any, lags: int, latent: int) -> None:
    g = generator("codes")
    z, e = (torch.randn(2, lags, latent, generator=g, dtype=torch.float64) for _ in range(2))
    for K in range(1, lags + 1):
        u = probe(z[:, :K], e[:, :K])
        check.tensor(u, (2, K, latent), torch.float64, f"the prediction from {K} position{'s' * (K > 1)}")
    check(u.isfinite().all(), "predictions must be finite")
    check.equal(probe(z, e), u, "in eval mode two calls must give the same")
    for j in range(lags):
        for what in ("code", "action"):
            z2, e2 = z.clone(), e.clone()
            (z2 if what == "code" else e2)[:, j] += 1.0
            moved = (probe(z2, e2) - u).abs().amax(dim=(0, 2))
            early, where = float(moved[:j].max()) if j else 0.0, f"the {what} at position {j}"
            check(early == 0, f"it must be causal, but {where} moves an earlier prediction by {early:.3g}")
            check(float(moved[j]) > 0, f"{where} does not move the prediction there")


def _check_step(check: _Checks, made: nn.Module, name: str, lags: int, latent: int) -> None:
    if not steps_as_forward(made):
        told = "forward is redefined in a class below step, so rollouts go window by window: redefine step, too"
        check(not callable(getattr(made, "start", None)), told)
    errors = step_errors(made, name, latent, lags)
    check(errors, "step must be step(cache, z, e, keep=None), with start() for the first cache")
    worst = max(range(len(errors)), key=errors.__getitem__)
    promise = f"step differs from forward by {errors[worst]:.3g} (relative) at position {worst}"
    if worst >= lags and max(errors[:lags]) < TOLERANCE:
        promise += f", when the window of {lags} has slid: it remembers what left the window"
    check(errors[worst] < TOLERANCE, f"{promise}; until it agrees, rollouts go window by window")


@torch.no_grad()
def _check_model(check: _Checks, made: nn.Module, name: str, history: int, latent: int) -> None:
    """Within a model: known to μP, and planned with the dynamics that it was trained with."""
    vit = EncoderConfig(image_size=8, patch=8, width=8, depth=1, heads=1, head_dim=8, mlp=8)
    config = ModelConfig(latent=latent, encoder=vit, predictor=PredictorConfig(rung="lti", history=history))
    with torch.random.fork_rng(devices=[]):
        model = WorldModel(config, action_dim=6).eval()
    model.predictor = made.eval()
    schema(model, OptimConfig())  # refuses parameters that it does not know
    model.predictor = scrambled(made, name)
    model._steps = rolls_out_by_steps(model.predictor, name, latent, model.history)
    model.double()
    g = generator("rollout")
    z = torch.randn(2, 1, latent, generator=g, dtype=torch.float64).abs()
    actions = torch.randn(2, 1, history + 2, 6, generator=g, dtype=torch.float64).expand(-1, 3, -1, -1)
    truth = model.rollout(z, actions, cached=False)
    scale = 1e-6 * (1 + float(truth.abs().max()))
    check.equal(model.rollout(z, actions), truth, "a rollout must equal windows of forward", 1e3 * scale)
    frozen = model.frozen(torch.float64)
    if frozen is not None:
        check.equal(frozen.rollout(z, actions), truth, "freeze must have the dynamics of forward", scale)


# Solvers ------------------------------------------------------------------------------------------------------


class _Linear:
    """z' = A z + B a + b, summed row by row, so that a batch rounds as its rows do."""

    action_dim, history = 2, 1

    def __init__(self) -> None:
        g, sizes = generator("linear model"), {(4, 4): 0.4, (4, 2): 1.0, (4,): 0.1}
        self.A, self.B, self.b = (x * torch.randn(s, generator=g, dtype=torch.float64) for s, x in sizes.items())
        self.config = SimpleNamespace(latent=4)

    def parameters(self) -> Iterator[Tensor]:
        return iter((self.A, self.B, self.b))

    def rollout(self, z_BCD: Tensor, actions_BSHA: Tensor, past_BPA: Any = None, last_only: bool = False) -> Tensor:
        z, out = z_BCD[:, -1:].expand(-1, actions_BSHA.shape[1], -1), []
        for a in actions_BSHA.unbind(2):
            z = (self.A * z[..., None, :]).sum(-1) + (self.B * a[..., None, :]).sum(-1) + self.b
            out.append(z)
        return z if last_only else torch.stack(out, 2)


def _problem(environments: list[int]) -> Problem:
    """Environment e has the same start and goal in every batch."""
    rows = [generator("environment", e) for e in environments]
    z, goal = (torch.stack([s * torch.randn(4, generator=g, dtype=torch.float64) for g in rows]) for s in (1, 2))
    return LatentProblem(_Linear(), z[:, None], goal, horizon=3, env_ids=torch.tensor(environments))


def check_solver(solver: Any, **options: Any) -> None:
    """A config, a solver, or a name with options: shapes, cost, seeds, and independence of the batch."""
    check = _Checks(f"solver {solver if isinstance(solver, str) else type(solver).__name__!r}")
    if isinstance(solver, str):
        solver = make_solver(solver, **options)
    elif hasattr(solver, "build"):
        solver = solver.build()
    problem = _problem([0, 1, 2, 3])
    plan, again = (solver.solve(problem, seed=1) for _ in range(2))
    check.tensor(plan.actions_BHA, (4, 3, 2), torch.float64, "a plan")
    check.tensor(plan.costs_B, (4,), torch.float64, "the costs of a plan")
    check(plan.actions_BHA.isfinite().all(), "a plan must be finite")
    check.equal(plan.actions_BHA, again.actions_BHA, "the same seed must give the same plan")
    value, nothing = (problem.value(a[:, None])[:, 0] for a in (plan.actions_BHA, 0 * plan.actions_BHA))
    check.equal(plan.costs_B, value, "costs must be those of the actions returned", 1e-9)
    worse = int((plan.costs_B >= nothing).sum())
    check(not worse, f"a plan must cost less than doing nothing, and does not in {worse} of 4 environments")
    for key, entry in plan.info.items():
        check(len(entry) == 4, f"info[{key!r}] must have one row per environment, not {len(entry)}")
    alone = solver.solve(_problem([2]), seed=1).actions_BHA[0]
    promise = "a plan must depend on its own environment and seed alone, not on the rest of the batch"
    check.equal(alone, plan.actions_BHA[2], promise, 1e-9)
    warm = solver.solve(problem, start=plan.actions_BHA, seed=2)
    check.tensor(warm.actions_BHA, (4, 3, 2), torch.float64, "a plan from a warm start")
    gone = int((warm.costs_B > nothing).sum())
    check(not gone, f"a plan from a warm start must cost less than doing nothing, and does not in {gone} of 4")
