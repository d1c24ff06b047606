"""CartPole-v1 and MountainCarContinuous-v0 through `gym:`: wrappers, a policy, and the commands behind
bench/results/classic_2cores.json. Run them in this folder; MODEL stands for the options of the model:

    --model.latent 128 --model.action-encoder linear --model.predictor.rung shallow-adaln --model.predictor.heads 4
    --model.predictor.head-dim 32 --model.predictor.mlp 256 --model.predictor.head-hidden 256
    --model.predictor.dropout 0 --objective.lam 0.3 --objective.rollout-steps 1 --optim.lr 1e-3 --train.no-stop-dead

    lpwm collect gym:CartPole-v1 --wrapper classic_envs:Close --episodes 1500 --size 32 --out cart.h5
    lpwm train piecewise-2x2-small/lpwm --data.file cart.h5 --data.frameskip 2 MODEL --train.steps 1000 --train.seed 1
        --name cart --plugin classic_envs
    lpwm eval runs/cart-* --preset quick --goals random --options goal_steps=0 --episodes 20 --budgets 20 30 40 60
        --horizon 6 --receding 1 --path-discount 1 --controls random --solver-options iterations=4 --plugin classic_envs

    lpwm collect gym:MountainCarContinuous-v0 --wrapper classic_envs:Repeat --policy classic_envs:swing --episodes 300
        --steps 50 --size 32 --out car.h5
    lpwm train piecewise-2x2-small/lpwm --data.file car.h5 --data.frameskip 1 MODEL --train.steps 1000 --train.seed 11
        --name car --plugin classic_envs
    lpwm eval runs/car-* --preset quick --goals dataset --offset 12 --episodes 30 --budgets 12 --horizon 12
        --receding 1 --arrive --controls nothing random --solver-options iterations=4 --plugin classic_envs
"""

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
