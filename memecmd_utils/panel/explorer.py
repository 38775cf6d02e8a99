"""Selection with knobs: one dialogue, any weights, gate, K and strategy, redone at every change.

What the panel of notebook 04 shows, without widgets. The four turns-by-memes matrices of the open dialogue
are kept, so new weights are a sum of four; a large library is searched anew instead. The picks equal those of
`placement.place` at the same settings.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from memecmd_utils import drawing
from memecmd_utils.drawing import ShownMeme, ShownTurn, Thumbnails, caption_of, signed
from memecmd_utils.retrieval import placement
from memecmd_utils.retrieval.figures import gate_trace
from memecmd_utils.retrieval.gate import Gate, ScoreScale, calibrate_theta0, simulate, standard_scale
from memecmd_utils.retrieval.placement import ScoredDialogue
from memecmd_utils.retrieval.scoring import MemeIndex, Ranking, component_matrices, pair_components, top_k
from memecmd_utils.schemas import Dialogue, Meme, describe_source
from memecmd_utils.settings import Profile, Strategy

KEPT_NUMBERS = 4_000_000
"""Cosines of a calibration half that are kept and looked through at every change of a weight (16 MB, some
20 ms): 24 dialogues x 17 turns x 200 memes take 0.3 million, half of the paper's run 400 million."""
DIALOGUES_AT_ONCE = 32
"""Whose turns are ranked together: a library on disk is read once for all of them."""


@dataclass(frozen=True)
class Settings:
    """Where the knobs stand. `theta0` is on the gate's scale (`score_scale` of the profile)."""

    weights: tuple[float, float, float, float]
    theta0: float
    penalty: float
    decay: float
    top_k: int
    strategy: Strategy


@dataclass(frozen=True)
class Pick:
    """A meme put at a turn; `components` are alpha, delta, beta, gamma (Eq. 18-21)."""

    turn: int
    meme_id: str
    rank: int | None
    score: float | None
    components: tuple[float, float, float, float]


@dataclass(frozen=True)
class View:
    """One dialogue under one setting: arrays have one value for each of `turns`, which are 2..T.

    `scores` are T of the best meme, `gate_scores` the same on the gate's scale; both are -inf at a turn
    without a usable summary. `sent` is what the gate decides, which Random does not ask.
    """

    dialogue: Dialogue
    settings: Settings
    scale: ScoreScale
    scale_is_current: bool
    """Whether mean and spread were fitted under these weights."""
    turns: tuple[int, ...]
    scores: np.ndarray
    gate_scores: np.ndarray
    thresholds: np.ndarray
    sent: np.ndarray
    picks: tuple[Pick, ...]


