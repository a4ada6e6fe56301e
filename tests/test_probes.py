"""Probes measure what they say: held against closed forms, hand counts, other libraries and the models themselves."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from small_corpus import configuration, small_corpus
from torch import Tensor

from repro.config import TransformerConfig
from repro.config.baselines import LstmAttentionConfig, LstmConfig
from repro.data import smoke
from repro.data.pieces import BOS, EOS, Batch
from repro.data.prepared import Prepared
from repro.models.build import build_model
from repro.models.transformer import Transformer
from repro.probes import dependencies, extrapolation, longrange, maps, order, saturation, unmasked, watching, worked
from repro.probes.exponents import power_law, slope
from repro.probes.layers import Restricted, crossing, figures, measure

VOCABULARY = 60


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("corpus")
    (place / "text").mkdir()
    return small_corpus(place / "text", place / "data")


def transformer(size: int = VOCABULARY, **options: Any) -> Transformer:
    config = TransformerConfig(**{"n_layers": 2, "d_model": 16, "d_ff": 24, "n_heads": 4, **options})
    model = build_model(config, size, 1)
    assert isinstance(model, Transformer)
    return model.eval()


def pair(src: list[int], tgt: list[int]) -> Batch:
    source, tgt_in, tgt_out = (torch.tensor([row]) for row in ([*src, EOS], [BOS, *tgt], [*tgt, EOS]))
    return Batch(source, tgt_in, tgt_out, torch.tensor([len(src) + 1]), torch.tensor([len(tgt) + 1]))


# The worked example


def step(case: dict[str, Any], name: str) -> Tensor:
    return torch.tensor(next(step["rows"] for step in case["steps"] if step["id"] == name))


def test_the_worked_example_has_the_numbers_that_were_computed_by_hand() -> None:
    cases = {case["id"]: case for case in worked.measured(1)["cases"]}
    near = {"atol": 1e-6, "rtol": 0.0}
    outputs = torch.tensor([[0.802224, 0.598888], [0.598888, 0.802224], [0.751745, 0.751745]])
    weights = torch.tensor([0.248255, 0.248255, 0.503490])
    torch.testing.assert_close(step(cases["scaled"], "outputs"), outputs, **near)
    torch.testing.assert_close(step(cases["scaled"], "weights")[2], weights, **near)
    unscaled = torch.tensor([0.211942, 0.211942, 0.576117])
    torch.testing.assert_close(step(cases["unscaled"], "weights")[2], unscaled, **near)
    changed = torch.tensor(
        [[0.401112, 0.197776, 0.401112], [0.045388, 0.767918, 0.186694], [0.197776, 0.401112, 0.401112]]
    )
    torch.testing.assert_close(step(cases["changed"], "weights"), changed, **near)
    outputs = torch.tensor([[0.802224, 0.796664], [0.232082, 1.722530], [0.598888, 1.203336]])
    torch.testing.assert_close(step(cases["changed"], "outputs"), outputs, **near)


def test_the_models_own_attention_is_the_worked_example() -> None:
    assert max(worked.measured(1)["distance"].values()) < 1e-6


# Saturation


def test_the_variance_of_scores_is_the_closed_form_at_every_width() -> None:
    rows = saturation.at_initialisation(seed=5)
    assert {row["d_k"] for row in rows} == {2**power for power in range(11)}
    expected = {"sqrt": lambda d: 1.0, "d_k": lambda d: 1.0 / d, "none": lambda d: float(d)}
    for row in rows:
        assert row["closed_form"] == pytest.approx(expected[row["scaling"]](row["d_k"]))
        assert row["variance"] == pytest.approx(row["closed_form"], rel=0.03)


def test_the_gradient_through_the_softmax_is_its_jacobian_times_what_comes() -> None:
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)) * 3
    found = saturation.softmax_figures(scores, torch.Generator().manual_seed(2))
    upstream = torch.empty(5, 7).normal_(generator=torch.Generator().manual_seed(2))
    weights = scores.softmax(-1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    expected = (jacobian @ upstream[..., None]).squeeze(-1).norm(dim=-1)
    torch.testing.assert_close(found.gradient, expected)
    entropy = torch.distributions.Categorical(weights).entropy() / math.log(7)
    torch.testing.assert_close(found.entropy, entropy)


def test_every_attention_of_a_model_is_watched_and_its_scores_are_those_of_the_weights(corpus: Prepared) -> None:
    model = transformer(corpus.vocabulary().size)
    found = saturation.inside(model, corpus, configuration(corpus))
    names = [f"encoder.{layer}.attention" for layer in (0, 1)]
    names += [f"decoder.{layer}.{kind}" for layer in (0, 1) for kind in ("attention", "cross")]
    assert [layer["layer"] for layer in found["layers"]] == names
    assert all(0.0 <= layer["entropy"] <= 1.0 + 1e-6 and layer["variance"] >= 0.0 for layer in found["layers"])


# Layers


def test_sequential_operations_and_paths_are_those_of_table_1() -> None:
    for n in (2, 9, 27):
        attention, recurrent = dependencies.self_attention(n), dependencies.recurrent()
        assert dependencies.sequential_operations(attention, n) == 1
        assert dependencies.sequential_operations(recurrent, n) == n
        assert dependencies.sequential_operations(dependencies.convolution(3), n) == 1
        assert dependencies.maximum_path(attention, n) == 1
        assert dependencies.maximum_path(recurrent, n) == n
        assert dependencies.maximum_path(dependencies.convolution(3), n) == n - 1
    assert dependencies.maximum_path(dependencies.restricted(8), 28) == 7  # forwards four places a layer
    assert dependencies.maximum_path(dependencies.dilated(3), 27) == 3


def test_a_power_is_the_mean_slope_over_the_largest_sizes_with_the_interval_over_rounds() -> None:
    sizes = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    rounds = [
        [9.0, 9.0, 15.0, 66.0, 250.0, 990.0],
        [7.0, 2.0, 16.0, 60.0, 260.0, 1100.0],
        [1.0, 5.0, 14.0, 61.0, 255.0, 1010.0],
    ]
    found = power_law(sizes, rounds)
    largest = [math.log(x) for x in sizes[2:]]
    slopes = [stats.linregress(largest, [math.log(y) for y in row[2:]]).slope for row in rounds]
    interval = stats.t.interval(0.95, 2, loc=statistics.fmean(slopes), scale=stats.sem(slopes))
    assert found.value == pytest.approx(statistics.fmean(slopes))
    assert (found.low, found.high) == pytest.approx(interval, rel=1e-4)
    with pytest.raises(ValueError, match="two"):
        power_law(sizes, rounds[:1])
    with pytest.raises(ValueError, match="two"):
        power_law([1.0], [[1.0], [2.0]])


def test_fixed_costs_hide_a_power_at_small_sizes_only() -> None:
    sizes = [2.0**power for power in range(12)]
    costs = [100.0 + size for size in sizes]
    assert slope(sizes, costs) < 0.5
    assert power_law(sizes, [costs, costs]).value > 0.8


def test_a_crossing_lies_where_the_ratio_passes_one_for_good() -> None:
    assert crossing([16, 64, 256], [0.25, 0.5, 2.0]) == pytest.approx(128.0)
    assert crossing([16, 64], [0.2, 0.9]) is None
    assert crossing([16, 64], [1.2, 3.0]) == 16.0


def test_the_length_from_which_recurrence_is_faster_is_told_in_widths() -> None:
    """Attention takes n^2, recurrence 32 n at a width of 16: they meet at n = 32, in both regimes and rounds."""
    seconds: dict[str, Callable[[int], float]] = {"self_attention": lambda n: n * n, "recurrent": lambda n: 32.0 * n}
    points = [
        {"layer": layer, "regime": regime, "n": n, "d": 16, "both": 9.0, "each": [cost(n), 2 * cost(n)]}
        for layer, cost in seconds.items()
        for regime in ("throughput", "latency")
        for n in (8, 16, 64)
    ]
    bench = measure(lengths=(8, 16, 64), widths=(16, 32), tokens=64, rounds=2) | {"points": points}
    found = figures([{"measured": bench}])
    for regime in ("throughput", "latency"):
        assert found[f"overtaken.{regime}"] == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0})


def test_restricted_attention_is_attention_under_a_band() -> None:
    from repro.models.attention import attention_weights
    from repro.models.dropout import RandomSource
    from repro.probes.layers import NEIGHBOURS

    layer = Restricted(TransformerConfig(d_model=16, n_heads=2, n_layers=1, d_ff=8), RandomSource())
    x = torch.randn(2, 40, 16)
    q, k, v = layer.project(x)
    place = torch.arange(40)
    behind = place[:, None] - place
    band = (behind <= NEIGHBOURS // 2) & (behind > -(NEIGHBOURS - NEIGHBOURS // 2))
    context = attention_weights(q, k, scale=layer.scale, mask=band) @ v
    torch.testing.assert_close(layer(x), layer.out(context.transpose(1, 2).flatten(2)), atol=1e-5, rtol=0)


def test_the_document_of_layers_makes_table_1() -> None:
    from reports.records.paper import load_paper
    from reports.tables.table1 import complexity_table

    bench = measure(lengths=(8, 16, 32), widths=(16, 32, 64), tokens=64, rounds=2)
    table = complexity_table(bench, load_paper())
    rows = {row.id: row for group in table.groups for row in group.rows}
    assert len(rows) == 4
    assert all(isinstance(row.cells["measured.n"].value, float) for row in rows.values())
    assert bench["layers"][1]["sequential"] == {"8": 8, "16": 16, "32": 32}
    assert bench["dilated"] == {
        "sequential": {"8": 1, "16": 1, "32": 1},
        "path": {str(n): math.ceil(math.log(n, 3)) for n in (8, 16, 32)},
    }
    assert "over the 4 largest sizes" in table.caption


def test_the_time_of_a_size_in_a_study_of_layers_is_the_median_of_its_rounds() -> None:
    bench = measure(lengths=(8, 16), widths=(16, 32), tokens=32, rounds=3)
    for point in bench["points"]:
        assert len(point["each"]) == 3
        assert point["both"] == statistics.median(point["each"])
        assert 0.0 < point["forward"] < max(point["each"])


# Watching models


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("attentive", [True, False])
def test_the_gradient_of_the_last_piece_is_that_of_the_source_s_table(attentive: bool, reverse: bool) -> None:
    """Every source piece occurs once, so that a row of the table is a place in the sentence."""
    if attentive:
        config: Any = LstmAttentionConfig(d_embedding=8, d_hidden=8, d_attention=8, d_out=8, tied_embeddings=False)
    else:
        config = LstmConfig(n_layers=1, d_embedding=8, d_hidden=8, tied_embeddings=False, reverse_source=reverse)
    model = build_model(config, VOCABULARY, 3).eval()
    batch = pair([10, 11, 12, 13, 14], [20, 21, 22])
    found = longrange.last_gradient(model, batch)
    hidden = model(batch.src, batch.src_mask, batch.tgt_in)[0, 2]
    torch.log_softmax(model.project(hidden), -1)[22].backward()
    table: Any = model.get_parameter("embeddings.source_table")
    torch.testing.assert_close(found, table.grad[batch.src[0]])
    assert float(found.norm()) > 0


def test_encoders_without_positions_permute_alike_and_others_do_not(corpus: Prepared) -> None:
    pairs = list(zip(corpus.raw("valid", "src"), corpus.raw("valid", "tgt"), strict=True))
    size = corpus.vocabulary().size
    without = order.equivariance_error(transformer(size, positions="none"), corpus, pairs, 1)
    assert without < 1e-5
    assert order.equivariance_error(transformer(size), corpus, pairs, 1) > 0.1


def test_alignments_are_those_of_the_model_and_nothing_stays_watched() -> None:
    model = build_model(LstmAttentionConfig(d_embedding=8, d_hidden=8, d_attention=8, d_out=8), VOCABULARY, 3)
    batch = pair([10, 11, 12], [20, 21])
    found = maps.maps_of(model, batch)
    (weights,) = found["alignment"]
    assert weights.shape == (1, 3, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))
    from repro.models import source

    assert source.attention_weights.__module__ == "repro.models.source"
    assert maps.maps_of(build_model(LstmConfig(d_embedding=8, d_hidden=8), VOCABULARY, 3), batch) == {}


def test_a_removed_head_adds_nothing_and_comes_back() -> None:
    model = transformer()
    attention = maps.attentions(model)["encoder"][1]
    before = attention.out.weight.clone()
    x = torch.randn(1, 5, 16)
    q, k, v = attention.project(x)  # type: ignore[operator]
    with maps.removed(attention, 2):
        without = attention.mix(q, k, v)
    silent = v.clone()
    silent[:, 2] = 0.0
    torch.testing.assert_close(without, attention.mix(q, k, silent))
    assert torch.equal(attention.out.weight, before)


def test_heads_are_alike_from_none_to_all() -> None:
    same = torch.tensor([[[0.2, 0.8]], [[0.2, 0.8]]])
    assert maps.likenesses(same).tolist() == pytest.approx([1.0, 1.0])  # type: ignore[union-attr]
    apart = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert maps.likenesses(apart).tolist() == pytest.approx([0.0, 0.0])  # type: ignore[union-attr]
    assert maps.likenesses(torch.ones(1, 2, 2)) is None


def test_a_head_that_looks_everywhere_alike_has_the_largest_entropy_with_and_without_a_mask() -> None:
    everywhere = torch.full((2, 6, 6), 1 / 6)
    behind = torch.ones(2, 6, 6).tril() / torch.arange(1, 7)[:, None]
    for weights, causal in ((everywhere, False), (behind, True)):
        for head in maps.figures_of(weights, causal=causal):
            assert head["entropy"] == pytest.approx(1.0)
            assert head["likeness"] == pytest.approx(1.0)
    alone = torch.ones(1, 1, 1)
    assert maps.figures_of(alone, causal=True) == [{"entropy": None, "distance": 0.0, "likeness": None}]


def test_the_first_query_of_a_masked_layer_does_not_make_heads_alike() -> None:
    """It has one key, so that all heads agree on it; on the other queries these two have nothing in common."""
    first, second = torch.zeros(4, 4), torch.zeros(4, 4)
    first[:, 0] = 1.0
    second[range(4), range(4)] = 1.0
    for head in maps.figures_of(torch.stack([first, second]), causal=True):
        assert head["likeness"] == pytest.approx(0.0)
        assert head["entropy"] == pytest.approx(0.0)


# The causal mask


def test_without_the_mask_earlier_states_see_later_pieces_and_padding_stays_unseen() -> None:
    model = transformer(causal_mask=False)
    batch = pair([10, 11, 12], [20, 21, 22, 23])
    plain = model(batch.src, batch.src_mask, batch.tgt_in).detach()
    other = batch.tgt_in.clone()
    other[0, -1] = 30
    changed = model(batch.src, batch.src_mask, other).detach()
    assert float((changed[0, 0] - plain[0, 0]).abs().max()) > 1e-3
    wide = torch.nn.functional.pad(batch.tgt_in, (0, 3))
    torch.testing.assert_close(model(batch.src, batch.src_mask, wide)[:, :5], plain, atol=1e-5, rtol=0)


def test_search_is_the_same_with_and_without_the_mask() -> None:
    masked, plain = transformer(), transformer(causal_mask=False)
    src = torch.tensor([[10, 11, 12, EOS]])
    with torch.inference_mode():
        states = [model.start(model.encode(src, src != 0), 1) for model in (masked, plain)]
        for piece in (BOS, 20, 21):
            one, other = (
                model.advance(torch.tensor([piece]), state)
                for model, state in zip((masked, plain), states, strict=True)
            )
            assert torch.equal(one, other)


def test_the_mask_is_put_back_for_a_measure_only(corpus: Prepared) -> None:
    model = transformer(corpus.vocabulary().size, causal_mask=False)
    found = unmasked.mask(model, corpus, configuration(corpus))
    assert not found["causal_mask"]
    assert found["perplexity"] != found["perplexity_masked"]
    assert not any(layer.causal for layer in model.decoder)


# What is claimed only of models that can do something


def test_a_share_of_nothing_is_no_figure() -> None:
    def result(without: float, base: float) -> dict[str, Any]:
        rows = {"mask.off": {"bleu": without, "perplexity": 2.0}, "base": {"bleu": base, "perplexity": 8.0}}
        return {"rows": rows}

    found = unmasked.figures([result(5.0, 50.0), result(0.1, 1.2)])
    assert found["bleu_share"] == {"values": [0.1]}
    assert found["perplexity_ratio"] == {"values": [0.25, 0.25]}
    none = unmasked.figures([result(0.1, 1.2)])["bleu_share"]
    assert none["values"] == []
    assert "less than 10 BLEU" in none["lacking"]
    assert unmasked.figures([{"rows": {}}])["bleu_share"] == {"values": []}


def test_longer_sentences_count_for_models_that_translate_the_trained_lengths() -> None:
    def rows(base: tuple[float, float], learned: tuple[float, float]) -> dict[str, Any]:
        groups = {
            row: {"groups": [{"times": times, "bleu": bleu} for times, bleu in enumerate(levels, 1)]}
            for row, levels in (("base", base), ("positions.learned", learned))
        }
        return {"rows": groups}

    found = extrapolation.figures([rows((80.0, 60.0), (70.0, 7.0)), rows((2.0, 1.5), (70.0, 7.0))])
    assert found["sinusoids_beyond_learned"]["values"] == [53.0]
    assert found["kept_by_sinusoids"]["values"] == [0.75]
    assert found["kept_by_learned"]["values"] == pytest.approx([0.1, 0.1])


def test_agreement_can_be_lost_only_where_there_is_some() -> None:
    def row(near: float, far: float) -> dict[str, Any]:
        shares = dict.fromkeys(smoke.DISTANCES, far) | {smoke.DISTANCES[0]: near}
        return {"agreement": {"agreement_by_distance": shares}, "bleu_by_length": [{"bleu": 1.0}, {"bleu": 1.0}]}

    able, unable = row(0.9, 0.6), row(0.3, 0.0)
    found = longrange.figures([{"rows": {"base": able, "baseline.lstm": able}}])
    assert found["agreement_lost.base"]["values"] == pytest.approx([0.3])
    found = longrange.figures([{"rows": {"base": unable, "baseline.lstm": able}}])
    assert found["agreement_lost.base"]["values"] == []
    assert "shortest distance" in found["lstm_agreement_beyond_base"]["lacking"]


# Sentences


def test_more_sentences_are_right_and_in_no_split() -> None:
    known = {source for split in ("train", "valid", "test") for source, _ in smoke.generate(split)}
    drawn = list(itertools.islice(smoke.more(), 300))
    assert len({source for source, _ in drawn}) == 300
    assert all(smoke.translate(source) == target and source not in known for source, target in drawn)


def test_swapped_sentences_differ_in_order_only_and_in_their_translations() -> None:
    pairs = list(smoke.swapped(50))
    assert len({first for first, _ in pairs}) == 50
    assert all(sorted(first.split()) == sorted(second.split()) for first, second in pairs)
    assert all(smoke.translate(first) != smoke.translate(second) for first, second in pairs)


def test_watchers_give_back_what_they_stood_in_for() -> None:
    from repro.models.attention import Attention

    before = Attention.mix
    with pytest.raises(RuntimeError), watching.attention(lambda *_: None):
        raise RuntimeError
    assert Attention.mix is before


def test_a_path_that_is_neither_json_nor_html_is_refused_before_anything_is_translated(tmp_path: Path) -> None:
    from ablations.cli import run

    assert run(["translate", str(tmp_path), "--attention", "weights.txt"]) == 2


def test_an_unknown_probe_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    from ablations.cli import run

    assert run(["probe", "attention-map", "--scale", "smoke"]) == 2
    assert "attention-maps" in capsys.readouterr().err
