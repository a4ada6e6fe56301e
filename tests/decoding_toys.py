"""Small models for tests of decoding: one that follows a script, one that is recurrent and random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from repro.data.pieces import BOS, EOS, PAD
from repro.models.dropout import RandomSource
from repro.models.seq2seq import Output, Seq2Seq

Script = Callable[[int, tuple[int, ...]], Sequence[float]]
"""From the source's first piece and the pieces generated so far to the probabilities of all next pieces."""


class ScriptedState:
    def __init__(self, firsts: list[int], beam: int) -> None:
        self.firsts, self.beam = firsts, beam
        self.prefixes: list[list[tuple[int, ...]]] = [[()] * beam for _ in firsts]
        self.rows_seen: list[int] = []

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        chosen = [
            (self.firsts[s], [self.prefixes[s][b] for b in row])
            for s, row in zip(sentences.tolist(), beams.tolist(), strict=True)
        ]
        self.firsts = [first for first, _ in chosen]
        self.prefixes = [rows for _, rows in chosen]
        self.beam = beams.shape[1]


class Scripted(Seq2Seq[list[int], ScriptedState]):
    """Gives the logarithms of a script's probabilities as logits; `states` keeps every search's state."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.random, self.script = RandomSource(), script
        self.states: list[ScriptedState] = []

    def initialise(self, generator: torch.Generator) -> None:
        pass

    def output(self) -> Output:
        raise NotImplementedError

    def projection(self) -> Callable[[Tensor], Tensor]:
        return lambda hidden: hidden

    def encode(self, src: Tensor, src_mask: Tensor) -> list[int]:
        return src[:, 0].tolist()

    def decode(self, tgt_in: Tensor, memory: list[int]) -> Tensor:
        raise NotImplementedError

    def start(self, memory: list[int], beam: int) -> ScriptedState:
        self.states.append(ScriptedState(memory, beam))
        return self.states[-1]

    def advance(self, pieces: Tensor, state: ScriptedState) -> Tensor:
        state.rows_seen.append(pieces.numel())
        rows = []
        for s, row in enumerate(pieces.view(-1, state.beam).tolist()):
            state.prefixes[s] = [
                prefix if piece == BOS else (*prefix, piece)
                for prefix, piece in zip(state.prefixes[s], row, strict=True)
            ]
            rows += [self.script(state.firsts[s], prefix) for prefix in state.prefixes[s]]
        return torch.tensor([[math.log(p) if p > 0 else -math.inf for p in row] for row in rows])


class ToyState:
    def __init__(self, memory: Tensor, beam: int) -> None:
        self.beam = beam
        self.hidden = memory.repeat_interleave(beam, 0)

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        self.hidden = self.hidden[(sentences[:, None] * self.beam + beams).flatten()]
        self.beam = beams.shape[1]


class ToyRecurrent(Seq2Seq[Tensor, ToyState]):
    """A GRU decoder started from the sum of a recency-weighted bag of source pieces; sharp enough to be decided."""

    def __init__(self, vocabulary: int, seed: int, width: int = 12, sharpness: float = 3.0) -> None:
        super().__init__()
        # The end mark is a little likelier than others, so that some sentences end and some meet their cap.
        self.bias = 3.0 * (torch.arange(vocabulary) == EOS)
        self.random = RandomSource()
        self.embedding = nn.Parameter(torch.empty(vocabulary, width))
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.cell = nn.GRUCell(width, width)
        self.sharpness = sharpness
        self.initialise(torch.Generator().manual_seed(seed))

    def initialise(self, generator: torch.Generator) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.8, generator=generator)

    def output(self) -> Output:
        return Output(self.weight * self.sharpness, self.bias)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        weights = src_mask / (1.0 + torch.arange(src.shape[1]))
        return torch.tanh((self.embedding[src] * weights[..., None]).sum(1))

    def decode(self, tgt_in: Tensor, memory: Tensor) -> Tensor:
        hidden, states = memory, []
        for column in tgt_in.T:
            hidden = self.cell(self.embedding[column], hidden)
            states.append(hidden)
        return torch.stack(states, 1)

    def start(self, memory: Tensor, beam: int) -> ToyState:
        return ToyState(memory, beam)

    def advance(self, pieces: Tensor, state: ToyState) -> Tensor:
        state.hidden = self.cell(self.embedding[pieces], state.hidden)
        return state.hidden


def padded(sources: Sequence[Sequence[int]]) -> Tensor:
    """[batch, src_len]: each source with the end mark, then padding."""
    width = max(len(source) for source in sources) + 1
    return torch.tensor([[*source, EOS] + [PAD] * (width - len(source) - 1) for source in sources])
