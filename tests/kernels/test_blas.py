"""Products by cuBLASLt: what it is told, by a library that does as it is told on the CPU; and where it is not there."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import pytest
import torch

from lpwm.kernels import blas


def at(pointer, kind):
    return ctypes.cast(pointer, ctypes.POINTER(kind)).contents


class Library:
    """cuBLASLt's functions for matrices by columns, in bfloat16 on the CPU. `offers`: whether it has an algorithm."""

    def __init__(self, offers=True, workspace=0):
        self.offers, self.workspace = offers, workspace
        self.made, self.asked = {}, []

    def new(self, to, **what):
        number = len(self.made) + 1
        self.made[number] = what
        at(to, c_void_p).value = number
        return 0

    def cublasLtCreate(self, handle):
        return self.new(handle)

    def cublasLtMatmulDescCreate(self, desc, compute, scale):
        assert (compute.value, scale.value) == (68, 0)  # sums and factors in float32
        return self.new(desc, transa=0, transb=0, bias=0)

    def cublasLtMatmulDescSetAttribute(self, desc, attribute, value, size):
        what = self.made[desc.value]
        if attribute.value in (3, 4):
            assert size.value == 4
            what["transa" if attribute.value == 3 else "transb"] = at(value, c_int).value
        elif attribute.value == 7:
            assert size.value == 4 and at(value, c_int).value == 4  # the epilogue: a bias
        else:
            assert attribute.value == 8 and size.value == 8
            what["bias"] = at(value, c_void_p).value
        return 0

    def cublasLtMatrixLayoutCreate(self, layout, kind, rows, cols, stride):
        assert isinstance(rows, c_uint64) and isinstance(stride, c_int64)
        kind = {0: torch.float32, 14: torch.bfloat16}[kind.value]
        return self.new(layout, shape=(rows.value, cols.value), stride=stride.value, kind=kind)

    def cublasLtMatmulPreferenceCreate(self, preference):
        return self.new(preference)

    def cublasLtMatmulPreferenceSetAttribute(self, preference, attribute, value, size):
        kind = c_uint64 if attribute.value == 1 else c_uint32
        assert size.value == ctypes.sizeof(kind)
        self.made[preference.value][attribute.value] = at(value, kind).value
        return 0

    def cublasLtMatmulPreferenceDestroy(self, preference):
        del self.made[preference.value]
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, handle, desc, a, b, c, d, preference, most, found, count):
        self.asked.append(self.made[preference.value])
        found = at(found, blas._Found)
        found.state, found.workspace = 0, self.workspace
        found.algo[0] = 77
        at(count, c_int).value = int(self.offers)
        return 0 if self.offers else 15

    def _matrix(self, pointer, layout):
        """Its memory, (cols, stride) by rows, of which the first `rows` of each are the matrix by columns."""
        what = self.made[layout.value]
        (rows, cols), stride, kind = what["shape"], what["stride"], what["kind"]
        size = kind.itemsize * (stride * (cols - 1) + rows)
        memory = torch.frombuffer((ctypes.c_char * size).from_address(pointer.value), dtype=kind)
        return memory.as_strided((rows, cols), (1, stride))

    def cublasLtMatmul(self, handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, space, size, stream):
        assert at(algo, c_uint64).value == 77 and size.value == 0 and not space.value and stream.value == 5
        assert c.value == d.value and lc.value == ld.value
        what = self.made[desc.value]
        a, b, d = self._matrix(a, la), self._matrix(b, lb), self._matrix(d, ld)
        a, b = a.t() if what["transa"] else a, b.t() if what["transb"] else b
        total = at(alpha, c_float).value * (a.float() @ b.float()) + at(beta, c_float).value * d.float()
        if what["bias"]:
            line = (ctypes.c_char * (2 * len(d))).from_address(what["bias"])
            total += torch.frombuffer(line, dtype=torch.bfloat16).float()[:, None]
        d.copy_(total)
        return 0


def whole(*shape):
    """Small whole numbers, which bfloat16 adds up exactly."""
    return torch.randint(-3, 4, shape).bfloat16()


