"""What a model is: the Transformer's configuration, with the paper's text as the default of every option."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from repro.config.sizes import check_layers, check_widths
from repro.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """The Transformer of Vaswani et al. (2017), section 3; symbols are the paper's.

    `d_k` and `d_v` left at None follow as d_model / n_heads, as the paper sets them; `resolved()` fills them in.
    Source, target and softmax always share one matrix (section 3.4): untied ones are no option.
    """

    family: Literal["transformer"] = "transformer"
    n_layers: int = 6
    """Layers of the encoder and of the decoder each (the paper's N)."""
    d_model: int = 512
    d_ff: int = 2048
    n_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    """On each sub-layer's output before the residual sum, and on embeddings plus positions (section 5.4)."""
    attention_dropout: float = 0.0
    """On attention weights. Not in the paper's text; tensor2tensor v2 used 0.1."""
    activation_dropout: float = 0.0
    """Inside the feed-forward layer. Not in the paper's text; tensor2tensor v2 used 0.1."""
    attention_bias: bool = True
    """Biases on the four attention projections, as in the first code; needed for the published parameter counts."""
    scale_attention: bool = True
    """Divide the scores by sqrt(d_k) (section 3.2.1)."""
    causal_mask: bool = True
    """Keep a target position from later ones where the target is read at once (section 3.1); search has none to see."""
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    sinusoid_layout: Literal["interleaved", "concatenated"] = "interleaved"
    max_positions: int = 1024
    """Rows of the table of learned positions; unused by sinusoids, which are computed for any length."""

    def __post_init__(self) -> None:
        check_layers(n_layers=self.n_layers)
        check_widths(d_model=self.d_model, d_ff=self.d_ff, n_heads=self.n_heads, max_positions=self.max_positions)
        given = {"d_k": self.d_k, "d_v": self.d_v}
        check_widths(**{name: width for name, width in given.items() if width is not None})
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            probability = getattr(self, name)
            if not 0.0 <= probability < 1.0:
                raise UsageError(f"{name} is {probability}", where="model", fix="choose from 0 up to, not including, 1")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UsageError(f"d_model is {self.d_model}, sinusoids need an even width", where="model")

    def resolved(self) -> TransformerConfig:
        """With d_k and d_v filled in. Raises UsageError when d_model does not divide into the heads."""
        if self.d_k is not None and self.d_v is not None:
            return self
        width, rest = divmod(self.d_model, self.n_heads)
        if width == 0:
            raise UsageError(
                f"{self.n_heads} heads over d_model {self.d_model} give d_k 0",
                where="model.n_heads",
                fix="use fewer heads or set model.d_k and model.d_v",
            )
        if rest:
            raise UsageError(
                f"d_model {self.d_model} does not divide into {self.n_heads} heads",
                where="model.n_heads",
                fix="use a divisor or set model.d_k and model.d_v",
            )
        return replace(self, d_k=self.d_k or width, d_v=self.d_v or width)
