"""The convolutional model against torch's own convolutions, weight normalisation and gated linear units."""

from __future__ import annotations

import math

import pytest
import torch
from baseline_toys import VOCABULARY, sources, targets, toy
from torch import Tensor, nn
from torch.nn import functional

from repro.config.baselines import ConvS2SConfig
from repro.data.pieces import BOS, PAD
from repro.errors import CheckError, UsageError
from repro.models.build import build_model
from repro.models.convs2s import Convolution, ConvS2S, DecoderLayer, NormedLinear

torch.set_num_threads(1)
LENGTHS = [4, 9, 1, 7]


def normed(layer: NormedLinear) -> nn.Linear:
    """torch's weight normalisation with our layer's direction, gain and bias."""
    d_out, d_in = layer.direction.shape
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(d_in, d_out), dim=0)
    theirs.parametrizations.weight.original1.data.copy_(layer.direction.data)
    theirs.parametrizations.weight.original0.data.copy_(layer.gain.data[:, None])
    theirs.bias.data.copy_(layer.bias.data)
    return theirs


def convolved(layer: Convolution, x: Tensor, before: int) -> Tensor:
    """torch's convolution and gate over `x` [length, d_in] of one sentence."""
    weight = normed(layer.gated).weight.view(-1, layer.kernel, layer.d_in).transpose(1, 2)
    padded = functional.pad(x.T[None], (before, layer.kernel - 1 - before))
    return functional.glu(functional.conv1d(padded, weight, layer.gated.bias)[0].T, -1)


def residual(layer: Convolution, x: Tensor) -> Tensor:
    return x if layer.residual is None else normed(layer.residual)(x)


