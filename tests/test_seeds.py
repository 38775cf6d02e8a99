from memecmd_utils import statistics


def draw(*names: str | int, seed: int = 13) -> list[int]:
    return statistics.rng(seed, *names).integers(1000, size=5).tolist()


def test_a_stream_depends_on_seed_and_names_alone() -> None:
    assert draw("news", 1) == draw("news", 1)
    others = [
        draw("news", 1),
        draw("news", 2),
        draw("role", 1),
        draw("news"),
        draw("news", 1, seed=14),
        draw("news1"),
    ]
    assert len({tuple(numbers) for numbers in others}) == len(others)


def test_the_streams_of_the_recordings_stay_as_they_are() -> None:
    assert draw("utterance", "news-sports-1", 1) == [113, 97, 101, 92, 767]
