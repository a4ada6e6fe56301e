"""Parameters, FLOPs, configurations and sizes of the baselines."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from baseline_toys import CONFIGS, VOCABULARY
from torch.utils.flop_counter import FlopCounterMode

from repro.accounting.flops import Lengths, forward_flops, train_flops
from repro.accounting.inventory import inventory
from repro.accounting.memory import memory_bytes
from repro.accounting.parameters import parameters
from repro.accounting.sizing import TYPICAL, sized, sized_by_flops
from repro.config import RunConfig, TrainConfig, TransformerConfig
from repro.config.baselines import (
    BaselineConfig,
    BaselineFamily,
    ConvS2SConfig,
    GnmtConfig,
    LstmAttentionConfig,
    LstmConfig,
    resized,
    small,
)
from repro.config.schema import replace_key
from repro.config.tuning import recommended_training
from repro.errors import UsageError
from repro.models.build import build_model

FAMILIES: tuple[BaselineFamily, ...] = ("lstm", "lstm-attention", "gnmt", "convs2s")
PUBLISHED: tuple[BaselineConfig, ...] = (LstmConfig(), LstmAttentionConfig(), GnmtConfig(), ConvS2SConfig())
BASES = {
    "smoke": (TransformerConfig(n_layers=3, d_model=64, d_ff=256), 256),
    "captions": (TransformerConfig(n_layers=3, d_model=128, d_ff=512), 4000),
    "captions on a GPU": (TransformerConfig(n_layers=3, d_model=256, d_ff=1024), 8000),
    "paper": (TransformerConfig(), 40_960),
}


@pytest.mark.parametrize("config", [*CONFIGS.values(), *PUBLISHED], ids=lambda config: config.family)
def test_flops_equal_torchs_operator_count_forward_and_backward(config: BaselineConfig) -> None:
    model = build_model(config, VOCABULARY, 1, "meta")
    src = torch.zeros(5, 4, dtype=torch.int64, device="meta")
    tgt_in = torch.zeros(5, 3, dtype=torch.int64, device="meta")
    lengths = Lengths.rectangle(5, 4, 3)
    with FlopCounterMode(display=False) as forward:
        model.project(model(src, src != 0, tgt_in))
    assert forward.get_total_flops() == forward_flops(config, VOCABULARY, lengths).total
    with FlopCounterMode(display=False) as both:
        model.project(model(src, src != 0, tgt_in)).sum().backward()
    assert both.get_total_flops() == train_flops(config, VOCABULARY, lengths).total


OPTIONS: list[tuple[BaselineFamily, dict[str, Any]]] = [
    ("lstm", {"tied_embeddings": False}),
    ("lstm", {"reverse_source": False}),
    ("lstm", {"n_layers": 3, "dropout": 0.3}),
    ("lstm-attention", {"tied_embeddings": False, "d_out": 10}),
    ("lstm-attention", {"encoder_layers": 3, "decoder_layers": 1}),
    ("lstm-attention", {"decoder_layers": 3, "d_attention": 6, "dropout": 0.3}),
    ("gnmt", {"tied_embeddings": False}),
    ("gnmt", {"n_layers": 2, "d_attention": 6}),
    ("gnmt", {"n_layers": 5, "dropout": 0.0}),
    ("convs2s", {"tied_embeddings": False, "d_out": 10}),
    ("convs2s", {"encoder": ((20, 5), (12, 1)), "decoder": ((20, 2), (12, 1), (12, 4)), "dropout": 0.3}),
    ("convs2s", {"max_positions": 9, "dropout": 0.0}),
]


def counted(config: BaselineConfig, sentences: int, src_len: int, tgt_len: int) -> tuple[int, int]:
    """What torch counts of a forward pass, and of a forward and a backward pass, on the meta device."""
    model = build_model(config, VOCABULARY, 1, "meta")
    src = torch.zeros(sentences, src_len, dtype=torch.int64, device="meta")
    tgt_in = torch.zeros(sentences, tgt_len, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        logits = model.project(model(src, src != 0, tgt_in))
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize(("family", "changes"), OPTIONS, ids=str)
@pytest.mark.parametrize("sizes", [(3, 7, 5), (2, 3, 8)])
def test_flops_of_every_option_equal_torchs_operator_count(
    family: BaselineFamily, changes: dict[str, Any], sizes: tuple[int, int, int]
) -> None:
    config = dataclasses.replace(resized(small(family), d_hidden=24, d_embedding=16), **changes)
    lengths = Lengths.rectangle(*sizes)
    found = forward_flops(config, VOCABULARY, lengths).total, train_flops(config, VOCABULARY, lengths).total
    assert found == counted(config, *sizes)


def test_every_field_of_a_baseline_is_among_the_options_counted() -> None:
    """But for widths that all of them share, so that a new option is not forgotten."""
    for family in FAMILIES:
        config = small(family)
        changed = {name for known, changes in OPTIONS if known == family for name in changes}
        fields = {field.name for field in dataclasses.fields(config)} - {"family", "d_embedding", "d_hidden"}
        assert fields == changed, family


@pytest.mark.parametrize("name", ["lstm", "lstm-attention", "gnmt", "convs2s"])
def test_flops_of_a_batch_without_padding_are_the_sum_of_its_sentences_alone(name: str) -> None:
    lengths = [(4, 9), (11, 3), (1, 1)]
    src, tgt = torch.tensor(lengths).T
    apart = [counted(CONFIGS[name], 1, *pair) for pair in lengths]
    together = Lengths.of(src, tgt)
    assert forward_flops(CONFIGS[name], VOCABULARY, together).total == sum(forward for forward, _ in apart)
    assert train_flops(CONFIGS[name], VOCABULARY, together).total == sum(both for _, both in apart)


def test_flops_by_where_they_go_equal_torchs_count_of_each_part() -> None:
    config = CONFIGS["gnmt"]
    model = build_model(config, VOCABULARY, 1, "meta")
    src = torch.zeros(5, 9, dtype=torch.int64, device="meta")
    tgt_in = torch.zeros(5, 7, dtype=torch.int64, device="meta")
    flops = forward_flops(config, VOCABULARY, Lengths.rectangle(5, 9, 7))
    with FlopCounterMode(display=False) as source:
        memory = model.encode(src, src != 0)
    with FlopCounterMode(display=False) as target:
        hidden = model.decode(tgt_in, memory)
    with FlopCounterMode(display=False) as softmax:
        model.project(hidden)
    assert source.get_total_flops() == flops.source
    assert target.get_total_flops() == flops.target + flops.attention
    assert softmax.get_total_flops() == flops.softmax
    assert flops.attention == 2 * 5 * 9 * 7 * (20 + 24)


@pytest.mark.parametrize("config", [*CONFIGS.values(), *PUBLISHED], ids=lambda config: config.family)
def test_parameters_equal_those_of_the_model(config: BaselineConfig) -> None:
    assert inventory(config, 1000).parameters == parameters(config, 1000)


def test_the_lstm_of_2014_has_the_384_million_parameters_of_its_paper() -> None:
    """Sutskever et al. (2014), section 3.4: 384M parameters, of which 64M are recurrent connections, 32M a side; input
    vocabulary 160 000, output vocabulary 80 000. Biases are left out there."""
    parts = inventory(LstmConfig(), 1)
    encoder, decoder = parts.multiply_adds("src"), parts.multiply_adds("tgt")
    assert (encoder, decoder) == (32_000_000, 32_000_000)
    assert 160_000 * 1000 + 2 * 80_000 * 1000 + encoder + decoder == 384_000_000
    one_piece_more = inventory(LstmConfig(), 2).parameters - parts.parameters
    assert one_piece_more == 3 * 1000 + 1


def test_gnmt_has_the_parameters_that_a_count_by_hand_gives() -> None:
    """Four layers, width 1024, 32 000 pieces, one LSTM layer of inputs i and width h: 4 h (i + h) + 8 h."""

    def layer(i: int, h: int = 1024) -> int:
        return 4 * h * (i + h) + 8 * h

    encoder = 2 * layer(1024) + layer(2048) + 2 * layer(1024)
    decoder = layer(1024) + 3 * layer(2048)
    attention = 2 * 1024 * 1024 + 1024
    tables = 3 * 32_000 * 1024 + 32_000
    assert parameters(GnmtConfig(n_layers=4), 32_000) == encoder + decoder + attention + tables


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("base", BASES)
def test_sizes_match_the_base_in_parameters_or_in_flops(family: BaselineFamily, base: str) -> None:
    transformer, vocabulary = BASES[base]
    target = parameters(transformer, vocabulary)
    alike = sized(family, target_parameters=target, vocabulary_size=vocabulary)
    assert parameters(alike, vocabulary) == pytest.approx(target, rel=0.03)
    cost = forward_flops(transformer, vocabulary, TYPICAL).total
    as_costly = sized_by_flops(family, target_flops=cost, vocabulary_size=vocabulary)
    assert forward_flops(as_costly, vocabulary, TYPICAL).total == pytest.approx(cost, rel=0.05)
    for config in (alike, as_costly):
        assert config.d_embedding % 8 == 0
        assert config.d_model % 8 == 0
        assert config.tied_embeddings
        if isinstance(config, (LstmConfig, GnmtConfig)):  # or no linear layer would stand before the tied matrix
            assert config.d_embedding != config.d_hidden


def test_equal_widths_are_the_last_resort_of_a_model_that_they_would_cost_a_layer() -> None:
    """A target of which no unequal widths come within 3 %: an LSTM of 16 numbers and 500 pieces."""
    equal = lstm_of(16, 16)
    found = sized("lstm", target_parameters=parameters(equal, 500), vocabulary_size=500)
    assert found == equal
    larger = lstm_of(128, 128)
    found = sized("lstm", target_parameters=parameters(larger, 500), vocabulary_size=500)
    assert isinstance(found, LstmConfig)
    assert found.d_hidden != found.d_embedding


def lstm_of(d_hidden: int, d_embedding: int) -> BaselineConfig:
    return resized(small("lstm"), d_hidden=d_hidden, d_embedding=d_embedding)


def test_no_width_is_found_for_a_target_below_the_vocabulary() -> None:
    with pytest.raises(UsageError, match="smaller vocabulary"):
        sized("gnmt", target_parameters=1000, vocabulary_size=40_000)


def test_a_resized_published_model_keeps_its_proportions() -> None:
    half = resized(ConvS2SConfig(), d_hidden=256, d_embedding=384)
    assert isinstance(half, ConvS2SConfig)
    assert half.encoder == ((256, 3),) * 9 + ((512, 3),) * 4 + ((1024, 1),) * 2
    assert half.d_out == 256


@pytest.mark.parametrize("config", [*PUBLISHED, *(small(family) for family in FAMILIES)], ids=lambda c: c.family)
def test_a_run_of_every_family_is_read_back_from_its_document(config: BaselineConfig) -> None:
    run = RunConfig(model=config)
    assert RunConfig.read(run.document()) == run
    assert run.resolved().hash() == run.hash()
    assert run.hash() != RunConfig(model=dataclasses.replace(config, dropout=0.37)).hash()


def test_settings_reach_a_baseline_by_their_keys() -> None:
    run = RunConfig(model=small("convs2s"))
    run = replace_key(run, "model.encoder", "[[64, 3], [64, 5]]")
    assert isinstance(run.model, ConvS2SConfig)
    assert run.model.encoder == ((64, 3), (64, 5))
    with pytest.raises(UsageError, match="unknown key"):
        replace_key(run, "model.n_heads", "4")


def test_memory_grows_with_the_batch_and_the_model() -> None:
    for config in PUBLISHED:
        few = memory_bytes(config, 1000, TrainConfig(batch_tokens=1000))
        many = memory_bytes(config, 1000, TrainConfig(batch_tokens=4000))
        assert parameters(config, 1000) * 16 < few < many


def test_recommended_training_keeps_batches_and_budget_and_states_a_peak() -> None:
    base = TrainConfig(budget=1200, batch_tokens=1024, warmup_steps=200)
    for family in FAMILIES:
        train = recommended_training(small(family), base)
        assert (train.budget, train.batch_tokens, train.label_smoothing) == (1200, 1024, 0.1)
        assert train.clip_norm > 0
