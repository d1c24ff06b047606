"""What a CUDA graph may hold: a search that touches one device only, from the first cast to the plan's cost."""

import functools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lpwm.core.rng import generator
from lpwm.model import PAPER_RUNGS, EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.plan import CEM, ICEM, MPPI, CEMConfig, ICEMConfig, LatentProblem, MPPIConfig, OracleProblem
from lpwm.plan.solver import Graphs, _compiled, signature
from lpwm.worlds import make

SOLVERS = [CEM(CEMConfig(8, 2, 2)), ICEM(ICEMConfig(8, 3, 2)), MPPI(MPPIConfig(8, 2))]
TINY = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)


# Made of host data (lists as indices come as `index`, constants as `lift_fresh`), or answered to the host.
HOST = ("aten.index", "aten.lift_fresh", "aten.nonzero", "aten._local_scalar_dense", "aten.is_nonzero")


class OneDevice(TorchDispatchMode):
    """Every tensor that an operation reads or makes lies on `device`, and none goes through the host."""

    def __init__(self, device):
        super().__init__()
        self.device, self.operations = device, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        assert not str(op).startswith(HOST) or str(op).startswith("aten.index_select"), f"{op} needs the host"
        out = op(*args, **(kwargs or {}))
        for t in tree_leaves((args, kwargs, out)):
            if isinstance(t, torch.Tensor):
                assert t.device.type == self.device, f"{op} touches {t.device}"
        self.operations += 1
        return out


def world_model(rung, context=1, batch=3, device="meta", norm="layer", path_discount=0.0):
    predictor = PredictorConfig(rung=rung, heads=2, head_dim=4, mlp=8, head_hidden=8, rank=2, head_norm=norm)
    model = WorldModel(ModelConfig(latent=8, encoder=TINY, predictor=predictor), 4).eval().to(device)
    z = torch.zeros(batch, context, 8, device=device)
    past = torch.zeros(batch, context - 1, 4, device=device) if context > 1 else None
    return LatentProblem(model, z, z[:, 0], past, 4, path_discount=path_discount)


def searched(solver, problem):
    """As it would be captured, after a first run that may fetch what is made once."""
    start = torch.zeros(problem.batch, problem.horizon, problem.action_dim, device=problem.device)
    seed = torch.zeros((), dtype=torch.int64, device=problem.device)
    search = functools.partial(solver._search, solver.iterate)
    with torch.no_grad():
        search(problem, start, seed)
        with OneDevice(problem.device.type) as watch:
            out = search(problem, start, seed)
    assert watch.operations > 50
    return out


@pytest.mark.parametrize("context, path_discount", [(1, 0.0), (3, 0.5)])
@pytest.mark.parametrize("rung", sorted(set(PAPER_RUNGS) - {"deep-adaln"}))  # the shallow one has its blocks
def test_a_search_stays_on_its_device(rung, context, path_discount):
    out = searched(SOLVERS[0], world_model(rung, context, path_discount=path_discount))
    assert out["actions"].shape == (3, 4, 4) and out["costs"].shape == (3,)


@pytest.mark.parametrize("solver", SOLVERS, ids=["cem", "icem", "mppi"])
def test_every_sampler_stays_on_its_device(solver):
    searched(solver, world_model("shallow-adaln", norm="batch"))


def test_one_graph_serves_problems_that_differ_in_their_rows_alone():
    problem = world_model("mlp-lti", device="cpu")
    assert signature(problem) == signature(problem.select(slice(0, 2)))
    moved = problem.with_tensors([t + 1 for t in problem.tensors()])
    assert signature(problem) == signature(moved)
    assert signature(problem) != signature(world_model("mlp-lti", device="cpu"))  # another model
    longer = LatentProblem(problem.model, problem.z_BCD, problem.z_goal_BD, None, 5)
    others = [{"autocast": torch.bfloat16}, {"path_discount": 0.5}, {"path_discount": 1.0}]
    cells = [LatentProblem(problem.model, problem.z_BCD, problem.z_goal_BD, None, 4, **o) for o in others]
    assert len({signature(p) for p in (problem, longer, *cells)}) == 5
    before = signature(problem)
    with torch.no_grad():
        next(problem.model.parameters()).add_(1)  # in place: the graph reads the new weights
    assert signature(problem) == before
    problem.model.double()
    assert signature(problem) != before


