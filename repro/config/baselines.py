"""The models that the paper compares with, each with its own paper's sizes as defaults.

`d_model` of every family is the width in the schedule's d_model^-0.5: the width of the states that meet the softmax
layer's side of the network, so that a learning-rate factor carries over between sizes as it does for the Transformer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from repro.config.sizes import check_layers, check_widths
from repro.errors import UsageError

BaselineFamily = Literal["lstm", "lstm-attention", "gnmt", "convs2s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmConfig:
    """Encoder and decoder LSTM without attention: Sutskever et al. (2014), section 3.4.

    Where a baseline is not as in its paper and no option says so, `repro.config.paper.DEPARTURES` does, for reports.
    """

    family: Literal["lstm"] = "lstm"
    n_layers: int = 4
    """Layers of the encoder and of the decoder each."""
    d_embedding: int = 1000
    d_hidden: int = 1000
    reverse_source: bool = True
    """Read the source from its end, which the paper found to help much (section 3.3)."""
    dropout: float = 0.0
    """On the input of each layer and on the last layer's output. The paper used none."""
    tied_embeddings: bool = False
    """One matrix for source, target and softmax, as our Transformer has; the paper has three."""

    def __post_init__(self) -> None:
        check_layers(n_layers=self.n_layers)
        check_widths(d_embedding=self.d_embedding, d_hidden=self.d_hidden)
        _probability(self.dropout)

    @property
    def d_model(self) -> int:
        """The width that the learning-rate schedule sees."""
        return self.d_hidden

    def resolved(self) -> LstmConfig:
        """Itself: nothing follows from other settings."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmAttentionConfig:
    """LSTM with additive attention and a bidirectional encoder: Bahdanau et al. (2015), appendix A.

    The paper's decoder is one gated recurrent layer that attends with its previous state and takes the context as
    input at the next step, so attention sits inside the time loop. Here, as in GNMT, the first decoder layer attends
    with its own output and the next layers take the context: all steps of a layer run as one fused call, and the
    second layer's state still remembers what was attended to. Hence two decoder layers by default. Its recurrent layers
    are LSTMs where the paper has gated recurrent units.
    """

    family: Literal["lstm-attention"] = "lstm-attention"
    encoder_layers: int = 1
    """Bidirectional layers, each of `d_hidden` a direction."""
    decoder_layers: int = 2
    d_embedding: int = 620
    d_hidden: int = 1000
    d_attention: int = 1000
    """Width of the hidden layer of v^T tanh(W_q s + W_k h)."""
    d_out: int = 500
    """Width of the maxout layer below the softmax (appendix A.2.2)."""
    dropout: float = 0.0
    """On the input of each layer and on the maxout layer's output. The paper used none."""
    tied_embeddings: bool = False
    """One matrix for source, target and softmax; the paper has three. Needs d_out equal to d_embedding."""

    def __post_init__(self) -> None:
        check_layers(encoder_layers=self.encoder_layers, decoder_layers=self.decoder_layers)
        check_widths(
            d_embedding=self.d_embedding, d_hidden=self.d_hidden, d_attention=self.d_attention, d_out=self.d_out
        )
        _probability(self.dropout)
        _tie(self.tied_embeddings, self.d_embedding, self.d_out)

    @property
    def d_model(self) -> int:
        """The width that the learning-rate schedule sees."""
        return self.d_hidden

    def resolved(self) -> LstmAttentionConfig:
        """Itself: nothing follows from other settings."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class GnmtConfig:
    """GNMT: Wu et al. (2016), section 3; `n_layers=4` is the common reproduction.

    As there, a step's attention is asked by the first decoder layer's output of the same step, where the paper takes
    that of the step before, and weights start from U(-0.1, 0.1).
    """

    family: Literal["gnmt"] = "gnmt"
    n_layers: int = 8
    """Layers of the encoder (the first of them bidirectional) and of the decoder each."""
    d_embedding: int = 1024
    d_hidden: int = 1024
    d_attention: int = 1024
    """Width of the hidden layer of the attention's feed-forward network."""
    dropout: float = 0.2
    """On the input of each layer and on the last layer's output (section 8.3, after Zaremba et al., 2014)."""
    tied_embeddings: bool = False
    """One matrix for source, target and softmax, as our Transformer has."""

    def __post_init__(self) -> None:
        check_widths(d_embedding=self.d_embedding, d_hidden=self.d_hidden, d_attention=self.d_attention)
        if self.n_layers < 2:
            fix = "use 2 or more: the second layer is the first to read what attention brings"
            raise UsageError(f"n_layers is {self.n_layers}", where="model", fix=fix)
        check_layers(n_layers=self.n_layers)
        _probability(self.dropout)

    @property
    def d_model(self) -> int:
        """The width that the learning-rate schedule sees."""
        return self.d_hidden

    def resolved(self) -> GnmtConfig:
        """Itself: nothing follows from other settings."""
        return self


