"""Stage 05 over a run: opens judges and scorers of the profile."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import schemas
from memecmd_utils.core import paths, statistics, storage
from memecmd_utils.core import tables as core_tables
from memecmd_utils.core.drawing import screenshots
from memecmd_utils.core.encoders import chinese_clip
from memecmd_utils.core.llm import chat as llm_chat
from memecmd_utils.evaluation import consistency, ground_truth, judges
from memecmd_utils.evaluation import rankings as evaluation_rankings
from memecmd_utils.evaluation import tables as evaluation_tables
from memecmd_utils.evaluation.ground_truth import GroundTruth, Relevance
from memecmd_utils.evaluation.rankings import Query, System
from memecmd_utils.retrieval import scoring
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Consistency, Dialogue, Meme, Placement, Rating
from memecmd_utils.settings import Profile


def meme_files(run: Run, memes: Mapping[str, Meme]) -> dict[str, "paths.Path"]:
    """Paths of the normalised pictures."""
    folder = run.read("memes.parquet").parent
    return {name: folder / meme.file for name, meme in memes.items()}


def screenshot(
    run: Run,
    dialogue: Dialogue,
    placements: Sequence[Placement],
    strategy: str,
    memes: Mapping[str, Meme],
    n_turns: int | None = None,
) -> tuple[str, Image.Image]:
    """Draw a dialogue (or its first turns) with one strategy's memes: specification's hash and picture."""
    mine = [p for p in placements if p.strategy == strategy and p.dialogue_id == dialogue.dialogue_id]
    spec = screenshots.chat_from_dialogue(
        dialogue, mine, n_turns, meme_position=run.profile.retrieval.meme_position
    )
    return screenshots.spec_sha256(spec), screenshots.draw(spec, meme_files(run, memes))


def drawing(run: Run, memes: Mapping[str, Meme]) -> judges.Draw:
    """What specifies, and at need draws, the screenshot that a judge with eyes is shown."""
    files = meme_files(run, memes)

    def draw(dialogue: Dialogue, shown: Sequence[Placement], n_turns: int) -> tuple[str, Callable[[], bytes]]:
        spec = screenshots.chat_from_dialogue(
            dialogue, shown, n_turns, meme_position=run.profile.retrieval.meme_position
        )
        # As phones send it: a PNG takes four times as long to make as the picture itself.
        return screenshots.spec_sha256(spec), lambda: screenshots.encode(
            screenshots.draw(spec, files), "jpeg"
        )

    return draw


def rate(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> list[Rating]:
    """Rate with every judge of the profile; of several with one name the later ones are numbered.

    A judge that was stopped early is named.
    """
    ratings: list[Rating] = []
    names: list[str] = []
    draw = drawing(run, memes)
    for number, judge in enumerate(run.profile.evaluation.judges):
        with run.chat("judge", "evaluation", number) as chat:
            name = judges.numbered(f"{chat.backend.model.name} {judge.kind}", names)
            by_meme = judge.kind == "yes_no" or run.profile.evaluation.judge_unit == "meme"
            shown = judges.to_judge(placements, run.profile) if by_meme else placements
            common = (shown, dialogues, memes, chat, run.profile, name)
            if judge.kind == "yes_no":
                work = judges.rate_yes_no(*common)
            else:
                sees = judge.llm == "openai" and run.endpoint("judge", number).vision
                work = judges.rate_screenshots(*common, draw if sees else None)
            mine = llm_chat.run(work)
            ratings += mine
            unasked = sum(rating.unscored == judges.STOPPED for rating in mine)
            if unasked:
                print(f"{name}: {judges.STOPPED}; {unasked} of its {len(mine)} ratings were not asked for")
            names.append(name)
    return ratings


def clip_scorer(run: Run, memes: Mapping[str, Meme]) -> chinese_clip.ChineseClipScorer:
    """Chinese-CLIP on the run's pictures; its vectors are recorded beside those of the embedders."""
    files, profile = meme_files(run, memes), run.profile
    # A relative path counts from the project's root: notebooks run in a folder of their own.
    checkpoint = paths.root / profile.models.clip_checkpoint if profile.models.clip_checkpoint else None
    folder = paths.interim / "clip"
    here = chinese_clip.weights_file(profile.models.clip_model, folder, checkpoint).is_file()
    # A replay computes what is not recorded, but fetches no weights for it.
    mode = run.vector_mode if here else profile.models.mode
    return chinese_clip.ChineseClipScorer(
        profile.models.clip_model,
        lambda meme: files[meme.meme_id],
        folder,
        checkpoint,
        run.read_dirs,
        None if mode == "recorded" else run.write_dir,
        mode,
        run.folder,
    )


