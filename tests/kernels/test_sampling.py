"""Sampling: what the filters keep, how the rest is drawn, and that nothing else matters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecloud.kernels.sampling import (
    Sampling,
    gumbel,
    kept_reference,
    sample,
    sample_reference,
    uniform,
)

from .builders import NAN
from .conftest import INTERPRETED

INF = float("inf")
# The interpreter takes 50 ms a row.
DRAWS = 5 if INTERPRETED else 600


def how(
    rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
) -> Sampling:
    """The same for all rows, which are consecutive positions."""
    return Sampling(
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.full((rows,), seed),
        torch.arange(position, position + rows),
    )


def drawn_ids(logits: torch.Tensor, settings: Sampling) -> set[int]:
    """All ids of many draws, which are what sorting would draw."""
    rows = logits.repeat(len(settings.seed), 1)
    drawn = sample(rows, settings)
    assert torch.equal(drawn, sample_reference(rows, settings))
    return set(drawn.tolist())


@pytest.mark.parametrize("size", [1, 17, 1024, 2049, 5000])
def test_temperature_zero_is_the_argmax(size: int) -> None:
    logits = torch.randn(4, size)

    assert sample(logits, how(4, temperature=0.0, top_k=3)).tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("size", [64, 192, 100])
def test_of_equals_the_lowest_id_wins(size: int) -> None:
    logits = torch.zeros(1, size)
    logits[0, [20, 63, 50]] = 5.0

    assert sample(logits, how(1, temperature=0.0)).tolist() == [20]


def test_of_equals_far_apart_the_lowest_id_wins() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, [20, 20 + 2048, 20 + 4096]] = 5.0

    assert sample(logits, how(1, temperature=0.0)).tolist() == [20]


def test_noise_belongs_to_the_token_not_to_its_place_among_the_likely() -> None:
    logits = torch.full((4, 300), -100.0)
    logits[:, 100:] = 0.0

    assert torch.equal(sample(logits, how(4)), sample_reference(logits, how(4)))


def test_a_row_without_an_answer_gets_none_and_its_neighbours_theirs() -> None:
    logits = torch.zeros(5, 128)
    logits[0, 3], logits[1], logits[2, 5], logits[3], logits[4, 9] = NAN, -INF, INF, -INF, 80.0
    logits[3, 7] = 1.0

    assert sample(logits, how(5)).tolist() == [-1, -1, -1, 7, 9]
    assert sample(logits, how(5, temperature=0.0)).tolist() == [-1, -1, -1, 7, 9]


@given(
    data=st.data(),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 40, 299, 300, 1000]),
    # No product with 300 equals is a whole number: at such an edge, fp32 and fp64 may differ by a token.
    top_p=st.sampled_from([0.0517, 0.509, 0.903, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
)
@settings(
    max_examples=12 if INTERPRETED else 100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_draws_are_those_of_sorting(
    data: st.DataObject, temperature: float, top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(2, 300) * spread
    settings = how(2, temperature, top_k, top_p, min_p, data.draw(st.integers(-(2**63), 2**63 - 1)))

    assert torch.equal(sample(logits, settings), sample_reference(logits, settings))


@pytest.mark.parametrize("top_k", [1, 3, 5, 6, 7])
def test_top_k_keeps_exactly_k_the_lower_ids_of_equals(top_k: int) -> None:
    logits = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 0.0, 1.0])

    ids = drawn_ids(logits, how(DRAWS, temperature=5.0, top_k=top_k))

    kept = set([1, 3, 0, 2, 4, 6, 5][:top_k])
    assert ids <= kept
    assert INTERPRETED or ids == kept


@pytest.mark.parametrize(
    ("probabilities", "top_k", "top_p", "kept"),
    [
        # The token that crosses p stays.
        ([0.5, 0.3, 0.15, 0.05], 0, 0.75, {0, 1}),
        ([0.5, 0.3, 0.15, 0.05], 0, 0.81, {0, 1, 2}),
        ([0.5, 0.3, 0.15, 0.05], 0, 0.001, {0}),
        # Of what top_k leaves: 0.35, 0.25, 0.2 are 0.4375, 0.3125, 0.25 of it.
        ([0.35, 0.25, 0.2, 0.1, 0.1], 3, 0.74, {0, 1}),
        ([0.35, 0.25, 0.2, 0.1, 0.1], 3, 0.76, {0, 1, 2}),
        # Equals at the edge: as many as are needed, the lower ids.
        ([0.1, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1], 0, 0.55, {1, 0, 2}),
        # One token has nearly everything.
        ([0.0001, 0.9997, 0.0001, 0.0001], 0, 0.9, {1}),
    ],
)
def test_top_p_keeps_the_smallest_set(
    probabilities: list[float], top_k: int, top_p: float, kept: set[int]
) -> None:
    logits = torch.tensor(probabilities).log()

    ids = drawn_ids(logits, how(DRAWS, top_k=top_k, top_p=top_p))

    assert ids <= kept
    assert INTERPRETED or ids == kept
    assert set(kept_reference(logits.double(), 1.0, top_k, top_p, 0.0).tolist()) == kept


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = torch.tensor([0.4, 0.3, 0.19, 0.11]).log()

    ids = drawn_ids(logits, how(DRAWS, min_p=0.4))

    assert ids <= {0, 1, 2}
    assert INTERPRETED or ids == {0, 1, 2}


def test_min_p_looks_at_what_temperature_has_made_of_it() -> None:
    # Half as likely as the first, a quarter at temperature 0.5; together far likelier.
    logits = torch.full((51,), 0.5).log()
    logits[7] = 0.0

    assert drawn_ids(logits, how(DRAWS, temperature=0.5, min_p=0.4)) == {7}
    assert drawn_ids(logits, how(DRAWS, temperature=0.5, min_p=0.2)) != {7}


@pytest.mark.skipif(INTERPRETED, reason="its draws are those of the CPU form, which is faster")
def test_draws_have_the_distribution() -> None:
    times = 10_000
    logits = torch.randn(8) * 1.5
    drawn = sample(logits.repeat(times, 1), how(times, temperature=1.3))

    observed = torch.bincount(drawn, minlength=8) / times
    expected = torch.softmax(logits / 1.3, 0)
    assert (observed - expected).abs().sum() / 2 < 3 / times**0.5


def test_a_row_is_drawn_the_same_in_any_batch() -> None:
    logits, settings = torch.randn(6, 500), how(6, temperature=1.5, top_p=0.9)
    together = sample(logits, settings)

    for row in range(6):
        alone = Sampling(*(each[row : row + 1] for each in settings))
        assert sample(logits[row : row + 1], alone).tolist() == [together[row].item()]


def test_seeds_and_positions_are_all_that_tells_draws_apart() -> None:
    logits = torch.zeros(1, 5000)

    draws = [sample(logits, how(1, seed=seed, position=at)).item() for seed in (0, 1, 2**40) for at in (0, 1)]

    assert len(set(draws)) == 6
    assert sample(logits, how(1, seed=2**40, position=1)).item() == draws[-1]


def test_noise_is_even_and_finite() -> None:
    token = torch.arange(100_000, dtype=torch.int32)
    u = uniform(7, 3, token)

    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert torch.histc(u, 10, 0, 1).sub(10_000).abs().max() < 400
    # Neighbours are strangers: in token, in position, in either half of the seed.
    for other in (
        uniform(7, 3, token + 1),
        uniform(7, 4, token),
        uniform(8, 3, token),
        uniform(7 + 2**32, 3, token),
    ):
        assert torch.corrcoef(torch.stack((u, other)))[0, 1].abs() < 0.02
    assert gumbel(7, 3, token).isfinite().all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous fp32"):
        sample(torch.zeros(2, 8).half(), how(2))
    with pytest.raises(ValueError, match="2 rows of logits"):
        sample(torch.zeros(2, 8), how(3))
