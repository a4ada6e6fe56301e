from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_disk import small_disk
from torch import Tensor, nn

from repro.errors import CheckError
from repro.training import checkpoint
from repro.training.checkpoint import average, load_newest, load_weights, save, save_weights

torch.set_num_threads(1)

STATE = {"counters": {"step": 7, "seconds": 0.1 + 0.2}, "best": None, "text": "ä", "flops": 2**70}


def weights(step: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "embedding": torch.randn(10, 4, generator=generator),
        "layer.bias": torch.randn(4, generator=generator).bfloat16(),
        "empty": torch.empty(0, 3),
        "double": torch.randn(2, 2, 2, generator=generator).double(),
    }


def optimizer(step: int = 0) -> dict[str, Tensor]:
    return {"layer.bias/step": torch.tensor(float(step)), "layer.bias/exp_avg": torch.full((4,), step / 3)}


def save_step(directory: Path, step: int) -> checkpoint.Saved:
    return save(directory, step, weights(step), optimizer(step), STATE | {"step": step})


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def load_step(directory: Path) -> int | None:
    """The step of the newest checkpoint, which must be whole and come without a warning."""
    warnings: list[str] = []
    newest = load_newest(directory, warnings)
    assert warnings == []
    if newest is None:
        return None
    assert equal(newest.weights, weights(newest.step))
    assert equal(newest.optimizer, optimizer(newest.step))
    assert newest.state == STATE | {"step": newest.step}
    return newest.step


def test_a_checkpoint_comes_back_to_the_bit_with_every_type_and_shape(tmp_path: Path) -> None:
    saved = save_step(tmp_path, 1234)
    assert saved.path == tmp_path / "step-00001234"
    assert saved.size == sum(path.stat().st_size for path in saved.path.iterdir())
    assert saved.seconds > 0
    assert load_step(tmp_path) == 1234


def test_nothing_to_load_is_no_error(tmp_path: Path) -> None:
    assert load_step(tmp_path) is None
    assert load_step(tmp_path / "nowhere") is None
    (tmp_path / "step-1").mkdir()
    (tmp_path / "notes-00000001").mkdir()
    assert load_step(tmp_path) is None


def test_a_checkpoint_holds_safetensors_and_json_only(tmp_path: Path) -> None:
    path = save_step(tmp_path, 3).path
    assert names(path) == ["manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors"]
    assert equal(load_file(path / "weights.safetensors"), weights(3))
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 3
    for name, entry in manifest["files"].items():
        assert entry["bytes"] == (path / name).stat().st_size


def test_the_same_values_give_the_same_bytes_in_whatever_order_they_come(tmp_path: Path) -> None:
    tensors, state = weights(5), {"b": 1.5, "a": [1, 2]}
    save(tmp_path / "one", 5, tensors, optimizer(5), state)
    backwards = dict(reversed(list(tensors.items())))
    save(tmp_path / "two", 5, backwards, optimizer(5), dict(reversed(state.items())))  # type: ignore[call-overload]
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_shared_strided_and_trained_tensors_are_saved_as_they_stand(tmp_path: Path) -> None:
    matrix = torch.arange(12.0).view(3, 4)
    model = nn.Linear(2, 2)
    tensors = {"a": matrix, "b": matrix, "row": matrix[1], "turned": matrix.t(), "parameter": model.weight}
    save(tmp_path, 1, tensors, {}, {})
    newest = load_newest(tmp_path, [])
    assert newest is not None
    assert newest.optimizer == {}
    assert equal(newest.weights, {name: value.detach() for name, value in tensors.items()})
    newest.weights["a"].zero_()
    assert newest.weights["b"].sum() == 66


def test_the_last_two_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save_step(tmp_path, step)
        assert load_step(tmp_path) == step
    assert names(tmp_path) == ["step-00000030", "step-00000040"]


def test_other_files_beside_the_checkpoints_are_left_alone(tmp_path: Path) -> None:
    save_weights(tmp_path / "average-00000010.safetensors", weights())
    (tmp_path / "notes").mkdir()
    for step in (1, 2, 3):
        save_step(tmp_path, step)
    assert names(tmp_path) == ["average-00000010.safetensors", "notes", "step-00000002", "step-00000003"]