def measure_consistency(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> tuple[list[Consistency], str]:
    """Consistency of all placed memes, and the scorer's name with what it could not read."""
    profile = run.profile
    if profile.evaluation.consistency == "cn_clip":
        scorer = clip_scorer(run, memes)
        rows = consistency.measure(placements, dialogues, memes, scorer, profile)
        return rows, f"{scorer.name}{cut_texts(scorer.truncated)}"
    embedder = run.embedder(profile.models.consistency_embedder)
    scorer = consistency.TextScorer(embedder, run.embedder_name())
    rows = consistency.measure(placements, dialogues, memes, scorer, profile)
    return rows, scorer.name


def cut_texts(truncated: int | None) -> str:
    """What to add to the scorer's name about texts that it did not read to their end."""
    if truncated is None:
        return (
            f"; texts over {chinese_clip.MAX_TOKENS} tokens were cut, how many is not known without cn_clip"
        )
    return f"; {truncated} texts were cut at {chinese_clip.MAX_TOKENS} tokens" if truncated else ""


# --- Stage 05 against the ground truth: agreement, timing, retrieval systems, grades of placed memes


STRICT = 3
"""Sum of two grades from which a meme lands for both graders: at least 2 and 1."""


@dataclass(frozen=True)
class Found:
    """Retrieval against the ground truth: all systems, their paired differences, the stricter relevance."""

    systems: pd.DataFrame
    differences: pd.DataFrame
    strict: pd.DataFrame

    def overview(self, strict: bool = False) -> pd.DataFrame:
        """All systems with their measures, the best nDCG@5 first."""
        columns = ["embedder", "centring", "uses", *evaluation_rankings.COLUMNS, "turns"]
        return (self.strict if strict else self.systems)[columns].sort_values("nDCG@5", ascending=False)

    def save(
        self,
        run: Run,
        agreement: pd.DataFrame,
        timing: pd.DataFrame,
        placed: pd.DataFrame,
    ) -> None:
        """Write the tables of the report, and `ground_truth.json`, which page and README quote."""
        tables = {
            "placed": placed,
            "agreement": agreement,
            "timing": timing,
            "retrieval": self.systems,
            "retrieval_strict": self.strict,
            "retrieval_differences": self.differences,
        }
        core_tables.save(run.report / "tables", **tables)
        rows = {name: evaluation_tables.frame_rows(table) for name, table in tables.items()}
        storage.write_json(run.write("ground_truth.json"), rows)


@dataclass(frozen=True)
class Ranked:
    """Scores [turns, memes] of every system, with the turns and the memes they belong to."""

    matrices: dict[System, np.ndarray]
    asked: list[Query]
    meme_ids: list[str]


def rank(
    run: Run,
    dialogues: Sequence[schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    annotations: Sequence[schemas.Annotation],
) -> Ranked:
    """Score the library with every system, under the run's embedder and the one that took no part in it."""
    usable = [a for a in annotations if a.usable]
    asked = evaluation_rankings.queries(dialogues)
    names = dict.fromkeys([run.profile.models.embedder, run.profile.models.consistency_embedder])
    encoders = {name: run.embedder(name).encode for name in names}
    matrices = dict(
        evaluation_rankings.score_matrices(asked, memes, usable, encoders, run.profile.retrieval.weights)
    )
    return Ranked(matrices, asked, [a.meme_id for a in usable])


def evaluate_systems(
    run: Run,
    dialogues: Sequence[schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    truth: GroundTruth,
) -> Found:
    """Measure every system against the grades; empty tables where the run has none."""
    if not truth.grades:
        return Found(*(pd.DataFrame(columns=list(names)) for names in evaluation_rankings.HEADS))
    ranked = rank(run, dialogues, memes, annotations)
    relevant = ground_truth.relevance(truth.grades)
    measured = evaluation_rankings.evaluate(
        ranked.matrices, ranked.asked, ranked.meme_ids, relevant, run.profile, (ground_truth.RELEVANT, STRICT)
    )
    (systems, differences), (strict, _) = (
        evaluation_rankings.tables(found, run.profile, run.profile.models.embedder) for found in measured
    )
    return Found(systems, differences, strict)


def pool(
    run: Run, ranked: Ranked, truth: GroundTruth, placements: Sequence[schemas.Placement]
) -> dict[evaluation_tables.Key, list[str]]:
    """What is to be graded: the top 5 of the planned systems, the markers' best and all placed memes.

    Systems: all four terms, each term alone and the caption baseline under both embedders with the run's
    centring, and one random ranking.
    """
    wanted = {*evaluation_rankings.PARTS, evaluation_rankings.FULL, evaluation_rankings.CAPTION}
    orders = {
        " ".join(system): scoring.order(scores, ranked.meme_ids)
        for system, scores in ranked.matrices.items()
        if system.uses in wanted and system.centring == run.profile.retrieval.centring
    }
    orders["random"] = evaluation_rankings.random_order(
        ranked.asked, len(ranked.meme_ids), run.profile.seed, 0
    )
    rankings = {
        name: {q.key: [ranked.meme_ids[i] for i in row] for q, row in zip(ranked.asked, order, strict=True)}
        for name, order in orders.items()
    }
    also: dict[evaluation_tables.Key, list[str]] = {}
    for mark in truth.marks:
        also.setdefault((mark.dialogue_id, mark.turn), []).extend(mark.best)
    for placed in placements:
        also.setdefault((placed.dialogue_id, placed.turn), []).append(placed.meme_id)
    return ground_truth.pool(rankings, also, run.profile.seed)


def grades_of_placed(
    placements: Sequence[schemas.Placement], truth: GroundTruth
) -> dict[str, dict[evaluation_tables.Key, float]]:
    """Mean grade (0-2) of every placed meme, by strategy and turn; empty unless all of them were graded.

    With another seed, gate or library some placed memes were never in the pool, and those that were are no
    fair sample of them.
    """
    if not truth.grades:
        return {}
    relevant: Relevance = ground_truth.relevance(truth.grades)
    found = ground_truth.placed_grades(placements, relevant, len(truth.graders))
    return found if sum(map(len, found.values())) == len(placements) else {}


PLACED = ("strategy", "memes", "ungraded", "mean grade", "ungraded as 0")


def mean_grades(placements: Sequence[schemas.Placement], truth: GroundTruth) -> pd.DataFrame:
    """Mean grade (0-2) of the placed memes that were graded, a row a strategy; none without ground truth.

    `ungraded` is the share that nobody graded. They were in no system's pool, so most of them fit worse: the
    mean over all memes should lie between `ungraded as 0`, which counts them so, and `mean grade`.
    """
    if not truth.grades:
        return pd.DataFrame(columns=list(PLACED))
    graded = ground_truth.placed_grades(placements, ground_truth.relevance(truth.grades), len(truth.graders))
    rows = []
    for name, memes in Counter(placed.strategy for placed in placements).items():
        of = list(graded.get(name, {}).values())
        mean = float(np.mean(of)) if of else np.nan
        rows.append((name, memes, 1 - len(of) / memes, mean, sum(of) / memes))
    return pd.DataFrame(rows, columns=list(PLACED))


def load_found(run: Run) -> dict[str, list[dict]]:
    """`ground_truth.json` of a run; empty tables where it has no ground truth."""
    return json.loads(run.read("ground_truth.json").read_text(encoding="utf-8"))


def short_table(found: Mapping[str, Sequence[Mapping]], profile: Profile) -> pd.DataFrame:
    """The full score centred and not, single terms, the caption baseline and random, with intervals.

    The difference in nDCG@5 to the graded random ranking (the mean of many where a run has none) and to the
    run's own full score, each `mean [low, high]`. Pairs of terms and the rest are in `tables/retrieval.csv`.
    """
    baselines = (
        evaluation_rankings.CAPTION,
        evaluation_rankings.RANDOM,
        evaluation_rankings.RANDOM_GRADED,
    )
    uses = (evaluation_rankings.FULL, *evaluation_rankings.PARTS, *baselines)
    other = ", not centred" if profile.retrieval.centring == "attribute" else ", centred"
    rows = []
    graded = any(row["uses"] == evaluation_rankings.RANDOM_GRADED for row in found["retrieval"])
    chance = evaluation_rankings.RANDOM_GRADED if graded else evaluation_rankings.RANDOM
    differences = {
        (row["embedder"], row["centring"], row["uses"], row["minus"]): row
        for row in found["retrieval_differences"]
        if row["measure"] == "nDCG@5"
    }
    for row in found["retrieval"]:
        system = row["embedder"], row["centring"], row["uses"]
        as_run = row["centring"] in ("", profile.retrieval.centring)
        if row["uses"] not in uses or not (as_run or row["uses"] == evaluation_rankings.FULL):
            continue
        shown = {"embedder": row["embedder"] or "–", "uses": row["uses"] + ("" if as_run else other)}
        shown |= {column: row[column] for column in evaluation_rankings.COLUMNS}
        shown["nDCG@5 − random"] = _format_difference(differences.get((*system, chance)))
        shown["nDCG@5 − full"] = _format_difference(differences.get((*system, "the full score")))
        rows.append(shown)
    rows.sort(key=lambda row: -row["nDCG@5"])
    columns = ["embedder", "uses", *evaluation_rankings.COLUMNS]
    columns += ["nDCG@5 − random", "nDCG@5 − full"]
    return pd.DataFrame(rows, columns=columns)


def _format_difference(row: Mapping | None) -> str:
    return "–" if row is None else statistics.format_interval(row, digits=3, sign="+")
