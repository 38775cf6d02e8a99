import numpy as np
import pandas as pd
import pytest

from memecmd_utils import paired_auc, seeds, statistics


def items(n: int = 12, seed: int = 0, gain: float = 0.0, halves: str = "a") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        for kind, mean in (("fitting", 0.4), ("random", 0.0)):
            for _ in range(2):
                base = rng.normal(mean)
                better = base + (gain if kind == "fitting" else 0)
                rows.append((f"d{i:02d}", kind, round(base, 1), round(better, 1), halves[i % len(halves)]))
    return pd.DataFrame(rows, columns=["dialogue_id", "kind", "before", "after", "half"])


def pairs(frame: pd.DataFrame, kind: str, name: str) -> list[tuple[str, float]]:
    mine = frame[frame["kind"] == kind]
    return list(zip(mine["dialogue_id"], mine[name], strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_one_half_is_cluster_auc(seed) -> None:
    frame = items(seed=seed, gain=0.3)
    got = paired_auc.before_after(frame, seeds.rng(1, "x"))
    for name, estimate in (("before", got.before), ("after", got.after)):
        sides = [pairs(frame, kind, name) for kind in ("fitting", "random")]
        wanted = statistics.cluster_auc(*sides, seeds.rng(1, "x"))
        assert estimate.mean == pytest.approx(wanted.mean) and estimate.n == wanted.n
        assert (estimate.low, estimate.high) == pytest.approx((wanted.low, wanted.high))
    assert got.difference.mean == pytest.approx(got.after.mean - got.before.mean)


def test_the_difference_is_paired() -> None:
    got = paired_auc.before_after(items(40, gain=0.25), seeds.rng(1, "x"))
    assert 0 < got.difference.low < got.difference.mean < got.difference.high and got.difference.p < 0.05
    width = {name: getattr(got, name).high - getattr(got, name).low for name in got._fields}
    assert width["difference"] < min(width["before"], width["after"]) / 2
    same = paired_auc.before_after(items(20), seeds.rng(1, "x")).difference
    assert (same.mean, same.p, same.clusters) == (0, 1, 20) and np.isnan(same.low)


def test_halves_are_not_compared_with_each_other() -> None:
    """One half's scores lie a whole unit higher: its model scores everything higher, which says nothing."""
    frame = items(16, halves="ab")
    shifted = frame.copy()
    shifted.loc[frame["half"] == "b", "after"] += 5
    for one in (frame, shifted):
        got = paired_auc.before_after(one, seeds.rng(1, "x"))
        by_half = []
        for half in "ab":
            here = one[one["half"] == half]
            scores = [here.loc[here["kind"] == kind, "after"].to_numpy() for kind in ("fitting", "random")]
            by_half.append(statistics.auc(*scores))
        assert got.after.mean == pytest.approx(np.mean(by_half))
        assert got.difference.mean == pytest.approx(0)


def test_too_little() -> None:
    few = paired_auc.before_after(items(4), seeds.rng(1, "x"))
    assert np.isfinite(few.before.mean) and np.isnan(few.before.low) and few.difference.p is None
    frame = items(6)
    none = paired_auc.before_after(frame[frame["kind"] == "random"], seeds.rng(1, "x"))
    assert np.isnan(none.difference.mean) and none.before.n == 0
