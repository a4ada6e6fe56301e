"""The Transformer against torch's own, and the properties that its definition promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.config import TransformerConfig
from repro.models.build import build_model
from repro.models.dropout import Dropout, RandomSource
from repro.models.transformer import Transformer

VOCABULARY = 30
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "max_positions": 60},
    {"positions": "none"},
    {"sinusoid_layout": "concatenated"},
    {"n_heads": 3, "d_k": 2, "d_v": 5},
    {"n_heads": 1},
    {"scale_attention": False, "attention_bias": False},
]


def small(seed: int = 1, **options: Any) -> Transformer:
    config = TransformerConfig(**{"n_layers": 2, "d_model": 16, "d_ff": 24, "n_heads": 4, **options})
    model = build_model(config, VOCABULARY, seed)
    assert isinstance(model, Transformer)
    return model


def batch(src_lengths: tuple[int, ...] = (7, 4, 6), tgt_lengths: tuple[int, ...] = (5, 6, 2)) -> tuple[Tensor, Tensor]:
    """Padded random source [sentences, longest] and target input; the pieces 4 and up are real words."""
    generator = torch.Generator().manual_seed(5)
    sides = []
    for lengths in (src_lengths, tgt_lengths):
        side = torch.randint(4, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
        for row, length in enumerate(lengths):
            side[row, length:] = 0
        sides.append(side)
    return sides[0], sides[1]


# Against torch.nn.Transformer


def torch_twin(model: Transformer) -> nn.Transformer:
    """torch's Transformer with copies of the weights of `model`."""
    c = model.config
    twin = nn.Transformer(
        c.d_model, c.n_heads, c.n_layers, c.n_layers, c.d_ff, dropout=0.0, layer_norm_eps=1e-6, batch_first=True,
        norm_first=c.norm == "pre",
    )  # fmt: skip
    d = c.d_model

    def copy(to: nn.Module, source: nn.Module) -> None:
        to.load_state_dict(source.state_dict())

    def feed_forward(to: Any, layer: Any, last_norm: str) -> None:
        copy(to.linear1, layer.feed_forward.inner)
        copy(to.linear2, layer.feed_forward.outer)
        copy(getattr(to, last_norm), layer.feed_forward_frame.norm)
        to.self_attn.in_proj_weight.copy_(layer.attention.qkv.weight)
        to.self_attn.in_proj_bias.copy_(layer.attention.qkv.bias)
        copy(to.self_attn.out_proj, layer.attention.out)
        copy(to.norm1, layer.attention_frame.norm)

    with torch.no_grad():
        for to, layer in zip(twin.encoder.layers, model.encoder, strict=True):
            feed_forward(to, layer, "norm2")
        for to, layer in zip(twin.decoder.layers, model.decoder, strict=True):
            feed_forward(to, layer, "norm3")
            to.multihead_attn.in_proj_weight[:d] = layer.cross.q.weight
            to.multihead_attn.in_proj_weight[d:] = layer.cross.kv.weight
            to.multihead_attn.in_proj_bias[:d] = layer.cross.q.bias
            to.multihead_attn.in_proj_bias[d:] = layer.cross.kv.bias
            copy(to.multihead_attn.out_proj, layer.cross.out)
            copy(to.norm2, layer.cross_frame.norm)
        if c.norm == "post":
            twin.encoder.norm = twin.decoder.norm = None
        else:
            copy(twin.encoder.norm, model.encoder_norm)
            copy(twin.decoder.norm, model.decoder_norm)
    return twin


def embedded(matrix: Tensor, pieces: Tensor) -> Tensor:
    """Embeddings times sqrt(d_model) plus the paper's sinusoids, by the formula."""
    d = matrix.shape[1]
    rows = [
        [(math.sin, math.cos)[j % 2](pos / 10000 ** ((j - j % 2) / d)) for j in range(d)]
        for pos in range(pieces.shape[1])
    ]
    return matrix[pieces] * math.sqrt(d) + torch.tensor(rows)


