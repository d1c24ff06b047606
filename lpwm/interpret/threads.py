"""One thread for many small matrix products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(call: Callable[P, R]) -> Callable[P, R]:
    """`call` with the linear algebra of NumPy and SciPy in one thread, however many are allowed.

    A probe makes thousands of products of well under a millisecond. Where other processes use the cores, threads wait
    for one another at each: on two busy cores two had not finished in 75 s what one does in 4.
    """

    @functools.wraps(call)
    def alone(*args: P.args, **options: P.kwargs) -> R:
        from threadpoolctl import threadpool_limits  # comes with scikit-learn

        with threadpool_limits(1):
            return call(*args, **options)

    return alone
