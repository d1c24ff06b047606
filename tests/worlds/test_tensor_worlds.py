"""The worlds of one dot: arenas, frames, policies. What every world promises is in tests/contracts."""

import lzma
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from lpwm.core.errors import UserError
from lpwm.worlds import POLICIES, WORLDS, make, make_policy, rollout, row_keys

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
def world(request):
    name, options = request.param
    return make(name, **options)


def test_states_fill_the_arena(world):
    spec = world.spec
    low, high = torch.tensor(spec.state_low), torch.tensor(spec.state_high)
    state, goal = world.sample_state(4000, (0,)), world.sample_goal(4000, (0,))
    for drawn in (state, goal):
        assert (drawn >= low).all() and (drawn <= high).all()
        assert ((drawn.amax(0) - drawn.amin(0)) > 0.85 * (high - low)).all()
    # Starts and goals of one key are independent of one another.
    together = torch.corrcoef(torch.cat((state, goal), 1).T)
    assert together[:2, 2:].abs().max() < 0.06
    expected = torch.from_numpy(np.hypot(*(state - goal).numpy().T))
    assert torch.allclose(world.distance(state, goal), expected, atol=1e-4)


@pytest.mark.parametrize("size", [None, 32, 64, 65, 300])
def test_the_dot_is_drawn_where_it_is(world, size):
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


def test_drawing_many_frames_equals_drawing_few():
    """The renderers work through large batches in parts."""
    for name in sorted(set(WORLDS) - {"cube"}):
        world = make(name)
        state = world.sample_state(150, (4,))
        for size in (None, 64):
            assert torch.equal(world.render(state, size)[-3:], world.render(state[-3:], size))


def test_zones_are_rows_and_columns():
    world = make("piecewise", g=3)
    corner = torch.tensor([[20.0, 20.0], [112.0, 20.0], [200.0, 20.0], [20.0, 112.0], [200.0, 200.0], [14.0, 209.0]])
    assert world.factors(corner)["zone"].tolist() == [0, 1, 2, 3, 8, 6]


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiled_whole():
    """Steps and renderers trace into one graph: no waiting for the device, no branch on data."""
    for name in TENSOR:
        world = make(name)
        state, action = world.sample_state(3, (7,)), torch.full((3, 2), 0.5)
        draw, native = world.renderer(64), world.renderer()  # the native frame has a path of its own on a CPU
        for call, args in ((world.step, (state, action)), (draw.__call__, (state,)), (native.__call__, (state,))):
            compiled = torch.compile(call, fullgraph=True, backend="eager")
            assert torch.equal(compiled(*args), call(*args))


def test_a_frame_has_a_positive_side():
    for name in WORLDS:
        with pytest.raises(UserError, match=r"side.*0"):
            make(name).render(make(name).sample_state(1, (0,)), 0)


@pytest.mark.gpu
def test_gpu_follows_the_cpu(world):
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


GOLDEN = Path(__file__).parents[1] / "golden"
CASES = [
    (name, label)
    for name in ("piecewise", "two_room")
    for label in {"piecewise": ("2_0", "2_1", "3_0", "3_1"), "two_room": ("49_14_10", "60-170_10_21")}[name]
]


def world_of(name, label):
    if name == "piecewise":
        g, visible = map(int, label.split("_"))
        return make(name, g=g, visible=bool(visible))
    doors, half, thickness = label.split("_")
    return make(name, doors=[int(d) for d in doors.split("-")], door_half=int(half), thickness=int(thickness))


def golden(name, label, column):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return torch.from_numpy(file[f"{label}_{column}"])


def frames(name, label):
    raw = lzma.decompress(golden(name, label, "frame").numpy().tobytes())
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3, 224, 224)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_transitions_bit_equal(name, label):
    start, action, end = (golden(name, label, c) for c in ("start", "action", "end"))
    ours = world_of(name, label).step(start, action)
    assert torch.equal(ours, end)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_frames_bit_equal(name, label):
    world, seen, theirs = world_of(name, label), golden(name, label, "seen"), frames(name, label)
    ours = world.render(seen)
    assert torch.equal(ours, theirs)
    # Drawn alone or in another batch, a frame is the same.
    assert torch.equal(world.render(seen[7:8]), theirs[7:8])