def test_steps_beyond_eight_digits_are_in_order(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 100_000_001):
        save_step(tmp_path, step)
    assert load_step(tmp_path) == 100_000_001
    assert names(tmp_path) == ["step-100000000", "step-100000001"]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "missing", "a directory"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_with_a_warning(
    name: str, damage: str, tmp_path: Path
) -> None:
    save_step(tmp_path, 1)
    path = save_step(tmp_path, 2).path / name
    harm(path, damage)
    before = content(tmp_path)
    warnings: list[str] = []
    newest = load_newest(tmp_path, warnings)
    assert newest is not None
    assert newest.step == 1
    assert equal(newest.weights, weights(1))
    assert len(warnings) == 1
    assert str(path.parent) in warnings[0]
    assert "\n" not in warnings[0]
    assert content(tmp_path) == before


def harm(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    if damage == "flipped":
        # The last tenth: numbers in tensors, a digest in a manifest.
        at = len(whole) * 9 // 10
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif damage == "short":
        path.write_bytes(whole[:-2])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if damage == "a directory":
            path.mkdir()


def test_when_all_are_damaged_there_is_a_warning_for_each_and_nothing_to_load(tmp_path: Path) -> None:
    for step in (1, 2):
        harm(save_step(tmp_path, step).path / "weights.safetensors", "flipped")
    warnings: list[str] = []
    assert load_newest(tmp_path, warnings) is None
    assert len(warnings) == 2


def test_a_checkpoint_renamed_to_another_step_is_not_believed(tmp_path: Path) -> None:
    save_step(tmp_path, 5).path.rename(tmp_path / "step-00000009")
    warnings: list[str] = []
    assert load_newest(tmp_path, warnings) is None
    assert "not the manifest of this step" in warnings[0]


def test_after_a_fallback_the_damaged_one_goes_and_the_good_ones_stay(tmp_path: Path) -> None:
    for step in (10, 20):
        save_step(tmp_path, step)
    harm(tmp_path / "step-00000020" / "state.json", "short")
    save_step(tmp_path, 15)
    assert names(tmp_path) == ["step-00000010", "step-00000015"]
    assert load_step(tmp_path) == 15


def test_a_later_whole_checkpoint_of_a_newer_owner_is_never_removed(tmp_path: Path) -> None:
    for step in (30, 40):
        save_step(tmp_path, step)
    save_step(tmp_path, 20)
    assert load_step(tmp_path) == 40
    assert names(tmp_path) == ["step-00000020", "step-00000030", "step-00000040"]


def test_a_checkpoint_that_is_not_confirmed_once_it_is_on_disk_leaves_all_as_it_was(tmp_path: Path) -> None:
    for step in (10, 20):
        save_step(tmp_path, step)
    before = content(tmp_path)

    def refuse() -> None:
        (written,) = tmp_path.glob(".step-*/manifest.json")
        assert json.loads(written.read_text())["step"] == 30
        raise ArithmeticError("not ours any more")

    with pytest.raises(ArithmeticError, match="not ours"):
        save(tmp_path, 30, weights(30), optimizer(30), STATE, confirm=refuse)
    assert content(tmp_path) == before


def test_saving_a_step_again_replaces_it_whole_or_damaged(tmp_path: Path) -> None:
    save_step(tmp_path, 10)
    path = save_step(tmp_path, 20).path
    save(tmp_path, 20, weights(20), optimizer(20), STATE | {"step": 20})
    assert load_step(tmp_path) == 20
    harm(path / "weights.safetensors", "short")
    save_step(tmp_path, 20)
    assert load_step(tmp_path) == 20
    assert names(tmp_path) == ["step-00000010", "step-00000020"]


def test_a_process_killed_while_saving_leaves_whole_checkpoints(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    last = 0
    for _ in range(8):
        process = context.Process(target=save_for_ever, args=(tmp_path, last + 1), daemon=True)
        process.start()
        while (load_step_of_large(tmp_path) or 0) <= last:
            assert process.is_alive()
        time.sleep(random.uniform(0.0, 0.05))
        process.kill()
        process.join()
        found = load_step_of_large(tmp_path)
        assert found is not None
        assert found > last
        last = found
    save_step(tmp_path, last + 1)
    assert names(tmp_path) == [f"step-{last:08d}", f"step-{last + 1:08d}"]


def save_for_ever(directory: Path, first: int) -> None:
    for step in itertools.count(first):
        value = torch.full((50_000,), float(step))
        save(directory, step, {"w": value}, {"w/exp_avg": -value}, {"step": step})


def load_step_of_large(directory: Path) -> int | None:
    """As `load_step`; while somebody saves, a checkpoint may go between being listed and being read."""
    newest = load_newest(directory, [])
    if newest is None:
        return None
    assert torch.equal(newest.weights["w"], torch.full((50_000,), float(newest.step)))
    assert torch.equal(newest.optimizer["w/exp_avg"], torch.full((50_000,), -float(newest.step)))
    assert newest.state == {"step": newest.step}
    return newest.step


def test_what_a_killed_process_left_half_done_is_removed_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / ".step-half").mkdir()
    (tmp_path / ".step-half" / "weights.safetensors").write_bytes(b"half")
    (tmp_path / ".final.safetensors.x1").write_bytes(b"half")
    (tmp_path / ".snapshots.json.x2").write_bytes(b"half")
    save_step(tmp_path, 1)
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("room", [0, 30_000, 90_000])
def test_a_full_disk_is_one_clear_line_and_leaves_the_checkpoints_before(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", monkeypatch, kibibytes=2048) as disk:
        directory = disk.path / "checkpoints"
        for step in (1, 2):
            save_step(directory, step)
        before = content(directory)
        (disk.path / "reserve").write_bytes(bytes(room))
        disk.fill()
        (disk.path / "reserve").unlink()
        with pytest.raises(CheckError, match="the disk is full") as caught:
            save(directory, 3, {"w": torch.zeros(20_000)}, {"w": torch.zeros(20_000)}, {})
        assert caught.value.exit_code == 3
        assert str(directory / "step-00000003") in str(caught.value)
        assert names(directory) == ["step-00000001", "step-00000002"]
        assert content(directory) == before
        disk.free()
        assert load_step(directory) == 2
        save_step(directory, 3)
        assert load_step(directory) == 3


def test_a_state_with_nan_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, 1, weights(), {}, {"loss": float("nan")})
    assert names(tmp_path) == []


def test_training_that_goes_on_from_a_checkpoint_gives_the_same_bits(tmp_path: Path) -> None:
    whole = train(6)
    train(3, save_to=tmp_path)
    newest = load_newest(tmp_path, [])
    assert newest is not None
    assert equal(train(6, resume=newest), whole)


def train(steps: int, save_to: Path | None = None, resume: checkpoint.Checkpoint | None = None) -> dict[str, Tensor]:
    """Weights of a small network after `steps` updates in all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    named = dict(model.named_parameters())
    adam = torch.optim.Adam(named.values(), lr=0.01, fused=True)
    first = 0
    if resume is not None:
        first = resume.step
        model.load_state_dict(resume.weights)
        for name, parameter in named.items():
            parts = ("step", "exp_avg", "exp_avg_sq")
            adam.state[parameter] = {part: resume.optimizer[f"{name}/{part}"] for part in parts}
    for step in range(first, steps):
        batch = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        adam.zero_grad()
        model(batch).square().mean().backward()
        adam.step()
    if save_to is not None:
        moments = {f"{n}/{part}": value for n, p in named.items() for part, value in adam.state[p].items()}
        save(save_to, steps, named, moments, {})
    return {name: parameter.detach().clone() for name, parameter in named.items()}


# Single files of weights, and their average.


def test_a_file_of_weights_comes_back_to_the_bit_and_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_weights(tmp_path / f"{name}.safetensors", weights(4))
    assert equal(load_weights(tmp_path / "one.safetensors"), weights(4))
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    assert names(tmp_path) == ["one.safetensors", "two.safetensors"]


def test_no_flipped_bit_and_no_cut_of_a_file_of_weights_gives_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "final.safetensors"
    save_weights(path, {"w": torch.tensor([1.5, -2.5]), "n": torch.tensor(3)})
    whole = path.read_bytes()
    good = load_weights(path)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with suppress(CheckError):
            assert equal(load_weights(path), good), f"byte {at}"  # no harm: only the digest's own name was hit
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckError, match="damaged"):
            load_weights(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(CheckError, match="damaged"):
        load_weights(path)


def test_a_missing_file_of_weights_and_a_pickle_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no such file"):
        load_weights(tmp_path / "final.safetensors")
    torch.save({"w": torch.zeros(3)}, tmp_path / "old.pt")
    with pytest.raises(CheckError, match="damaged"):
        load_weights(tmp_path / "old.pt")


def test_the_average_is_the_mean_in_fp64_rounded_once(tmp_path: Path) -> None:
    # In fp32 the small parts would be lost one by one: 1 + 2^-24 is 1.
    parts = [1.0, 2.0**-24, 2.0**-24, 2.0**-24]
    for number, part in enumerate(parts):
        save_weights(tmp_path / f"{number}.safetensors", {"w": torch.tensor([part, number]), "n": torch.tensor([5])})
    mean = average(sorted(tmp_path.iterdir()))
    assert mean["w"].dtype == torch.float32
    assert mean["w"].tolist() == [torch.tensor(sum(parts) / 4, dtype=torch.float64).float().item(), 1.5]
    assert mean["w"][0].item() > 0.25
    assert mean["n"].tolist() == [5]


def test_the_average_of_the_same_files_has_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    files = []
    for step in range(4):
        files.append(tmp_path / f"average-{step}.safetensors")
        save_weights(files[-1], weights(step))
    first = average(files)
    for order in itertools.permutations(files):
        save_weights(tmp_path / "mean.safetensors", average(order))
        assert equal(load_weights(tmp_path / "mean.safetensors"), first)
    expected = sum(weights(step)["double"] for step in range(4)) / 4
    torch.testing.assert_close(first["double"], expected, rtol=0, atol=1e-15)
    assert equal(average(files[:1]), weights(0))


def test_an_average_is_never_made_of_fewer_than_asked(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for number, path in enumerate(files):
        save_weights(path, weights(number))
    with pytest.raises(CheckError, match="no weights to average"):
        average([])
    with pytest.raises(CheckError, match=r"7\.safetensors: no such file"):
        average([*files, tmp_path / "7.safetensors"])
    harm(files[1], "short")
    with pytest.raises(CheckError, match=r"1\.safetensors: damaged"):
        average(files)


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.zeros(4), "n": torch.tensor(1)},
        {"w": torch.zeros(3)},
        {"w": torch.zeros(3), "n": torch.tensor(1), "more": torch.zeros(1)},
        {"w": torch.zeros(3).double(), "n": torch.tensor(1)},
        {"w": torch.zeros(3), "n": torch.tensor(2)},
    ],
    ids=["shape", "missing", "more", "type", "whole number"],
)
def test_weights_of_another_model_are_not_averaged(other: dict[str, Tensor], tmp_path: Path) -> None:
    save_weights(tmp_path / "a.safetensors", {"w": torch.zeros(3), "n": torch.tensor(1)})
    save_weights(tmp_path / "b.safetensors", other)
    with pytest.raises(CheckError, match=r"b\.safetensors: "):
        average([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


def test_checkpoints_can_be_averaged_too(tmp_path: Path) -> None:
    paths = [save_step(tmp_path, step).path for step in (1, 2)]
    mean = average(paths)
    expected = (weights(1)["double"] + weights(2)["double"]) / 2
    torch.testing.assert_close(mean["double"], expected, rtol=0, atol=1e-15)
    shutil.rmtree(paths[1])
    with pytest.raises(CheckError):
        average(paths)
    assert names(tmp_path) == ["step-00000001"]
