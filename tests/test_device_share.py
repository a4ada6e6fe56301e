"""Several runs on one GPU: each takes its share of the memory and no more."""

from __future__ import annotations

import pytest
import torch

from repro.accounting.capacity import MEMORY_SHARE
from repro.accounting.memory import memory_bytes
from repro.config import TrainConfig, TransformerConfig
from repro.errors import UsageError
from repro.training import cuda
from repro.training.device import choose_device, device_memory, memory_share


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """A GPU of 16 GiB, as far as it is asked for its memory; the limits that are set on it."""
    limits: list[tuple[float, str]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 16 * 2**30))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: limits.append((share, str(device)))
    )
    return limits


def test_a_process_is_held_to_its_share_and_reckons_with_it(
    gpu: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_SHARE, "0.25")
    device = choose_device(1)
    assert gpu == [(0.25, "cuda:1")]
    assert device_memory(device) == 4 * 2**30


def test_without_a_share_a_process_may_take_all(gpu: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMORY_SHARE, raising=False)
    assert device_memory(choose_device()) == 16 * 2**30
    assert gpu == [(1.0, "cuda:0")]


@pytest.mark.parametrize("told", ["0", "-1", "1.5", "half", "nan", "inf"])
def test_what_is_no_share_is_refused_by_name(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_SHARE, told)
    with pytest.raises(UsageError, match=MEMORY_SHARE):
        memory_share()


def test_a_cpu_has_no_limit_and_records_nothing() -> None:
    cpu = torch.device("cpu")
    cuda.limit_memory(cpu, 0.1)
    cuda.leave_default_stream(cpu)
    assert cuda.recorder(cpu) is None
    assert not cuda.runs_ahead(cpu)
    assert not cuda.has_flash(cpu, bf16=True)
    assert torch.equal(cuda.upload(torch.arange(3), cpu), torch.arange(3))


def test_logits_in_half_precision_count_with_the_copies_that_change_their_type() -> None:
    # 2^26 logits: 2 bytes each as a product and as their gradient, 4 each before and after the softmax.
    config, train = TransformerConfig(), TrainConfig(batch_tokens=25_000, precision="bf16")
    more = memory_bytes(config, 40_960, train) - memory_bytes(config, 40_960, train, on="cpu")
    rows = {"cuda": 2**26 // 40_960, "cpu": 256}
    assert more == rows["cuda"] * 40_960 * 12 - rows["cpu"] * 40_960 * 6
