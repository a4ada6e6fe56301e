"""The joint BPE vocabulary: trained on the training side only, and losing nothing of a line it cuts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import sentencepiece

from repro.data.pieces import BOS, EOS, PAD, UNK
from repro.errors import CheckError
from repro.files import digest_of_file, write_bytes

# Characters that sentencepiece uses for itself (its mark for a blank, its mark for rare characters, the tab as a word
# boundary, the end of a C string) go through it as single private-use characters; a private-use character of the text
# that looks like one of these is itself marked. Anything may therefore stand in a line.
_MARK = "\ue000"
_HIDDEN = {"\u2581": "\ue001", "\u2585": "\ue002", "\t": "\ue003", "\0": "\ue004"}
_SHOWN = {hidden: shown for shown, hidden in _HIDDEN.items()}
_TO_HIDDEN = str.maketrans(_HIDDEN | {private: _MARK + private for private in (_MARK, *_SHOWN)})
_TO_SHOWN = re.compile(f"{_MARK}(.)|([{''.join(_SHOWN)}])")

UNKNOWN_TEXT = "⁇"
"""What an unknown piece reads as."""


class Vocabulary:
    """A trained vocabulary: lines to piece ids and back.

    `decode(encode(line)) == line` for every line whose characters all occurred in the training text, repeated blanks
    included. A character that did not becomes UNK, which reads as "⁇"; `unknown_share` counts these.
    """

    def __init__(self, path: Path) -> None:
        """Read the model file `path`. Raises CheckError when it is missing or no vocabulary of ours."""
        self.path = path
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(path.read_bytes())
        except FileNotFoundError as error:
            raise CheckError("no such file", where=str(path)) from error
        except (OSError, RuntimeError) as error:
            raise CheckError("is no sentencepiece model", where=str(path), fix="prepare the corpus again") from error
        model = self._processor
        if (model.pad_id(), model.unk_id(), model.bos_id(), model.eos_id()) != (PAD, UNK, BOS, EOS):
            raise CheckError("has other special pieces than ours", where=str(path), fix="prepare the corpus again")

    @property
    def size(self) -> int:
        """Number of pieces, the four special ones included."""
        return int(self._processor.get_piece_size())

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the model file."""
        return digest_of_file(self.path)

    def encode(self, lines: Iterable[str]) -> list[list[int]]:
        """The piece ids of each line, without special pieces; an empty line has none."""
        encoded: list[list[int]] = self._processor.encode([_hide(line) for line in lines])
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text of piece ids; padding, start and end marks are left out. Raises ValueError for other numbers."""
        pieces = [int(piece) for piece in ids]
        if pieces and not 0 <= min(pieces) <= max(pieces) < self.size:
            raise ValueError(f"piece ids are from 0 to {self.size - 1}, got {min(pieces)} to {max(pieces)}")
        return _show(self._processor.decode([piece for piece in pieces if piece not in (PAD, BOS, EOS)]))

    def pieces(self, line: str) -> list[str]:
        """The pieces of `line` as sentencepiece writes them ("▁" for a blank): to be looked at, not to be decoded."""
        cut: list[str] = self._processor.encode(_hide(line), out_type=str)
        return cut

    def texts(self, ids: Iterable[int]) -> list[str]:
        """Each piece of `ids` as sentencepiece writes it: to be looked at, not to be decoded."""
        return [str(self._processor.id_to_piece(int(piece))) for piece in ids]

    def unknown_share(self, lines: Iterable[str]) -> float:
        """The share of UNK among all pieces of `lines`; 0.0 without any pieces."""
        return unknown_share(self.encode(lines))


def unknown_share(encoded: Iterable[Sequence[int]]) -> float:
    """The share of UNK among all pieces of encoded lines; 0.0 without any pieces."""
    unknown = total = 0
    for ids in encoded:
        unknown += ids.count(UNK)
        total += len(ids)
    return unknown / total if total else 0.0


def train_vocabulary(lines: Iterable[str], size: int, path: Path) -> Vocabulary:
    """Train a BPE vocabulary of `size` pieces, special ones included, on `lines` and write it to `path`.

    The text is not normalised, every character of it gets a piece, and the same lines give the same bytes (one
    thread, no sampling, lines in the order given). Raises CheckError when `lines` have no text, too few different
    characters and words for `size` pieces, or more characters than that.
    """
    model = io.BytesIO()
    # Handed over line by line, not as a file, so sentencepiece splits no lines by rules of its own; and its limit of
    # length, out of reach here, would by default silently leave out lines above 4192 bytes.
    hidden = [_hide(line) for line in lines if line]
    if not hidden:
        raise CheckError("the training text is empty", where=str(path))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(hidden),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=False,
            shuffle_input_sentence=False,
            max_sentence_length=2**30,
            num_threads=1,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            # Names that no text can contain: sentencepiece sets text equal to these apart when it counts characters.
            pad_piece=f"{_MARK}pad",
            unk_piece=f"{_MARK}unk",
            bos_piece=f"{_MARK}bos",
            eos_piece=f"{_MARK}eos",
            unk_surface=UNKNOWN_TEXT,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _size_error(str(error), size) from error
    write_bytes(path, model.getvalue())
    return Vocabulary(path)


def _size_error(message: str, size: int) -> Exception:
    """sentencepiece's refusal of a size as a CheckError that names a size which does work."""
    where = "data.vocabulary_size"
    if found := re.search(r"value <= (\d+)", message):
        return CheckError(f"{size} pieces are more than this text allows", where=where, fix=f"the most is {found[1]}")
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        what = f"{size} pieces are too few for the characters of this text"
        return CheckError(what, where=where, fix=f"the least is {found[1]}")
    return CheckError(f"no vocabulary of {size} pieces could be made: {message}", where=where)


def _hide(line: str) -> str:
    return line.translate(_TO_HIDDEN)


def _show(text: str) -> str:
    return _TO_SHOWN.sub(lambda found: found[1] or _SHOWN[found[2]], text)
