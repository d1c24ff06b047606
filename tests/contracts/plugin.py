"""A plugin as a stranger would write it: a residual LTI, a GRU over its window, and the docs' Ball world."""

import re
import sys
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

import lpwm
from lpwm.model.predictors.linear import LTI


class ResidualLTI(LTI):
    """u = z + LTI(z, e)."""

    def __init__(self, config, latent):
        super().__init__(latent, config.history)

    def forward(self, z_BKD, e_BKD):
        return z_BKD + super().forward(z_BKD, e_BKD)

    def step(self, cache, z, e, keep=None):
        u, cache = super().step(cache, z, e, keep)
        return z + u, cache


class GRU(nn.Module):
    """A GRU that starts from zero in every window."""

    mup: ClassVar = {"gru.weight_*": "hidden", "gru.bias_*": "bias"}

    def __init__(self, config, latent):
        super().__init__()
        self.lags = config.history
        self.gru = nn.GRU(2 * latent, latent, batch_first=True)
        self.out = nn.Linear(latent, latent)

    def forward(self, z_BKD, e_BKD):
        return self.out(self.gru(torch.cat((z_BKD, e_BKD), -1))[0])


def docs_world():
    """The class on docs/worlds-and-data.md, as it is printed there."""
    page = Path(__file__).with_name("worlds-and-data.md").read_text()
    block = next(b for b in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M) if "class Ball" in b)
    space = sys.modules[__name__].__dict__
    exec(compile(block, "worlds-and-data.md", "exec"), space)
    return space["Ball"]


lpwm.register_world("ball", docs_world())
lpwm.register_predictor("residual-lti", ResidualLTI, title="Residual LTI(k)")
lpwm.register_predictor("gru", GRU)
