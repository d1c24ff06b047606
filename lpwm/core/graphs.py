"""CUDA graphs: what was launched once is replayed without the host in between."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


def warm_up(f: Callable[[], T]) -> T:
    """`f()` on a stream of its own: it compiles, allocates and opens libraries before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = f()
    torch.cuda.current_stream().wait_stream(side)
    return result


class Graph(Generic[T]):
    """`f`, captured; `replay` runs it again on the tensors it was captured with, and returns the same outputs. Each
    graph is captured on a stream of its own: graphs captured on one stream share a workspace for matrix products, and
    must not be replayed at the same time."""

    def __init__(self, f: Callable[[], T]) -> None:
        torch.cuda.current_stream().synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):
            self.outputs = f()

    def replay(self) -> T:
        self._graph.replay()
        return self.outputs
