"""A predictor of one's own: a GRU over its window, and one whose step never forgets what left the window."""

from typing import ClassVar

import torch


class GRU(torch.nn.Module):
    mup: ClassVar = {"gru.weight_*": "hidden", "gru.bias_*": "bias"}

    def __init__(self, config, latent):
        super().__init__()
        self.lags = config.history
        self.gru = torch.nn.GRU(2 * latent, latent, batch_first=True)

    def forward(self, z_BKD, e_BKD):
        return self.gru(torch.cat((z_BKD, e_BKD), -1))[0]


class EndlessGRU(GRU):
    def start(self):
        return None

    def step(self, cache, z, e, keep=None):
        shape = torch.broadcast_shapes(z.shape, e.shape)
        x = torch.cat((z.expand(shape), e.expand(shape)), -1).flatten(0, 1).unsqueeze(1)
        if cache is not None:
            cache = cache.expand(shape).reshape(1, -1, shape[-1]).contiguous()
        u, cache = self.gru(x, cache)
        return u.squeeze(1).unflatten(0, shape[:2]), cache[0].unflatten(0, shape[:2])

    forward = GRU.forward