_WMT_LAYERS = ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvS2SConfig:
    """Convolutional sequence to sequence: Gehring et al. (2017); the defaults are its WMT English-German model."""

    family: Literal["convs2s"] = "convs2s"
    d_embedding: int = 768
    encoder: tuple[tuple[int, int], ...] = _WMT_LAYERS
    """(output width, kernel) of each convolution, first to last; kernels are odd."""
    decoder: tuple[tuple[int, int], ...] = _WMT_LAYERS
    """(output width, kernel) of each convolution; every one is followed by attention."""
    d_out: int = 512
    """Width of the states below the softmax."""
    dropout: float = 0.2
    """On the embeddings, on the input of each convolution and on the decoder's output (section 4.2)."""
    max_positions: int = 1024
    """Rows of the two tables of learned positions: the longest source and target, end mark included."""
    tied_embeddings: bool = False
    """One matrix for source, target and softmax. Needs d_out equal to d_embedding."""

    def __post_init__(self) -> None:
        check_widths(d_embedding=self.d_embedding, d_out=self.d_out, max_positions=self.max_positions)
        for side, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            if not layers:
                raise UsageError(f"{side} has no layers", where="model", fix="give pairs such as [[256, 3], [256, 3]]")
            for width, kernel in layers:
                check_widths(**{f"a width of {side}": width, f"a kernel of {side}": kernel})
        even = [kernel for _, kernel in self.encoder if kernel % 2 == 0]
        if even:
            raise UsageError(
                f"encoder has a kernel of {even[0]}", where="model.encoder", fix="use odd kernels, they have a middle"
            )
        _probability(self.dropout)
        _tie(self.tied_embeddings, self.d_embedding, self.d_out)

    @property
    def d_model(self) -> int:
        """The width that the learning-rate schedule sees."""
        return self.d_out

    def resolved(self) -> ConvS2SConfig:
        """Itself: nothing follows from other settings."""
        return self


BaselineConfig = LstmConfig | LstmAttentionConfig | GnmtConfig | ConvS2SConfig
"""Any baseline's configuration; told apart by `family`."""


def _probability(dropout: float) -> None:
    if not 0.0 <= dropout < 1.0:
        raise UsageError(f"dropout is {dropout}", where="model", fix="choose from 0 up to, not including, 1")


def _tie(tied: bool, d_embedding: int, d_out: int) -> None:
    if tied and d_embedding != d_out:
        raise UsageError(
            f"tied_embeddings with d_embedding {d_embedding} and d_out {d_out}",
            where="model",
            fix="make the two widths equal or untie",
        )


def small(family: BaselineFamily) -> BaselineConfig:
    """The family's shape below the paper's scale: the depths of its common small-data reproductions, one matrix for
    source, target and softmax as in the Transformer beside it, and widths that `repro.accounting.sizing` replaces."""
    match family:
        case "lstm":
            return LstmConfig(n_layers=2, d_embedding=256, d_hidden=256, dropout=0.2, tied_embeddings=True)
        case "lstm-attention":
            return LstmAttentionConfig(
                d_embedding=256, d_hidden=256, d_attention=256, d_out=256, dropout=0.2, tied_embeddings=True
            )
        case "gnmt":
            return GnmtConfig(n_layers=4, d_embedding=256, d_hidden=256, d_attention=256, tied_embeddings=True)
        case "convs2s":
            layer = (256, 3)
            return ConvS2SConfig(
                d_embedding=256, encoder=(layer,) * 4, decoder=(layer,) * 3, d_out=256, tied_embeddings=True
            )


def resized(config: BaselineConfig, *, d_hidden: int, d_embedding: int) -> BaselineConfig:
    """`config` with other widths. Attention is as wide as the hidden states; a maxout layer and the states below the
    softmax are as wide as the vectors where these are tied, and keep their ratio to `d_hidden` where not; so do the
    widths of convolutions, of which `d_hidden` is the first of the encoder."""
    match config.family:
        case "lstm":
            return replace(config, d_hidden=d_hidden, d_embedding=d_embedding)
        case "lstm-attention":
            d_out = d_embedding if config.tied_embeddings else _share(config.d_out, d_hidden, config.d_hidden)
            return replace(config, d_hidden=d_hidden, d_embedding=d_embedding, d_attention=d_hidden, d_out=d_out)
        case "gnmt":
            return replace(config, d_hidden=d_hidden, d_embedding=d_embedding, d_attention=d_hidden)
        case "convs2s":
            first = config.encoder[0][0]
            encoder = tuple((_share(width, d_hidden, first), kernel) for width, kernel in config.encoder)
            decoder = tuple((_share(width, d_hidden, first), kernel) for width, kernel in config.decoder)
            d_out = d_embedding if config.tied_embeddings else _share(config.d_out, d_hidden, first)
            return replace(config, encoder=encoder, decoder=decoder, d_embedding=d_embedding, d_out=d_out)


def _share(width: int, new: int, old: int) -> int:
    return max(1, round(width * new / old))
