import made_up
import numpy as np
import pytest

from memecmd_utils.embedders import RecordedEmbedder
from memecmd_utils.evaluation import consistency

DIALOGUES = {
    name: made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 7)))
    for name in ("d1", "d2", "d3")
}


class FakeEmbedder:
    name = "fake-1"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def encode(self, texts, side):
        self.asked.append(list(texts))
        return made_up.vectors(texts, side)


def scorer(embedder: FakeEmbedder | None = None) -> consistency.TextScorer:
    return consistency.TextScorer(RecordedEmbedder(embedder or FakeEmbedder(), [], None), "other-1")


def placed(name: str, turn: int, meme_id: str = "m1", strategy: str = "greedy"):
    return made_up.placement(turn, meme_id, dialogue_id=name, strategy=strategy)


def memes(**texts: str):
    return {name: made_up.meme(name).model_copy(update={"text": text}) for name, text in texts.items()}


def test_equation_26_by_hand() -> None:
    """(cos + 1) / 2 * 100: -1 gives 0, 0 gives 50, .5 gives 75, 1 gives 100; rounding above 1 is cut off."""
    assert consistency.score(np.array([-1, 0, 0.5, 1, 1 + 1e-7])).tolist() == [0, 50, 75, 100, 100]


def test_scores_are_cosines_of_caption_and_utterance() -> None:
    """Meme (.6, .8) against u_t (1, 0): cos .6, score 50 * 1.6 = 80; against u_t+1 (0, -1): cos -.8,
    score 10."""
    rows = {"caption": (0.6, 0.8), "d1 says 2": (1.0, 0.0), "d1 says 3": (0.0, -1.0)}

    class Table:
        name = "text:table"

        def memes(self, memes):
            return np.array([rows[m.text] for m in memes])

        def texts(self, texts):
            return np.array([rows[t] for t in texts])

    got = consistency.measure([placed("d1", 2)], DIALOGUES, memes(m1="caption"), Table(), made_up.profile())
    assert [(r.text, r.score) for r in got] == [("u_t", 80), ("u_t+1", 10)]
    assert (got[0].scorer, got[0].source, got[0].turn) == ("text:table", "model text:table", 2)


def test_which_texts_stand_beside_a_meme() -> None:
    group = [placed("d1", 2), placed("d1", 6), placed("d2", 3)]
    pairs = consistency.text_pairs(group, DIALOGUES, made_up.profile())
    said = {(p.dialogue_id, p.turn, kind): text for p, kind, text in pairs}
    assert said["d1", 2, "u_t"] == "d1 says 2" and said["d1", 2, "u_t+1"] == "d1 says 3"
    assert said["d1", 6, "u_t"] == "d1 says 6"
    assert ("d1", 6, "u_t+1") not in said  # the dialogue ends there
    assert said["d1", 2, "shuffled"] == said["d1", 6, "shuffled"] == "d2 says 3"
    assert said["d2", 3, "shuffled"] in ("d1 says 2", "d1 says 6")


def test_shuffled_texts_are_of_other_dialogues_and_of_all_of_them() -> None:
    group = [placed(name, turn) for turn in (2, 3, 4, 5) for name in DIALOGUES]  # dialogues interleaved
    group += [placed(name, turn, strategy="random") for name in ("d1", "d2") for turn in (2, 6)]
    drawn: dict[str, set[str]] = {name: set() for name in DIALOGUES}
    for seed in range(40):
        for p, kind, text in consistency.text_pairs(group, DIALOGUES, made_up.profile(seed=seed)):
            if kind == "shuffled":
                assert not text.startswith(p.dialogue_id)
                if p.strategy == "random":
                    assert text[-1] in "26"  # a placement of the same strategy
                else:
                    drawn[p.dialogue_id].add(text)
    for name, texts in drawn.items():
        assert texts == {f"{o} says {t}" for o in DIALOGUES if o != name for t in (2, 3, 4, 5)}


def test_memes_without_any_words_are_left_out() -> None:
    library = memes(m1="有字", m2="", m3="")
    library["m3"] = library["m3"].model_copy(update={"picture_note": "一只猫"})
    group = [placed("d1", 2, "m1"), placed("d2", 2, "m2"), placed("d3", 2, "m3")]
    got = consistency.measure(group, DIALOGUES, library, scorer(), made_up.profile())
    assert {r.meme_id for r in got} == {"m1", "m3"}
    assert "d2 says 2" not in {
        text for _, _, text in consistency.text_pairs([group[0], group[2]], DIALOGUES, made_up.profile())
    }
    assert consistency.measure(group[1:2], DIALOGUES, library, scorer(), made_up.profile()) == []

    class Clip:
        name = "cn_clip:tiny"

        def memes(self, memes):
            return np.ones((len(memes), 1))

        def texts(self, texts):
            return np.ones((len(texts), 1))

    seen = consistency.measure(group, DIALOGUES, library, Clip(), made_up.profile())
    assert {r.meme_id for r in seen} == {"m1", "m2", "m3"}  # a scorer of pictures needs no words


def test_the_embedder_that_chose_may_not_score() -> None:
    embedder = RecordedEmbedder(FakeEmbedder(), [], None)
    with pytest.raises(ValueError, match="fake-1 already chose the memes"):
        consistency.TextScorer(embedder, "fake-1")
