"""The worlds of one dot: arenas, frames, policies. What every world promises is in tests/contracts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.worlds import POLICIES, WORLDS, TensorWorld, make, make_policy, rollout, row_keys

VARIANTS = [
    ("piecewise", {}),
    ("piecewise", {"g": 3, "scale": 4.0, "visible": True}),
    ("two_room", {}),
    ("two_room", {"doors": (60, 170), "thickness": 21}),
    ("wall", {}),
    ("wall", {"wall": 20, "door": 48}),
]

TENSOR = [name for name in WORLDS if hasattr(WORLDS.get(name), "step")]


@pytest.fixture(params=VARIANTS, ids=lambda v: f"{v[0]}-{len(v[1])}")
def world(request: pytest.FixtureRequest) -> TensorWorld:
    name, options = request.param
    return make(name, **options)


def test_every_world_is_covered() -> None:
    assert {name for name, _ in VARIANTS} == set(TENSOR) and set(WORLDS) == set(POLICIES)


def test_states_fill_the_arena(world: TensorWorld) -> None:
    spec = world.spec
    low, high = torch.tensor(spec.state_low), torch.tensor(spec.state_high)
    state, goal = world.sample_state(4000, (0,)), world.sample_goal(4000, (0,))
    for drawn in (state, goal):
        assert (drawn >= low).all() and (drawn <= high).all()
        assert ((drawn.amax(0) - drawn.amin(0)) > 0.85 * (high - low)).all()
    # Starts and goals of one key are independent of one another.
    together = torch.corrcoef(torch.cat((state, goal), 1).T)
    assert together[:2, 2:].abs().max() < 0.06


def test_every_policy_is_keyed_by_row(world: TensorWorld) -> None:
    n, steps = 12, 20
    state, goal = world.sample_state(n, (2,)), world.sample_goal(n, (2,))
    for name in POLICIES[world.spec.name]:
        policy = make_policy(world, name)
        keys = row_keys((2, "act"), n)
        states, actions = rollout(world, policy, state, goal, keys, steps)
        some = slice(4, 9)
        part = rollout(world, policy, state[some], goal[some], row_keys((2, "act"), 5, start=4), steps)
        assert torch.allclose(part[0], states[some], atol=1e-4) and torch.allclose(part[1], actions[some], atol=1e-5)
        assert (actions >= torch.tensor(world.spec.action_low)).all()
        assert (actions <= torch.tensor(world.spec.action_high)).all()
        other = rollout(world, policy, state, goal, row_keys((3, "act"), n), steps)[1]
        assert torch.equal(other, actions) == (name == "expert" and world.spec.name == "piecewise")


@pytest.mark.parametrize("size", [None, 32, 64, 65, 300])
def test_the_dot_is_drawn_where_it_is(world: TensorWorld, size: int | None) -> None:
    """It is red: green is lowest, off the walls, where the dot is."""
    state = world.sample_state(5, (3,))
    frame = world.render(state, size)
    side = size or world.spec.frame
    scale = side / world.spec.frame
    for i in range(5):
        redness = frame[i, 0].int() - frame[i, 1].int()
        y, x = divmod(int(redness.argmax()), side)
        place = (torch.tensor([x, y]) + 0.5) / scale - 0.5
        assert (place - state[i]).abs().max() <= 1.5 / scale + 1.5
    assert redness.max() > 120 and len(frame.flatten(1).unique(dim=0)) == 5


def test_drawing_many_frames_equals_drawing_few() -> None:
    """The renderers work through large batches in parts."""
    for name in sorted(set(WORLDS) - {"cube"}):
        world = make(name)
        state = world.sample_state(150, (4,))
        for size in (None, 64):
            assert torch.equal(world.render(state, size)[-3:], world.render(state[-3:], size))


def test_success_is_a_short_distance(world: TensorWorld) -> None:
    state, goal = world.sample_state(500, (5,)), world.sample_goal(500, (5,))
    expected = torch.from_numpy(np.hypot(*(state - goal).numpy().T))
    assert torch.allclose(world.distance(state, goal), expected, atol=1e-4)
    within = world.spec.success_within
    near = state + torch.tensor([within - 0.01, 0.0])
    far = state + torch.tensor([within + 0.01, 0.0])
    assert world.success(state, near).all() and not world.success(state, far).any()


def test_zones_are_rows_and_columns() -> None:
    world = make("piecewise", g=3)
    corner = torch.tensor([[20.0, 20.0], [112.0, 20.0], [200.0, 20.0], [20.0, 112.0], [200.0, 200.0], [14.0, 209.0]])
    assert world.factors(corner)["zone"].tolist() == [0, 1, 2, 3, 8, 6]


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiled_whole() -> None:
    """Steps and renderers trace into one graph: no waiting for the device, no branch on data."""
    for name in TENSOR:
        world = make(name)
        state, action = world.sample_state(3, (7,)), torch.full((3, 2), 0.5)
        draw, native = world.renderer(64), world.renderer()  # the native frame has a path of its own on a CPU
        for call, args in ((world.step, (state, action)), (draw.__call__, (state,)), (native.__call__, (state,))):  # type: ignore[operator]
            compiled = torch.compile(call, fullgraph=True, backend="eager")
            assert torch.equal(compiled(*args), call(*args))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("picewise", {}, "did you mean 'piecewise'"),
        ("piecewise", {"gg": 3}, "did you mean 'g'"),
        ("piecewise", {"g": 0}, "1 to 14"),
        ("piecewise", {"g": 2.5}, "takes g as int"),
        ("piecewise", {"scale": float("nan")}, "finite"),
        ("piecewise", {"visible": 1}, "takes visible as bool"),
        ("two_room", {"doors": ()}, "door centers"),
        ("two_room", {"doors": (300,)}, "door centers"),
        ("two_room", {"door_half": 2}, "8 to 21"),
        ("two_room", {"thickness": 100}, "7 to 41"),
        ("wall", {"wall": 2}, "16…48"),
        ("wall", {"door": 2}, "10…54"),
    ],
)
def test_mistakes_are_one_sentence(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        make(name, **options)
    assert "\n" not in str(caught.value)


def test_mistakes_in_policies_and_sizes() -> None:
    world = make("piecewise")
    with pytest.raises(UserError, match="did you mean 'expert'"):
        make_policy(world, "exprt")
    with pytest.raises(UserError, match="no option 'noize': did you mean 'noise'"):
        make_policy(world, "expert", noize=1.0)
    for name in WORLDS:
        with pytest.raises(UserError, match="positive side"):
            make(name).render(make(name).sample_state(1, (0,)), 0)


@pytest.mark.gpu
def test_gpu_follows_the_cpu(world: TensorWorld) -> None:
    state, goal = world.sample_state(200, (8,)), world.sample_goal(200, (8,))
    action = torch.linspace(-1, 1, 400).view(200, 2)
    assert torch.allclose(world.step(state.cuda(), action.cuda()).cpu(), world.step(state, action), atol=1e-4)
    assert torch.equal(world.success(state.cuda(), goal.cuda()).cpu(), world.success(state, goal))
    for size in (None, 64, 224):
        difference = world.render(state.cuda(), size).cpu().int() - world.render(state, size).int()
        assert difference.abs().max() <= 1
    keys = row_keys((8,), 200)
    for name in POLICIES[world.spec.name]:
        policy = make_policy(world, name)
        here = policy.act(state, goal, policy.begin(state, goal, keys), keys, 1)[0]
        s, g, k = state.cuda(), goal.cuda(), keys.cuda()
        assert torch.allclose(policy.act(s, g, policy.begin(s, g, k), k, 1)[0].cpu(), here, atol=1e-3)