@pytest.mark.parametrize(("name", "label"), CASES)
@pytest.mark.parametrize("size", [64, 96, 112])
def test_other_sizes_follow_the_native_frame(name, label, size):
    """A smaller frame is the area average of the recorded one: a level or two on open ground, and up to a
    dozen where the dot's flank falls on a pixel that is part wall."""
    theirs = frames(name, label)[:20].to(torch.float64)
    edges, pixel = np.linspace(0, 224, size + 1)[:, None], np.arange(224)
    covered = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)  # of each native pixel by each of ours
    weight = torch.from_numpy(covered.clip(0) * size / 224)
    expected = weight @ theirs @ weight.T
    ours = world_of(name, label).render(golden(name, label, "seen")[:20], size).to(torch.float64)
    error = (ours - expected).abs()
    assert error.max() < 12 and error.mean() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "label"), CASES)
def test_on_a_gpu_within_one_level(name, label):
    world = world_of(name, label)
    start, action, end = (golden(name, label, c) for c in ("start", "action", "end"))
    assert torch.allclose(world.step(start.cuda(), action.cuda()).cpu(), end, atol=1e-4)
    difference = world.render(golden(name, label, "seen").cuda()).cpu().int() - frames(name, label).int()
    assert difference.abs().max() <= 1


def test_the_edges_of_a_door():
    """Half a door is 14 and the tolerance 1.75: y = 33.25 and 64.75 pass, the float32 numbers beyond do not."""
    world = make("two_room")
    edge = torch.tensor([33.25, 64.75])
    beyond = torch.nextafter(edge, torch.tensor([-torch.inf, torch.inf]))
    for y, x in ((edge, 103.0), (beyond, 99.5)):
        start = torch.stack((torch.full_like(y, 98.0), y), dim=1)
        assert world.step(start, torch.tensor([[1.0, 0.0]])).tolist() == [[x, v] for v in y.tolist()]


def follow(name, policy, n, steps, **options):
    world = make(name)
    state, goal = world.sample_state(n, (0,)), world.sample_goal(n, (0,))
    chosen = make_policy(world, policy, **options)
    states, actions = rollout(world, chosen, state, goal, row_keys((0, "act"), n), steps)
    return world, goal, states, actions


def test_random_actions_are_uniform():
    for name in ("piecewise", "two_room", "wall"):
        world, _, _, actions = follow(name, "random", 200, 20)
        low, high = world.spec.action_low[0], world.spec.action_high[0]
        flat = ((actions - low) / (high - low)).flatten().numpy()
        assert stats.kstest(flat, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(actions[..., 0].flatten(), actions[..., 1].flatten())[0, 1]) < 0.06
        assert abs(np.corrcoef(actions[:, 1:, 0].flatten(), actions[:, :-1, 0].flatten())[0, 1]) < 0.06


def test_the_piecewise_expert_lands_on_the_goal():
    _, goal, states, _ = follow("piecewise", "expert", 200, 100)
    reachable = goal.clamp(21, 203)
    assert (states[:, -1] - reachable).abs().max() < 1e-3


def test_the_two_room_expert_goes_through_the_door():
    world, goal, states, _ = follow("two_room", "expert", 200, 100, noise=0.0)
    assert world.success(states[:, -1], goal).float().mean() > 0.99
    start_side, goal_side = states[:, 0, 0] > 112, goal[:, 0] > 112
    crossed = states[start_side != goal_side]
    assert len(crossed) > 50
    inside = crossed[(crossed[..., 0] > 100) & (crossed[..., 0] < 124)]
    assert (inside[:, 1] - 49).abs().max() <= 14 + 1.75
    # A straight line would not have done: within one room the path is straight, across the wall it is longer.
    straight = world.distance(states[:, 0], goal)
    length = world.distance(states[:, 1:], states[:, :-1]).sum(1)
    assert (length - straight)[start_side != goal_side].mean() > 10


def test_the_drifting_walk():
    """Heading: uniform at first, then changed by von Mises(5) angles; length: N(1, 0.4) within [0.2, 1.8]."""
    _, _, _, actions = follow("wall", None, 400, 50)
    angle = torch.atan2(actions[..., 1], actions[..., 0]).double()
    assert stats.kstest(angle[:, 0].numpy(), stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-3
    turn = torch.remainder(angle[:, 1:] - angle[:, :-1] + math.pi, 2 * math.pi) - math.pi
    assert abs(float(turn.std()) - 0.48) < 0.02
    assert stats.kstest(turn.flatten().numpy()[::4], stats.vonmises(5.0).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(turn[:, 1:].flatten(), turn[:, :-1].flatten())[0, 1]) < 0.03
    length = torch.linalg.vector_norm(actions, dim=-1).flatten().numpy()
    assert length.min() > 0.1999 and length.max() < 1.8001
    assert stats.kstest(length[::4], stats.truncnorm(-2, 2, loc=1.0, scale=0.4).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(length[:-1:2], length[1::2])[0, 1]) < 0.03
