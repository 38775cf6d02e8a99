import json

import numpy as np
import pytest
from made_grades import grade, mark
from made_up import annotation, dialogue, meme, placement, profile, vectors

from memecmd_utils import runs
from memecmd_utils.core.encoders.text import RecordedEmbedder
from memecmd_utils.evaluation import ground_truth, rankings
from memecmd_utils.evaluation.ground_truth import GroundTruth
from memecmd_utils.retrieval import scoring

MEMES = [f"m{i}" for i in range(1, 81)]
NAMES = [f"news-made-{i}" for i in range(1, 8)]


class Tiny:
    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, texts, side) -> np.ndarray:
        return vectors(texts, side + self.name)


def world(tmp_path):
    settings = profile(embedder="tiny", consistency_embedder="other")
    asked: list[str] = []

    def embedder(name: str | None = None) -> RecordedEmbedder:
        asked.append(name or "")
        return RecordedEmbedder(Tiny(name or "tiny"), [], None, "live", tmp_path)

    run = runs.Run("made", settings, tmp_path, tmp_path / "report")
    run.embedder = embedder
    annotations = [
        annotation(m, s_plus=f"{m}好", s_minus=f"{m}坏", emotion=f"{m}情", motivation=f"{m}意") for m in MEMES
    ]
    dialogues = [varied(name) for name in NAMES]
    return (
        run,
        asked,
        dialogues,
        {m: meme(m).model_copy(update={"text": f"{m}字"}) for m in MEMES},
        annotations,
    )


def varied(name: str):
    made = dialogue(name)
    summaries = [s.model_copy(update={"scenario": f"{name}{s.turn}"}) for s in made.summaries]
    return made.model_copy(update={"summaries": summaries})


def graded(asked, best) -> list:
    return [
        grade(q.turn, m, grader, 2 if m in best[q.key] else 0, q.key[0])
        for q in asked
        for m in MEMES
        for grader in ("g1", "g2")
    ]


def test_the_run_is_measured_end_to_end_and_written_down(tmp_path) -> None:
    run, _, dialogues, library, annotations = world(tmp_path)
    asked = rankings.queries(dialogues)
    terms = rankings.four_terms(
        [s for d in dialogues for s in d.summaries], annotations, run.embedder("tiny").encode, "attribute"
    )
    order = scoring.order(scoring.combine(terms, run.profile.weights), MEMES)
    best = {q.key: {MEMES[row[0]]} for q, row in zip(asked, order, strict=True)}
    truth = GroundTruth([mark(2, w, True, name=NAMES[0]) for w in "ab"], graded(asked, best))
    found = rankings.evaluate_systems(run, dialogues, library, annotations, truth)
    rows = found.systems.set_index(["embedder", "centring", "uses"])
    mine = rows.loc[("tiny", "attribute", rankings.FULL)]
    assert mine["R@1"] == mine["nDCG@5"] == mine["judged@5"] == 1 and mine["turns"] == len(asked)
    assert rows.loc[("", "", "random")]["R@1"] == pytest.approx(1 / len(MEMES), abs=0.02)
    assert len(found.systems) == len(found.strict) == 50
    agreement = ground_truth.grader_agreement(truth)
    placed = [placement(turn, max(memes), dialogue_id=name) for (name, turn), memes in best.items()]
    grades = ground_truth.mean_grades(placed, truth)
    found.save(run, agreement, ground_truth.timing_agreement(truth, [], dialogues), grades)
    said = json.loads((tmp_path / "ground_truth.json").read_text(encoding="utf-8"))
    assert [(row["strategy"], row["memes"], row["ungraded"]) for row in said["placed"]] == [
        ("greedy", len(best), 0)
    ]
    assert set(said) - {"placed"} == {
        "agreement",
        "timing",
        "retrieval",
        "retrieval_strict",
        "retrieval_differences",
    }
    assert len(said["retrieval"]) == 50 and said["agreement"][1]["value"] == 1
    assert (tmp_path / "usage" / "embedding:other.keys.json").is_file()
    assert (tmp_path / "report" / "tables" / "retrieval_strict.csv").is_file()
    assert found.overview()["nDCG@5"].is_monotonic_decreasing and len(found.overview(strict=True)) == 50


def test_without_ground_truth_no_text_is_embedded(tmp_path) -> None:
    run, asked, dialogues, library, annotations = world(tmp_path)
    found = rankings.evaluate_systems(run, dialogues, library, annotations, ground_truth.NONE)
    assert asked == [] and found.systems.empty and {"R@1", "uses"} <= set(found.systems.columns)
    assert "measure" in found.differences.columns
    assert ground_truth.grades_of_placed([placement(2, "m1")], ground_truth.NONE) == {}


def test_grades_of_a_part_of_the_placed_memes_are_no_effect() -> None:
    truth = GroundTruth([], [grade(2, "m1", who, 2) for who in ("g1", "g2")])
    assert ground_truth.grades_of_placed([placement(2, "m1")], truth) == {"greedy": {("news-made-1", 2): 2.0}}
    more = [placement(2, "m1"), placement(3, "m1"), placement(2, "m2", strategy="random")]
    assert ground_truth.grades_of_placed(more, truth) == {}
    found = ground_truth.mean_grades(more, truth).set_index("strategy")
    assert found.loc["greedy"].tolist() == [2, 0.5, 2.0, 1.0], "one of two was graded, with 2"
    assert found.loc["random", "ungraded"] == 1 and np.isnan(found.loc["random", "mean grade"])
    assert ground_truth.mean_grades(more, ground_truth.NONE).empty