def randomise(model: Transformer) -> None:
    """Biases and LayerNorms away from 0 and 1, so that a wrong one shows."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("padded", [True, False])
def test_outputs_and_gradients_equal_torchs_transformer(norm: str, padded: bool) -> None:
    model = small(norm=norm, dropout=0.0)
    randomise(model)
    twin = torch_twin(model)
    src, tgt = batch() if padded else batch((6, 6, 6), (5, 5, 5))
    matrix = model.embedding.detach().clone().requires_grad_()
    padding = src == 0
    right = twin(
        embedded(matrix, src), embedded(matrix, tgt), src_key_padding_mask=padding, memory_key_padding_mask=padding,
        tgt_mask=torch.ones(tgt.shape[1], tgt.shape[1]).tril() == 0, tgt_key_padding_mask=tgt == 0,
    )  # fmt: skip
    real = tgt != 0
    got = model(src, src != 0, tgt)
    torch.testing.assert_close(got[real], right[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(model.project(got)[real], (right @ matrix.t())[real], atol=1e-5, rtol=0)

    share = torch.randn(int(real.sum()), 16, generator=torch.Generator().manual_seed(2))
    (got[real] * share).sum().backward()
    (right[real] * share).sum().backward()

    def gradient(parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        return parameter.grad

    pairs = [(model.embedding, matrix)]
    for ours, theirs in zip(model.encoder, twin.encoder.layers, strict=True):
        pairs += [(ours.attention.qkv.weight, theirs.self_attn.in_proj_weight)]
        pairs += [(ours.attention.qkv.bias, theirs.self_attn.in_proj_bias)]
        pairs += [(ours.feed_forward.inner.weight, theirs.linear1.weight)]
        pairs += [(ours.feed_forward_frame.norm.weight, theirs.norm2.weight)]
    for ours, theirs in zip(model.decoder, twin.decoder.layers, strict=True):
        pairs += [(ours.attention.qkv.weight, theirs.self_attn.in_proj_weight)]
        pairs += [(ours.cross.out.weight, theirs.multihead_attn.out_proj.weight)]
        pairs += [(ours.feed_forward.outer.bias, theirs.linear2.bias)]
        cross = torch.cat((gradient(ours.cross.q.weight), gradient(ours.cross.kv.weight)))
        torch.testing.assert_close(cross, gradient(theirs.multihead_attn.in_proj_weight), atol=1e-5, rtol=1e-5)
    for mine, other in pairs:
        torch.testing.assert_close(gradient(mine), gradient(other), atol=1e-5, rtol=1e-5)


# Positions, masks and padding


def test_without_positions_a_permuted_source_permutes_the_memory_and_nothing_else() -> None:
    src, tgt = batch((7, 7, 7))
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    model = small(positions="none").eval()
    mask = src != 0
    torch.testing.assert_close(model.encode(src[:, order], mask).states, model.encode(src, mask).states[:, order])
    torch.testing.assert_close(model(src[:, order], mask, tgt), model(src, mask, tgt))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_with_positions_a_permuted_source_is_another_source(positions: str) -> None:
    src, _ = batch((7, 7, 7))
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    model = small(positions=positions).eval()
    mask = src != 0
    moved = model.encode(src[:, order], mask).states - model.encode(src, mask).states[:, order]
    assert float(moved.detach().abs().max()) > 1e-2


@pytest.mark.parametrize("options", OPTIONS)
def test_later_target_pieces_change_no_earlier_state(options: dict[str, Any]) -> None:
    model = small(**options).eval()
    src, tgt = batch(tgt_lengths=(6, 6, 6))
    other = tgt.clone()
    other[:, 4:] = (other[:, 4:] + 7) % VOCABULARY
    before, after = model(src, src != 0, tgt), model(src, src != 0, other)
    torch.testing.assert_close(after[:, :4], before[:, :4], atol=1e-6, rtol=0)
    assert not torch.allclose(after[:, 4:], before[:, 4:], atol=1e-3)


@pytest.mark.parametrize("options", OPTIONS)
def test_what_stands_in_padding_and_how_much_of_it_changes_nothing(options: dict[str, Any]) -> None:
    model = small(**options).eval()
    src, tgt = batch()
    mask, real = src != 0, tgt != 0
    plain = model(src, mask, tgt)[real]
    wild_src, wild_tgt = src.masked_fill(~mask, 9), tgt.masked_fill(~real, 9)
    assert torch.equal(model(wild_src, mask, wild_tgt)[real], plain)
    wide_src, wide_tgt = (nn.functional.pad(side, (0, 5)) for side in (src, tgt))
    torch.testing.assert_close(model(wide_src, wide_src != 0, wide_tgt)[wide_tgt != 0], plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_sentence_does_not_depend_on_its_neighbours(options: dict[str, Any]) -> None:
    model = small(**options).eval()
    src, tgt = batch()
    together = model(src, src != 0, tgt)
    for row, (s, t) in enumerate(zip((7, 4, 6), (5, 6, 2), strict=True)):
        alone = model(src[row : row + 1, :s], src[row : row + 1, :s] != 0, tgt[row : row + 1, :t])
        torch.testing.assert_close(together[row, :t], alone[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [*OPTIONS, {"attention_dropout": 0.1, "activation_dropout": 0.1}])
def test_a_row_of_padding_alone_gives_no_nan(options: dict[str, Any]) -> None:
    model = small(**options)
    src, tgt = batch()
    src[1], tgt[1] = 0, 0
    hidden = model(src, src != 0, tgt)
    hidden.square().sum().backward()
    assert bool(hidden.isfinite().all())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


# Incremental decoding


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_one_piece_at_a_time_equals_the_whole_prefix(options: dict[str, Any], beam: int) -> None:
    """Over more steps than the cache first holds, with reordered beams and sentences that finish."""
    model = small(**options).eval()
    src, _ = batch((7, 4, 6, 5))
    generator = torch.Generator().manual_seed(beam)
    sentences = torch.arange(4)
    prefixes = torch.full((4, beam, 1), 2)
    with torch.inference_mode():
        state = model.start(model.encode(src, src != 0), beam)
        for step in range(40):
            got = model.advance(prefixes[:, :, -1].flatten(), state)
            rows = src[sentences].repeat_interleave(beam, 0)
            right = model.decode(prefixes.flatten(0, 1), model.encode(rows, rows != 0))[:, -1]
            torch.testing.assert_close(got, right, atol=1e-5, rtol=0)
            count = len(sentences)
            kept = torch.arange(count)
            if step in (2, 20):  # one sentence ends, the others change places
                kept = torch.randperm(count, generator=generator)[:-1]
            beams = torch.randint(0, beam, (len(kept), beam), generator=generator)
            state.reorder(kept, beams)
            pieces = torch.randint(4, VOCABULARY, (len(kept), beam, 1), generator=generator)
            prefixes = torch.cat((prefixes[kept[:, None], beams], pieces), dim=2)
            sentences = sentences[kept]


def test_source_keys_are_computed_once_a_sentence_not_once_a_hypothesis() -> None:
    model = small().eval()
    src, _ = batch()
    state = model.start(model.encode(src, src != 0), 4)
    calls = []
    for layer in model.decoder:
        layer.cross.kv.register_forward_hook(lambda *_: calls.append(1))
    model.advance(torch.full((12,), 2), state)
    assert not calls
    assert all(len(keys) == len(values) == 3 * model.config.n_heads for keys, values in state.memory)


# Initial weights


def test_weights_follow_from_the_seed_alone_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = small(seed=4).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = small(seed=4).state_dict(), small(seed=5).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding"], other["embedding"])


def test_each_projection_is_glorot_uniform_by_its_own_shape() -> None:
    model = small(d_model=64, d_ff=96, n_heads=4, d_k=8, d_v=24)
    layer = model.decoder[0]
    bounds = {
        math.sqrt(6 / (64 + 32)): [*layer.attention.projections()[:2], *layer.cross.projections()[:2]],
        math.sqrt(6 / (64 + 96)): [
            layer.attention.projections()[2],
            layer.cross.projections()[2],
            layer.attention.out.weight,
            layer.cross.out.weight,
            layer.feed_forward.inner.weight,
            layer.feed_forward.outer.weight,
        ],
    }
    for bound, matrices in bounds.items():
        for matrix in matrices:
            assert 0.99 * bound < float(matrix.detach().abs().max()) <= bound
            assert float(matrix.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert all(float(bias.abs().max()) == 0 for name, bias in model.state_dict().items() if name.endswith("bias"))


def test_embeddings_start_with_the_published_spread_and_are_one_matrix() -> None:
    model = build_model(TransformerConfig(n_layers=1, d_model=64, d_ff=8, n_heads=2, positions="learned"), 3000, 1)
    embedding, table = model.state_dict()["embedding"], model.state_dict()["src_positions.weight"]
    assert float(embedding.std()) == pytest.approx(1 / 8, rel=0.01)
    assert float(table.std()) == pytest.approx(1 / 8, rel=0.02)
    assert [name for name, p in model.named_parameters() if p.shape[0] == 3000] == ["embedding"]
    hidden = torch.randn(2, 64)
    torch.testing.assert_close(model.project(hidden), hidden @ embedding.t())


def test_on_the_meta_device_nothing_is_allocated() -> None:
    config = TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2)
    model = build_model(config, 10, seed=1, device="meta")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_attention_maps_show_every_layer_and_head() -> None:
    model = small().eval()
    src, tgt = batch()
    with torch.no_grad():
        maps = model.attention_maps(src, src != 0, tgt)
    assert [len(part) for part in maps] == [2, 2, 2]
    assert [part[0].shape for part in maps] == [(3, 4, 7, 7), (3, 4, 6, 6), (3, 4, 6, 7)]
    assert float(maps.decoder[1].triu(1).abs().max()) == 0
    assert float(maps.cross[1][1, ..., 4:].abs().max()) == 0
    torch.testing.assert_close(maps.cross[0].sum(-1), torch.ones(3, 4, 6))


# Dropout


def places(**options: Any) -> int:
    """How often dropout is applied in one forward pass."""
    model = small(**options)
    calls = 0

    def count(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        nonlocal calls
        assert isinstance(module, Dropout)
        calls += not torch.equal(result, given[0])

    for module in model.modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(count)
    src, tgt = batch()
    model(src, src != 0, tgt)
    return calls


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_falls_on_embeddings_and_every_sub_layer_and_nowhere_else(norm: str) -> None:
    assert places(norm=norm, dropout=0.5) == 2 + 2 * (2 + 3)


def test_attention_and_activation_dropout_have_their_own_places() -> None:
    assert places(dropout=0.0, attention_dropout=0.5) == 2 * (1 + 2)
    assert places(dropout=0.0, activation_dropout=0.5) == 2 * (1 + 1)
    assert places(dropout=0.0) == 0


def test_dropout_follows_from_its_seed_and_is_off_in_evaluation() -> None:
    model = small(dropout=0.3, attention_dropout=0.2, activation_dropout=0.2)
    src, tgt = batch()

    def run(seed: int) -> Tensor:
        model.random.seed(seed)
        hidden: Tensor = model(src, src != 0, tgt)
        return hidden

    assert torch.equal(run(3), run(3))
    assert not torch.equal(run(3), run(4))
    model.eval()
    assert torch.equal(run(3), run(4))
    assert torch.equal(run(3), model(src, src != 0, tgt))


@pytest.mark.parametrize("probability", [0.99999, 0.999999999, 1.0 - 2**-53])
def test_the_largest_dropouts_that_may_be_set_give_finite_numbers(probability: float) -> None:
    TransformerConfig(dropout=probability)
    dropped = Dropout(probability, RandomSource())(torch.ones(64, 1000))
    assert bool(dropped.isfinite().all())
    assert int((dropped == 0).sum()) > 63_900


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_the_mean(probability: float, dtype: torch.dtype) -> None:
    model = small(dropout=probability)
    model.random.seed(7)
    x = torch.ones(400_001, dtype=dtype, requires_grad=True)
    dropped = model.embedding_dropout(x)
    assert dropped.dtype == dtype
    assert float((dropped.detach() == 0).double().mean()) == pytest.approx(probability, abs=4e-3)
    assert float(dropped.detach().double().mean()) == pytest.approx(1.0, abs=6e-3)
    dropped.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, dropped.detach())