class Explorer:
    """Holds one open dialogue of a run; `select` redoes it under any settings."""

    def __init__(self, scored: Sequence[ScoredDialogue], index: MemeIndex, profile: Profile) -> None:
        """`scored` as from `placement.score_dialogues`; its gates are fitted once, as `place` does."""
        if not scored:
            raise ValueError("there is no dialogue to explore")
        self.index, self.profile = index, profile
        self._scored = {item.dialogue.dialogue_id: item for item in scored}
        self._half = placement.halves([item.dialogue for item in scored])
        self._calibrations = placement.calibrate(scored, profile)
        own = {half: calibration.scale for half, calibration in self._calibrations.items()}
        self._scales = {(half, profile.retrieval.weights): scale for half, scale in own.items()}
        self._last_scale = own
        self._theta0: dict[tuple, float] = {
            (half, profile.retrieval.weights, found.gate.penalty, found.gate.decay): found.gate.theta0
            for half, found in self._calibrations.items()
            if profile.retrieval.theta0 == "auto"
        }
        self._kept: dict[str, tuple[np.ndarray, np.ndarray] | None] = {}
        self.open(next(iter(self._scored)))

    @property
    def dialogues(self) -> dict[str, Dialogue]:
        """All dialogues by id, in the order of the run."""
        return {name: item.dialogue for name, item in self._scored.items()}

    @property
    def half(self) -> str:
        """Half of the open dialogue; its gate is fitted on the other one."""
        return self._half[self.open_id]

    @property
    def fold(self) -> str:
        """Half that the open dialogue's gate is fitted on, or `self` where the other has no score."""
        return self._calibrations[self.half].fold

    def open(self, dialogue_id: str) -> None:
        """Open a dialogue: its four matrices, if any are kept, replace those of the one before."""
        item = self._scored[dialogue_id]
        self.open_id = dialogue_id
        self._usable = _usable(item)
        self._queries = item.queries[self._usable]
        in_memory = self.index.search is None
        self._components = component_matrices(self.index, self._queries) if in_memory else None
        self._ranked: tuple[tuple, Ranking] | None = None

    def own_settings(self, strategy: Strategy | None = None) -> Settings:
        """The profile's settings for the open dialogue, with its half's theta0."""
        profile, gate = self.profile, self._calibrations[self.half].gate
        chosen = strategy or (profile.retrieval.strategies[0] if profile.retrieval.strategies else "greedy")
        return Settings(
            profile.retrieval.weights, gate.theta0, gate.penalty, gate.decay, profile.retrieval.top_k, chosen
        )

    def gate_range(self) -> tuple[float, float]:
        """Lowest and highest gate score of the best memes in the run, at the profile's weights."""
        values = np.concatenate(
            [
                self._calibrations[self._half[name]].scale.apply(item.top1[_usable(item)])
                for name, item in self._scored.items()
            ]
        )
        return float(values.min()), float(values.max())

    def select(self, settings: Settings) -> View:
        """Rank, gate and place in the open dialogue."""
        item, index = self._scored[self.open_id], self.index
        ranking = self._ranking(item, settings)
        scale, current = self.scale(settings.weights)
        gate_scores = scale.apply(ranking.scores[:, 0])
        trace = simulate(gate_scores, Gate(settings.theta0, settings.penalty, settings.decay))
        chosen = placement.choose(
            settings.strategy, ranking, trace.sent, len(index.meme_ids), self.profile, self.open_id
        )
        return View(
            dialogue=item.dialogue,
            settings=settings,
            scale=scale,
            scale_is_current=current,
            turns=item.turns,
            scores=ranking.scores[:, 0],
            gate_scores=gate_scores,
            thresholds=trace.thresholds,
            sent=trace.sent,
            picks=tuple(self._pick(item, settings, *choice) for choice in chosen),
        )

    def _ranking(self, item: ScoredDialogue, settings: Settings) -> Ranking:
        """Rank anew only if weights or K have changed."""
        key = (settings.weights, settings.top_k)
        if self._ranked is not None and self._ranked[0] == key:
            return self._ranked[1]
        found = top_k(self.index, self._queries, settings.weights, settings.top_k, self._components)
        out = found.at_all_turns(self._usable)
        self._ranked = (key, out)
        return out

    def _pick(self, item: ScoredDialogue, settings: Settings, row: int, meme: int, rank: int | None) -> Pick:
        parts = pair_components(self.index, item.queries[row : row + 1], np.array([[meme]]))[0, 0]
        score = round(float(parts @ np.asarray(settings.weights)), 9) if self._usable[row] else None
        return Pick(item.turns[row], self.index.meme_ids[meme], rank, score, tuple(map(float, parts)))

    def scale(self, weights: Sequence[float]) -> tuple[ScoreScale, bool]:
        """Scale of the gate for the open dialogue, and whether it was fitted under these weights.

        With `score_scale: standard` mean and spread follow the weights as long as the other half's
        cosines fit into `KEPT_NUMBERS`; beyond that they stay as last fitted (`fit`).
        """
        if self.profile.retrieval.score_scale == "raw":
            return ScoreScale(), True
        known = self._scales.get((self.half, tuple(weights)))
        if known is None and self._cached_components() is not None:
            known = self._fit_scale(weights, self._other_top1(weights))
        return (known, True) if known is not None else (self._last_scale[self.half], False)

    def fit(self, settings: Settings) -> Settings:
        """The settings with theta0 fitted to the wanted rate on the other half, under the same weights."""
        key = (self.half, settings.weights, settings.penalty, settings.decay)
        if key not in self._theta0:
            top1 = self._other_top1(settings.weights)
            scale = self._fit_scale(settings.weights, top1)
            self._theta0[key] = calibrate_theta0(
                [scale.apply(scores) for scores in top1],
                settings.penalty,
                settings.decay,
                self.profile.retrieval.wanted_rate,
            )
        return replace(settings, theta0=self._theta0[key])

    def _fit_scale(self, weights: Sequence[float], top1: Sequence[np.ndarray]) -> ScoreScale:
        scale = standard_scale(top1) if self.profile.retrieval.score_scale == "standard" else ScoreScale()
        self._scales[self.half, tuple(weights)] = self._last_scale[self.half] = scale
        return scale

    def _others(self) -> list[ScoredDialogue]:
        """Dialogues that the open one's gate is fitted on."""
        fold = self._calibrations[self.half].fold
        if fold == "self":
            return [item for item in self._scored.values() if _usable(item).any()]
        return [item for name, item in self._scored.items() if self._half[name] == fold]

    def _other_top1(self, weights: Sequence[float]) -> list[np.ndarray]:
        """Best scores of the dialogues that calibrate, one array a dialogue; -inf where there is none."""
        others, kept = self._others(), self._cached_components()
        at_once = DIALOGUES_AT_ONCE if kept is None else len(others)
        top1 = []
        for start in range(0, len(others), at_once):
            part = others[start : start + at_once]
            queries, components = kept or (_queries(part), None)
            best = iter(top_k(self.index, queries, weights, 1, components).scores[:, 0])
            top1 += [np.array([next(best) if u else -np.inf for u in _usable(item)]) for item in part]
        return top1

    def _cached_components(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Queries and cosines of the calibrating half's scored turns; None where they are too many."""
        if self.fold not in self._kept:
            queries = _queries(self._others())
            few = 4 * len(queries) * len(self.index.meme_ids) <= KEPT_NUMBERS
            small = few and self.index.search is None
            self._kept[self.fold] = (queries, component_matrices(self.index, queries)) if small else None
        return self._kept[self.fold]


def _usable(item: ScoredDialogue) -> np.ndarray:
    """Turns that could be ranked at all."""
    return np.isfinite(item.top1)


def _queries(dialogues: Sequence[ScoredDialogue]) -> np.ndarray:
    return np.concatenate([item.queries[_usable(item)] for item in dialogues])


# --- How an explorer's view is shown: chat, chart and facts as HTML, or all of it as one picture


PHONES = 3  # side by side in a still, and in one row
GAP = 16


def formula(weights: tuple[float, ...]) -> str:
    """T under these weights (Eq. 22): `T = +0.33 α +0.33 δ ...`."""
    terms = (f"{signed(w, 2)} {sign}" for w, sign in zip(weights, drawing.SIGNS, strict=True))
    return "T = " + " ".join(terms)


def provenance(dialogue: Dialogue) -> str:
    """Who made the turns and the summaries of a dialogue, in words."""
    turns = {turn.source for turn in dialogue.turns}
    summaries = {summary.source for summary in dialogue.summaries}
    of_turns, of_summaries = (", ".join(map(describe_source, sorted(part))) for part in (turns, summaries))
    if turns == summaries:
        return f"turns and summaries: {of_turns}"
    return f"turns: {of_turns}; summaries: {of_summaries}"


def chat(view: View, memes: Mapping[str, Meme], pictures: Thumbnails, meme_position: str = "before") -> str:
    """The dialogue with its memes in place, score and threshold below every turn."""
    picks = {pick.turn: pick for pick in view.picks}
    notes = _notes(view)
    names = {"A": view.dialogue.name_a or "A", "B": view.dialogue.name_b or "B"}
    turns = [
        ShownTurn(
            number=turn.turn,
            side="right" if turn.speaker == "A" else "left",
            name=names[turn.speaker],
            text=turn.text,
            gloss=turn.gloss,
            note=notes.get(turn.turn, f"t = {turn.turn}"),
            meme=_describe_meme(picks[turn.turn], memes, pictures) if turn.turn in picks else None,
        )
        for turn in view.dialogue.turns
    ]
    return drawing.chat(turns, meme_position)


def _describe_meme(pick: Pick, memes: Mapping[str, Meme], pictures: Thumbnails) -> ShownMeme:
    lines = ["no score" if pick.score is None else f"T {signed(pick.score)}"]
    lines += [f"rank {pick.rank}"] if pick.rank else []
    if pick.score is not None:
        parts = [
            f"{sign} {signed(part, 2)}" for sign, part in zip(drawing.SIGNS, pick.components, strict=True)
        ]
        lines += [" ".join(parts[:2]), " ".join(parts[2:])]
    meme = memes[pick.meme_id]
    return ShownMeme(pick.meme_id, pictures[pick.meme_id], caption_of(meme), tuple(lines), meme.gloss)


def _notes(view: View) -> dict[int, str]:
    notes = {}
    for turn, score, theta in zip(view.turns, view.gate_scores, view.thresholds, strict=True):
        if score == -float("inf"):
            notes[turn] = f"t = {turn} · no usable summary"
        elif view.settings.strategy == "random":
            notes[turn] = f"t = {turn} · {signed(score, 2)}, no gate asked"
        else:
            sign = ">" if score > theta else "≤"
            notes[turn] = f"t = {turn} · {signed(score, 2)} {sign} θ {signed(theta, 2)}"
    return notes


def chart(view: View) -> str:
    """Scores of the best memes and the threshold along the turns; filled where a meme is placed."""
    placed = {pick.turn for pick in view.picks}
    sent = [turn in placed for turn in view.turns]
    gated = view.settings.strategy != "random"
    return drawing.gate_chart(view.turns, view.gate_scores, view.thresholds, sent, gated)


def facts(view: View, explorer: Explorer, theta0_is_fitted: bool) -> str:
    """The numbers beside the chart."""
    n, turns = len(view.picks), len(view.turns)
    scores = [pick.score for pick in view.picks if pick.score is not None]
    different = len({pick.meme_id for pick in view.picks})
    wanted = f"fitted on {_fold(explorer)} to a rate of {explorer.profile.retrieval.wanted_rate:.0%}"
    rows = [
        ("memes", f"{n} of {turns} turns ({n / turns:.0%}), {different} different" if turns else "no turn"),
        ("mean T of these", signed(sum(scores) / len(scores)) if scores else "–"),
        ("score", formula(view.settings.weights)),
        ("gate's scale", _scale(view, explorer)),
        ("θ0", wanted if theta0_is_fitted else "set by hand"),
        ("texts", provenance(view.dialogue)),
    ]
    return drawing.table(rows)


def _fold(explorer: Explorer) -> str:
    return "this dialogue's own half" if explorer.fold == "self" else f"the other half ({explorer.fold})"


def _scale(view: View, explorer: Explorer) -> str:
    if explorer.profile.retrieval.score_scale == "raw":
        return "T as it is"
    text = f"(T {signed(-view.scale.mean)}) / {view.scale.std:.3f}, "
    if view.scale_is_current:
        return f"{text}fitted on {_fold(explorer)} under these weights"
    return f"{text}fitted under earlier weights: the library is too large to follow each move; fit θ0 anew"


def still(view: View, files: Mapping[str, Path], meme_position: str = "before") -> Image.Image:
    """The chart above the chat, which is cut into phone screens where a time stamp stands."""
    memes = {pick.turn: pick.meme_id for pick in view.picks}
    spec = drawing.chat_from_dialogue(view.dialogue, memes, meme_position=meme_position)
    starts = [place for place, bubble in enumerate(spec.bubbles) if bubble.stamp]
    cuts = zip(starts, [*starts[1:], None], strict=True)
    parts = [spec.model_copy(update={"bubbles": spec.bubbles[a:b]}) for a, b in cuts]
    phones = [drawing.draw_chat(part, files) for part in parts]
    placed = {pick.turn for pick in view.picks}
    trace = gate_trace(
        view.dialogue.dialogue_id, view.gate_scores, view.thresholds, [turn in placed for turn in view.turns]
    )
    with Image.open(io.BytesIO(drawing.figure_png(trace))) as opened:
        plot = opened.convert("RGB")
    rows = [phones[start : start + PHONES] for start in range(0, len(phones), PHONES)]
    width = max(plot.width, *(sum(p.width + GAP for p in row) - GAP for row in rows))
    top = plot.height + 44
    sheet = Image.new("RGB", (width, top + sum(max(p.height for p in row) + GAP for row in rows)), "white")
    sheet.paste(plot, (0, 0))
    pen = ImageDraw.Draw(sheet)
    setting = view.settings
    words = (
        f"{setting.strategy}, θ0 = {setting.theta0:.2f}, Δ = {setting.penalty:g}, λ = {setting.decay:g}, "
        f"K = {setting.top_k}; {formula(setting.weights)}"
    )
    for line, text in enumerate((words, provenance(view.dialogue))):
        pen.text((8, plot.height + 14 + 20 * line), text, font=drawing.pil_font(14), fill="#333", anchor="ls")
    for row in rows:
        for number, phone in enumerate(row):
            sheet.paste(phone, (number * (phone.width + GAP), top))
        top += max(p.height for p in row) + GAP
    return sheet
