"""Wall against its rules, re-derived: march along the path until a point is solid, then bisect."""

import math

import numpy as np
import pytest
import torch

from lpwm.worlds import make

LOW, HIGH = 4.0, 60.0


def solid(x, y, wall, door):
    outside = x <= LOW or x >= HIGH or y <= LOW or y >= HIGH
    in_wall = wall - 3 <= x <= wall + 3 and not door - 4 < y < door + 4
    return outside or in_wall


def first_solid(p, d, wall, door):
    """The fraction of the move at which the dot first touches something solid."""
    marks = max(2, math.ceil(math.hypot(*d) / 0.02))
    free = 0.0
    for k in range(1, marks + 1):
        t = k / marks
        if solid(p[0] + t * d[0], p[1] + t * d[1], wall, door):
            stuck = t
            for _ in range(50):
                middle = (free + stuck) / 2
                if solid(p[0] + middle * d[0], p[1] + middle * d[1], wall, door):
                    stuck = middle
                else:
                    free = middle
            return stuck
        free = t
    return None


def by_the_rules(p, a, wall, door):
    d = (2 * a[0], 2 * a[1])
    t = first_solid(p, d, wall, door)
    if t is None:
        return p[0] + d[0], p[1] + d[1]
    before = [p[i] + (t - 1e-7) * d[i] for i in (0, 1)]
    hit = [p[i] + t * d[i] for i in (0, 1)]
    # Which coordinate makes it solid? That is the axis the surface is normal to.
    axis = 0 if solid(hit[0], before[1], wall, door) else 1
    land = list(hit)
    land[axis] -= math.copysign(0.5, d[axis])
    slide = [0.0, 0.0]
    slide[1 - axis] = 0.5
    blocked = first_solid((land[0], land[1]), (slide[0], slide[1]), wall, door)
    land[1 - axis] += 0.5 if blocked is None else 0.5 * blocked - 0.3
    return land[0], land[1]


@pytest.mark.parametrize(("wall", "door"), [(32, 30), (20, 48)])
@pytest.mark.parametrize("reach", [1.8, 12.0])
def test_steps_follow_the_rules(wall, door, reach):
    rng = np.random.default_rng(5)
    places = []
    while len(places) < 400:  # half of them near the wall and its door, a sixth in a corner
        x, y = rng.uniform(LOW, HIGH, 2)
        if len(places) % 2:
            x, y = wall + rng.uniform(-6, 6), door + rng.uniform(-7, 7)
        elif len(places) % 6 == 0:
            x, y = rng.choice([LOW, HIGH]) + rng.uniform(-3, 3), rng.choice([LOW, HIGH]) + rng.uniform(-3, 3)
        x, y = float(np.float32(x)), float(np.float32(y))
        if not solid(x, y, wall, door):
            places.append((x, y))
    action = rng.uniform(-reach, reach, (400, 2)).astype(np.float32)
    action[:20, 0] = 0.0
    action[20:40, 1] = 0.0
    action[40:44] = 0.0
    ours = make("wall", wall=wall, door=door).step(torch.tensor(places), torch.from_numpy(action))
    expected = [by_the_rules(p, tuple(a), wall, door) for p, a in zip(places, action.tolist(), strict=True)]
    stopped = [
        e != (p[0] + 2 * a[0], p[1] + 2 * a[1]) for e, p, a in zip(expected, places, action.tolist(), strict=True)
    ]
    assert 60 < sum(stopped) < 390
    np.testing.assert_allclose(ours.numpy(), np.array(expected), atol=1e-3)
    assert not any(solid(x, y, wall, door) for x, y in ours.tolist())


def test_native_frames_pixel_by_pixel():
    world = make("wall")
    state = world.sample_state(4, (3,))
    frame = world.render(state).int()
    for i, (px, py) in enumerate(state.tolist()):
        peak = max(math.exp(-((x - px) ** 2 + (y - py) ** 2) / 5.78) for x in range(65) for y in range(65))
        for y in range(65):
            for x in range(65):
                black = x in (4, 60) or y in (4, 60) or (29 <= x <= 35 and not 26 <= y <= 34)
                dot = int(255 * math.exp(-((x - px) ** 2 + (y - py) ** 2) / 5.78) / peak)
                want = (0, 0, 0) if black else (255, 255 - dot, 255 - dot)
                assert all(abs(int(frame[i, c, y, x]) - want[c]) <= (c > 0) for c in range(3)), (x, y)


def test_large_frames_are_the_native_ones_resized():
    world = make("wall")
    state = world.sample_state(3, (4,))
    small = world.render(state).float()
    large = torch.nn.functional.interpolate(small, (224, 224), mode="bilinear", align_corners=False)
    assert (world.render(state, 224).float() - large).abs().max() <= 0.5001
