"""The tokens that the `compound` protocol counts: Moses tokens with hyphenated compounds taken apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version

_COMPOUND = re.compile(r"(\S)-(\S)")


def split_compounds(line: str) -> str:
    """`line` with a hyphen inside a word as a token of its own: "a-b" becomes "a ##AT##-##AT## b".

    The substitution, from left to right without overlaps, is the one that the authors of "Attention Is All You Need"
    scored English-German with (`get_ende_bleu.sh` of tensor2tensor). So in "a-b-c" the second hyphen stays.
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def compound_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Each line as Moses tokens of `language` with blanks between, compounds split.

    Raises ModuleNotFoundError where sacremoses is not installed. A language that it does not know is read with the
    English list of abbreviations, as Moses does.
    """
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=language)
    return [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in lines]


def moses_version() -> str:
    """The version of sacremoses, for signatures."""
    return version("sacremoses")
