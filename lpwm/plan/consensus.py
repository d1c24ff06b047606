"""Several models vote on the same candidates by rank, so that no checkpoint's cost scale counts more."""

import copy
from collections.abc import Hashable, Sequence
from typing import Self

import torch
from torch import Tensor

from lpwm.core.errors import UserError, choose
from lpwm.plan.problem import Problem


def ranks(cost: Tensor) -> Tensor:
    """Ranks along the last axis, 0 for the least; equal costs share the mean of their ranks."""
    ordered = cost.sort(-1).values
    cost = cost.contiguous()
    below = torch.searchsorted(ordered, cost)
    not_above = torch.searchsorted(ordered, cost, right=True)
    return (below + not_above - 1).to(cost.dtype) / 2


def borda(rank_MBS: Tensor) -> Tensor:
    """The mean rank."""
    return rank_MBS.mean(0)


def median(rank_MBS: Tensor) -> Tensor:
    """The median rank; of an even number of voters, the mean of the middle two."""
    ordered, m = rank_MBS.sort(0).values, rank_MBS.shape[0]
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


VOTES = {"borda": borda, "median": median}


class ConsensusProblem(Problem):
    """M problems about the same environments; cost = the voted rank of each candidate among its fellows. A candidate
    with a non-finite score is ranked last. Where a member scores every candidate of an environment non-finite, the
    environment costs +inf, which the solver reports. `value` is the mean of the members' values."""

    def __init__(self, members: Sequence[Problem], vote: str = "borda") -> None:
        if not members:
            raise UserError("a consensus needs at least one member: give one problem per checkpoint.")
        first = members[0]
        if len({(m.batch, m.horizon, m.action_dim) for m in members}) > 1:
            remedy = "plan with checkpoints of one world and one frameskip"
            raise UserError(f"the members of a consensus differ in environments, horizon or action size: {remedy}.")
        self.vote = choose("vote", vote, VOTES)
        self.members = tuple(members)
        self.horizon, self.action_dim = first.horizon, first.action_dim
        self.env_ids, self.dtype = first.env_ids, first.dtype

    def cost(self, actions_BSHA: Tensor) -> Tensor:
        cost_MBS = torch.stack([m.cost(actions_BSHA.to(m.dtype)).to(self.dtype) for m in self.members])
        finite_MBS = cost_MBS.isfinite()
        voted_BS = self.vote(ranks(torch.where(finite_MBS, cost_MBS, torch.inf)))
        sane_BS = finite_MBS.any(0) & finite_MBS.any(-1).all(0)[:, None]
        return torch.where(sane_BS, voted_BS, torch.inf)

    def value(self, actions_BSHA: Tensor) -> Tensor:
        values = [m.value(actions_BSHA.to(m.dtype)).to(self.dtype) for m in self.members]
        return torch.stack(values).mean(0)

    def tensors(self) -> list[Tensor]:
        return [t for member in self.members for t in member.tensors()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        given = iter(tensors)
        return self._with([m.with_tensors([next(given) for _ in m.tensors()]) for m in self.members])

    def _with(self, members: Sequence[Problem]) -> Self:
        other = copy.copy(self)
        other.members, other.env_ids = tuple(members), members[0].env_ids
        return other

    def prepared(self) -> Self:
        return self._with([m.prepared() for m in self.members])

    def frozen_state(self) -> Hashable | None:
        states = tuple(m.frozen_state() for m in self.members)
        return None if None in states else (self.vote, states)

    def candidate_bytes(self) -> int:
        """Members are scored one after the other; only their costs stay."""
        return max(m.candidate_bytes() for m in self.members)
