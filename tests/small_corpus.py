"""A few hundred pairs of the smoke language and a run over them: enough to see every part of a run work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.config import DataConfig, DecodeConfig, RunConfig, TrainConfig, TransformerConfig
from repro.data import smoke
from repro.data.prepare import prepare
from repro.data.prepared import Prepared

PIECES = 200


def small_corpus(text: Path, data: Path) -> Prepared:
    """The pairs as text in the folder `text`, prepared under `data`."""
    for split, count in (("train", 600), ("valid", 12), ("test", 16)):
        pairs = smoke.generate(split)[:count]
        for side, language in enumerate(("svo", "sov")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (text / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return prepare("local:svo-sov", vocabulary_size=PIECES, data_root=data, source=text, max_pieces=64)


def configuration(corpus: Prepared, **train: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "budget": 24,
        "batch_tokens": 200,
        "warmup_steps": 10,
        "evaluate_every": 8,
        "log_every": 5,
        "checkpoint_seconds": 0.0,
    }
    return RunConfig(
        model=TransformerConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2, max_positions=64),
        data=DataConfig(corpus="local:svo-sov", vocabulary_size=PIECES, max_pieces=64, digest=corpus.digest),
        train=TrainConfig(**(settings | train)),
        decode=DecodeConfig(extra_length=4),
    )