@pytest.mark.parametrize("by_columns", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("way", ["plain", "bias", "grows"])
@pytest.mark.parametrize("wider", [0, 5])
def test_a_product_is_told_as_it_is(by_columns, way, wider):
    library = Library()
    lt = blas.Lt(library, lambda: 5)
    m, n, k = 6, 4, 3

    def matrix(rows, cols, columns):
        if columns:
            return whole(cols, rows + wider)[:, :rows].t()
        return whole(rows, cols + wider)[:, :cols]

    for _ in range(2):  # the second time it is known
        a, b = matrix(m, k, by_columns[0]), matrix(k, n, by_columns[1])
        out, bias = matrix(m, n, False), whole(n) if way == "bias" else None
        want = a.float() @ b.float() + (bias.float() if way == "bias" else out.float() if way == "grows" else 0)
        assert lt.product(a, b, out, bias, way == "grows")
        assert torch.equal(out.float(), want)
    assert 1 <= len(library.asked) <= 2  # memory may be aligned otherwise
    for wish in library.asked:
        assert wish[1] == 0 and all(wish[i] in (2, 4, 8, 16, 32, 64, 128, 256) for i in (5, 6, 7, 8))


def test_a_product_of_some_rows_is_added_in_float32():
    library, many, weight = Library(), whole(5, 3, 8), whole(4, 8)
    total = torch.full((5, 4), 0.001)
    assert blas.Lt(library, lambda: 5).product(many[:, 0], weight.t(), total, None, True)
    assert torch.equal(total, 0.001 + many[:, 0].float() @ weight.float().t())
    blas.product(many[:, 0], weight.t(), total, grows=True)  # torch's
    assert torch.equal(total, 0.001 + many[:, 0].float() @ weight.float().t() + many[:, 0].float() @ weight.float().t())
    assert not blas.Lt(library, lambda: 5).product(many[:, 0], weight.t(), total, whole(4), False)


def test_alignment_is_told_of_each_operand():
    library = Library()
    memory = torch.zeros(4096, dtype=torch.bfloat16)
    start = -(memory.data_ptr() // 2) % 128  # of a multiple of 256 bytes
    a, b, out = (memory[start + i :][:16].view(4, 4) for i in (0, 512 + 8, 1024 + 1))
    assert blas.Lt(library, lambda: 5).product(a, b, out, None, False)
    assert [library.asked[0][i] for i in (5, 6, 7, 8)] == [16, 256, 2, 2]  # cuBLAS's A is b


@pytest.mark.parametrize("library", [Library(offers=False), Library(workspace=8)], ids=["nothing", "more space"])
def test_torch_where_cublas_offers_nothing(monkeypatch, library):
    lt = blas.Lt(library, lambda: 5)
    monkeypatch.setattr(blas, "_lt", lambda device: lt)
    a, b, bias, out = whole(5, 3), whole(3, 4), whole(4), whole(5, 4)
    begun = out.float()
    blas.product(a, b, out, grows=True)
    assert torch.equal(out.float(), begun + a.float() @ b.float())
    blas.product(a, b, out, bias)
    assert torch.equal(out.float(), a.float() @ b.float() + bias.float())
    blas.product(a, b, out)
    assert torch.equal(out.float(), a.float() @ b.float())
    assert len(library.asked) >= 3


def test_what_cublas_cannot_read_is_torchs():
    lt = blas.Lt(Library(), lambda: 5)
    a, b, out = whole(5, 6), whole(6, 4), whole(5, 4)
    assert lt.product(a, b, out, None, False)
    assert not lt.product(a[:, ::2], b[::2], out, None, False)  # neither rows nor columns are contiguous
    assert not lt.product(a, b, whole(4, 5).t(), None, False)
    assert not lt.product(a.float(), b.float(), out.float(), None, False)
    assert not lt.product(a, b, out, whole(8)[::2], False)


def test_no_library_on_the_cpu():
    assert blas._lt(torch.device("cpu")) is None


def test_a_call_that_fails_says_which():
    class Broken(Library):
        def cublasLtMatmul(self, *_):
            return 13

    with pytest.raises(RuntimeError, match="cublasLtMatmul returned 13"):
        blas.Lt(Broken(), lambda: 5).product(whole(2, 2), whole(2, 2), whole(2, 2), None, False)


def test_the_result_is_as_large_as_cublas_says():
    assert ctypes.sizeof(blas._Found) == 96 and blas._Found.workspace.offset == 64
    assert ctypes.sizeof(c_size_t) == 8
