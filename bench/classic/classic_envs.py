"""Wrappers and a policy for CartPole-v1 and MountainCarContinuous-v0; `measure.py` has the commands that use them."""

import gymnasium


class Close(gymnasium.Wrapper):
    """CartPole close up: 1.28 of its 4.8 units."""

    def render(self):
        return self.env.render()[170:330, 220:380]


class Repeat(gymnasium.Wrapper):
    """An action lasts five steps."""

    def step(self, action):
        for _ in range(5):
            result = self.env.step(action)
            if result[2] or result[3]:
                break
        return result


def swing(observation, rng):
    """Mostly with the motion of the car, sometimes against it."""
    return [(1.0 if observation[1] >= 0 else -1.0) * rng.uniform(-0.6, 1.0)]