def equations(model: ConvS2S, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Hidden states [tgt_len, d_out] of one sentence without padding: sections 3.1 to 3.4."""
    half = math.sqrt(0.5)
    e = model.embeddings.source(src) + model.src_positions.weight[: len(src)]
    x = normed(model.encoder_in)(e)
    for layer in model.encoder:
        assert isinstance(layer, Convolution)
        x = (convolved(layer, x, layer.kernel // 2) + residual(layer, x)) * half
    z = normed(model.encoder_out)(x)
    m = len(src)
    g = model.embeddings.target(tgt_in) + model.tgt_positions.weight[: len(tgt_in)]
    y = normed(model.decoder_in)(g)
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        h = convolved(layer, y, layer.kernel - 1)
        d = (normed(layer.query)(h) + g) * half
        c = torch.softmax(d @ z.T, -1) @ ((z + e) * half) * m * math.sqrt(1 / m)
        h = (normed(layer.context)(c) + h) * half
        y = (h + residual(layer, y)) * half
    return normed(model.decoder_out)(y)


def test_the_model_equals_its_equations_on_each_sentence_alone() -> None:
    model = toy("convs2s")
    assert isinstance(model, ConvS2S)
    src, tgt_in = sources(LENGTHS), targets(4, 6)
    hidden = model(src, src != PAD, tgt_in)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(hidden[row], equations(model, src[row, :length], tgt_in[row]), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("before", ["same", "past"])
def test_a_gated_convolution_equals_torchs_normalised_convolution_and_gate_with_gradients(
    kernel: int, before: str
) -> None:
    generator = torch.Generator().manual_seed(kernel)
    ours = Convolution(6, 8, kernel)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, generator=generator)
    x = torch.randn(2, 9, 6, generator=generator)
    pad = kernel // 2 if before == "same" else kernel - 1
    theirs = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 16, kernel), dim=0)
    gain, direction = theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1
    with torch.no_grad():  # one of our rows holds the kernel's positions side by side
        direction.copy_(ours.gated.direction.view(16, kernel, 6).transpose(1, 2))
        gain.copy_(ours.gated.gain[:, None, None])
        theirs.bias.copy_(ours.gated.bias)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    got = functional.glu(ours.gated(ours.windows(inputs[0], pad)), -1)
    padded = functional.pad(inputs[1].transpose(1, 2), (pad, kernel - 1 - pad))
    expected = functional.glu(theirs(padded), 1).transpose(1, 2)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    share = torch.randn(got.shape, generator=generator)
    (got * share).sum().backward()
    (expected * share).sum().backward()
    of_direction = direction.grad.transpose(1, 2).reshape(16, -1)
    for mine, other in (
        (inputs[0].grad, inputs[1].grad),
        (ours.gated.bias.grad, theirs.bias.grad),
        (ours.gated.gain.grad, gain.grad.flatten()),
        (ours.gated.direction.grad, of_direction),
    ):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-3)


def test_logits_use_a_normalised_matrix_unless_tied() -> None:
    model = toy("convs2s")
    assert isinstance(model, ConvS2S)
    assert isinstance(model.logits, NormedLinear)
    hidden = torch.randn(3, 20)
    torch.testing.assert_close(model.project(hidden), normed(model.logits)(hidden), atol=1e-5, rtol=1e-5)
    tied = toy("convs2s-tied")
    assert tied.output().weight is tied.embeddings.target_table  # type: ignore[union-attr]


def test_the_encoder_gets_its_gradient_divided_by_twice_the_attentions_but_the_vectors_do_not() -> None:
    model = toy("convs2s")
    assert isinstance(model, ConvS2S)
    src, tgt_in = sources([7]), targets(1, 6)
    weights = torch.randn(6, 20)
    gradients = []
    for hidden in (model(src, src != PAD, tgt_in)[0], equations(model, src[0], tgt_in[0])):
        model.zero_grad()
        (hidden * weights).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    ours, plain = gradients
    two_attentions = 4.0
    # torch's layers in `equations` are copies, but for biases of convolutions and the tables.
    torch.testing.assert_close(
        ours["encoder.0.gated.bias"] * two_attentions, plain["encoder.0.gated.bias"], atol=1e-5, rtol=1e-3
    )
    torch.testing.assert_close(ours["decoder.0.gated.bias"], plain["decoder.0.gated.bias"], atol=1e-5, rtol=1e-3)
    vectors = plain["src_positions.weight"] - ours["src_positions.weight"]
    assert vectors.norm() < plain["src_positions.weight"].norm()


def test_weights_start_with_the_papers_variances() -> None:
    config = ConvS2SConfig(
        d_embedding=128, encoder=((128, 3), (256, 3)), decoder=((128, 3), (256, 3)), d_out=96, dropout=0.2
    )
    model = build_model(config, 1000, seed=1)
    assert isinstance(model, ConvS2S)
    expected = {
        model.encoder_in: 0.8 / 128,
        model.encoder[0].gated: 4 * 0.8 / (3 * 128),
        model.encoder[1].residual: 1 / 128,
        model.encoder_out: 1 / 256,
        model.decoder[1].gated: 4 * 0.8 / (3 * 128),
        model.decoder[1].query: 1 / 256,
        model.decoder[1].context: 1 / 128,
        model.decoder_out: 1 / 256,
        model.logits: 0.8 / 96,
    }
    for layer, variance in expected.items():
        assert isinstance(layer, NormedLinear)
        assert layer.affine().weight.var().item() == pytest.approx(variance, rel=0.05)
        torch.testing.assert_close(layer.affine().weight, layer.direction)
        assert not layer.bias.any()
    for table in (model.embeddings.target_table, model.src_positions.weight):
        assert table.std().item() == pytest.approx(0.1, rel=0.02)


def test_variance_stays_through_the_encoder_at_the_start() -> None:
    config = ConvS2SConfig(d_embedding=256, encoder=((256, 3),) * 8, decoder=((256, 3),), dropout=0.0)
    model = build_model(config, 1000, seed=1).eval()
    assert isinstance(model, ConvS2S)
    src = torch.randint(4, 1000, (8, 30), generator=torch.Generator().manual_seed(0))
    first = model.encoder_in(model.embeddings.source(src) + model.src_positions.weight[:30])
    last = model.encode(src, src != PAD).keys
    assert 0.3 < (last.std() / first.std()).item() < 1.5


def test_a_sentence_longer_than_the_positions_names_the_knob() -> None:
    model = toy("convs2s").eval()
    src, tgt_in = sources([33]), targets(1, 6)
    with pytest.raises(CheckError, match=r"model\.max_positions"):
        model.encode(src, src != PAD)
    short = sources([5])
    with pytest.raises(CheckError, match=r"model\.max_positions"):
        model(short, short != PAD, targets(1, 33))
    with torch.inference_mode():
        state = model.start(model.encode(short, short != PAD), 1)
        for _ in range(32):
            model.advance(torch.tensor([BOS]), state)
        with pytest.raises(CheckError, match=r"model\.max_positions"):
            model.advance(torch.tensor([BOS]), state)
    assert model.max_positions == 32
    assert model(short, short != PAD, tgt_in).shape == (1, 6, 20)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder": ((64, 4),)}, "odd kernels"),
        ({"decoder": ()}, "no layers"),
        ({"encoder": ((0, 3),)}, "least is 1"),
        ({"dropout": 1.0}, "dropout"),
        ({"tied_embeddings": True}, "make the two widths equal"),
        ({"max_positions": 0}, "max_positions"),
    ],
)
def test_sizes_that_cannot_be_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ConvS2SConfig(**change)  # type: ignore[arg-type]


def test_the_vocabulary_is_as_given() -> None:
    assert toy("convs2s").output().weight.shape == (VOCABULARY, 20)