def test_a_simulator_is_not_captured():
    world = make("piecewise")
    state = world.sample_state(2, (0,))
    assert OracleProblem(world, state, state).frozen_state() is None


def test_a_smaller_batch_is_filled_up_and_cut_and_old_graphs_go(monkeypatch):
    """The book-keeping around a capture, with a stand-in for the graph itself."""
    made = []

    class Recorded:
        def __init__(self, body, problem, start, seed):
            made.append(problem.batch)
            self.batch = problem.batch

        def __call__(self, problem, start, seed):
            return {"batch": torch.tensor([self.batch])}

    monkeypatch.setattr("lpwm.plan.solver.CapturedPlan", Recorded)
    graphs, problem = Graphs(), world_model("lti", batch=6, device="cpu")

    def run(p):
        return int(graphs.run(None, p, None, 0)["batch"])

    assert [run(problem), run(problem.select(slice(0, 2))), run(problem.select(slice(0, 5)))] == [6, 6, 6]
    others = [world_model("lti", batch=2, device="cpu") for _ in range(4)]
    assert [run(p) for p in others] == [2, 2, 2, 2] and made == [6, 2, 2, 2, 2]
    assert run(others[0]) == 2 and len(made) == 5  # kept
    assert run(problem) == 6 and len(made) == 6  # the oldest went


SOLVER = CEM(CEMConfig(samples=6, elites=2, iterations=2))


def problem(model, context, horizon):
    draw = generator("compiled once", context, horizon)
    z, goal, past = (torch.randn(*shape, generator=draw) for shape in ((2, context, 8), (2, 8), (2, context - 1, 4)))
    return LatentProblem(model, z, goal, past if context > 1 else None, horizon)


@pytest.mark.parametrize("rung, graphs", [("mlp-lti", 3), ("shallow-adaln", 16)])
def test_models_of_equal_shapes_share_what_is_compiled_and_many_shapes_stay_compiled(rung, graphs, real_model):
    """Three models, contexts of 1 to 3 frames: three compilations; then more horizons than torch's limit of 8. A
    transformer is compiled in parts."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    step = _compiled(CEM.iterate, counter)

    @torch.no_grad()
    def plan(model, context, horizon):
        start = torch.zeros(2, horizon, 4)
        with torch.no_grad():
            here = SOLVER._search(step, problem(model, context, horizon), start, torch.tensor(3))
            plain = SOLVER._search(CEM.iterate, problem(model, context, horizon), start, torch.tensor(3))
        torch.testing.assert_close(here["actions"], plain["actions"])

    for _ in range(3):
        one = real_model(rung)
        for context in (1, 2, 3):
            plan(one, context, 2)
    assert counter.frame_count == graphs
    plan(real_model(rung, model={"link": "identity"}), 1, 2)
    assert counter.frame_count == graphs + 1
    if rung == "mlp-lti":
        for horizon in (1, 3, 4, 5, 6):
            plan(one, 1, horizon)
        assert counter.frame_count == 9 > 8
    torch._dynamo.reset()


def test_six_blocks_are_traced_as_one(real_model):
    """The deep rung is traced nearly as fast as the shallow one, of one block; both plan as they do eagerly."""
    traced = {}
    for rung in ("shallow-adaln", "deep-adaln"):
        torch._dynamo.reset()
        counters.clear()
        step, asked = _compiled(CEM.iterate, "eager"), problem(real_model(rung), 1, 5)
        with torch.no_grad():
            start, seed = torch.zeros(2, 5, 4), torch.tensor(3)
            plans = [SOLVER._search(s, asked, start, seed)["actions"] for s in (step, CEM.iterate)]
        torch.testing.assert_close(*plans)
        traced[rung] = counters["stats"].copy()
    torch._dynamo.reset()
    deep, shallow = traced["deep-adaln"], traced["shallow-adaln"]
    assert deep["unique_graphs"] == shallow["unique_graphs"] + 2  # the first block of a plan, and the last
    assert deep["calls_captured"] < 1.6 * shallow["calls_captured"]
