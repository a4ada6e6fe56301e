"""The fused pass's products against double precision, and the library that they come from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.models import products


@pytest.fixture(params=["mkl", "onednn"])
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(products, "library", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("here", "capability", "maker", "expected"),
    [
        (True, "AVX512", "AuthenticAMD", "onednn"),
        (True, "AVX512", "GenuineIntel", "mkl"),
        (True, "AVX2", "AuthenticAMD", "mkl"),
        (True, "SVE256", "", "mkl"),
        (False, "AVX512", "AuthenticAMD", "mkl"),
    ],
)
def test_onednn_is_for_amds_processors_with_avx512(
    here: bool, capability: str, maker: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "cpuinfo"
    if maker:
        told.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(products, "Path", lambda _: told)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: here)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.library.__wrapped__() == expected


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("rows", "wide", "out"), [(1, 3, 5), (7, 16, 4), (64, 8, 48), (530, 32, 20)])
def test_products_are_those_of_double_precision(rows: int, wide: int, out: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias, grad = (
        torch.randn(*shape, generator=generator) for shape in ((rows, wide), (out, wide), (out,), (rows, out))
    )
    exact = x.double() @ weight.double().t()
    for got, expected in (
        (products.linear(x, weight), exact),
        (products.linear(x, weight, bias), exact + bias),
        (products.linear(x, weight, bias, relu=True), (exact + bias).clamp(min=0.0)),
        (products.input_gradient(grad, weight), grad.double() @ weight.double()),
        (products.weight_gradient(grad, x), grad.double().t() @ x.double()),
    ):
        assert got.is_contiguous()
        torch.testing.assert_close(got, expected.float(), atol=2e-5, rtol=1e-5)


@pytest.mark.usefixtures("library")
def test_products_of_tensors_that_are_not_contiguous() -> None:
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> list[Tensor]:
        """The same numbers' worth of tensor: in columns, by every second number, spread from one column and one row."""
        rows, columns = shape
        return [
            torch.randn(columns, rows, generator=generator).t(),
            torch.randn(rows, 2 * columns, generator=generator)[:, ::2],
            torch.randn(rows, 1, generator=generator).expand(shape),
            torch.randn(1, columns, generator=generator).expand(shape),
        ]

    biases = [torch.randn(10, generator=generator)[::2], torch.randn(1, generator=generator).expand(5)]
    for x, weight, grad in itertools.product(drawn(7, 6), drawn(5, 6), drawn(7, 5)):
        for bias in biases:
            torch.testing.assert_close(products.linear(x, weight, bias), x @ weight.t() + bias)
        torch.testing.assert_close(products.input_gradient(grad, weight), grad @ weight)
        torch.testing.assert_close(products.weight_gradient(grad, x), grad.t() @ x)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_positive_part_of_what_is_not_a_number_is_not_a_number(rows: int) -> None:
    x, weight = torch.ones(rows, 3), torch.ones(4, 3)
    x[0, 1], weight[2, 2] = torch.nan, torch.inf
    got = products.linear(x, weight, -torch.ones(4), relu=True)
    assert got[0].isnan().all()
    assert (got[1:, 2] == torch.inf).all()
    assert (got[1:, :2] == 2.0).all()


def test_products_come_in_few_sizes_that_hold_little_more_than_is_needed(library: str) -> None:
    sizes = [products.room(rows) for rows in range(1, 4097)]
    assert all(rows <= size <= rows * (1 + 1 / 16) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) <= (16 * 9 if library == "onednn" else 4096)
    for rows, most in enumerate(map(products.within, range(1, 1025)), 1):
        assert most == max(size for size in range(1, rows + 1) if sizes[size - 1] == size)
