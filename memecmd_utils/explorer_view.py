"""How an explorer's view is shown: chat, chart and facts as HTML, or all of it as one picture."""

import io
from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw

from memecmd_utils import chat_html, fonts, gate_figures, plots, screenshots
from memecmd_utils.chat_html import ShownMeme, ShownTurn, Thumbnails, signed
from memecmd_utils.explorer import Explorer, Pick, View
from memecmd_utils.provenance import describe_source
from memecmd_utils.schemas import Dialogue, Meme, Placement

PHONES = 3  # side by side in a still, and in one row
GAP = 16


def caption_of(meme: Meme) -> str:
    """What stands on a meme, or what is known of its picture."""
    return meme.text or meme.picture_note or meme.meme_id


def formula(weights: tuple[float, ...]) -> str:
    """T under these weights (Eq. 22): `T = +0.33 α +0.33 δ ...`."""
    terms = (f"{signed(w, 2)} {sign}" for w, sign in zip(weights, chat_html.SIGNS, strict=True))
    return "T = " + " ".join(terms)


def provenance(dialogue: Dialogue) -> str:
    """Who made the turns and the summaries of a dialogue, in words."""
    turns = {turn.source for turn in dialogue.turns}
    summaries = {summary.source for summary in dialogue.summaries}
    said = ", ".join(map(describe_source, sorted(turns)))
    if turns == summaries:
        return f"turns and summaries: {said}"
    return f"turns: {said}; summaries: {', '.join(map(describe_source, sorted(summaries)))}"


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
            meme=_shown_meme(picks[turn.turn], memes, pictures) if turn.turn in picks else None,
        )
        for turn in view.dialogue.turns
    ]
    return chat_html.chat(turns, meme_position)


def _shown_meme(pick: Pick, memes: Mapping[str, Meme], pictures: Thumbnails) -> ShownMeme:
    lines = ["no score" if pick.score is None else f"T {signed(pick.score)}"]
    lines += [f"rank {pick.rank}"] if pick.rank else []
    if pick.score is not None:
        parts = [
            f"{sign} {signed(part, 2)}" for sign, part in zip(chat_html.SIGNS, pick.components, strict=True)
        ]
        lines += [" ".join(parts[:2]), " ".join(parts[2:])]
    caption = caption_of(memes[pick.meme_id])
    return ShownMeme(pick.meme_id, pictures[pick.meme_id], caption, tuple(lines))


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
    return chat_html.gate_chart(view.turns, view.gate_scores, view.thresholds, sent, gated)


def facts(view: View, explorer: Explorer, theta0_is_fitted: bool) -> str:
    """The numbers beside the chart."""
    n, turns = len(view.picks), len(view.turns)
    scores = [pick.score for pick in view.picks if pick.score is not None]
    different = len({pick.meme_id for pick in view.picks})
    wanted = f"fitted on {_fold(explorer)} to a rate of {explorer.profile.wanted_rate:.0%}"
    rows = [
        ("memes", f"{n} of {turns} turns ({n / turns:.0%}), {different} different" if turns else "no turn"),
        ("mean T of these", signed(sum(scores) / len(scores)) if scores else "–"),
        ("score", formula(view.settings.weights)),
        ("gate's scale", _scale(view, explorer)),
        ("θ0", wanted if theta0_is_fitted else "set by hand"),
        ("texts", provenance(view.dialogue)),
    ]
    return chat_html.table(rows)


def _fold(explorer: Explorer) -> str:
    return "this dialogue's own half" if explorer.fold == "self" else f"the other half ({explorer.fold})"


def _scale(view: View, explorer: Explorer) -> str:
    if explorer.profile.score_scale == "raw":
        return "T as it is"
    text = f"(T {signed(-view.scale.mean)}) / {view.scale.std:.3f}, "
    if view.scale_is_current:
        return f"{text}fitted on {_fold(explorer)} under these weights"
    return f"{text}fitted under earlier weights: the library is too large to follow each move; fit θ0 anew"


# --- a picture of it all ------------------------------------------------------------------------------


def still(view: View, files: Mapping[str, Path], meme_position: str = "before") -> Image.Image:
    """The chart above the chat, which is cut into phone screens where a time stamp stands."""
    placements = [_placement(pick, view) for pick in view.picks]
    spec = screenshots.chat_from_dialogue(view.dialogue, placements, meme_position=meme_position)
    starts = [place for place, bubble in enumerate(spec.bubbles) if bubble.stamp]
    cuts = zip(starts, [*starts[1:], None], strict=True)
    parts = [spec.model_copy(update={"bubbles": spec.bubbles[a:b]}) for a, b in cuts]
    phones = [screenshots.draw(part, files) for part in parts]
    placed = {pick.turn for pick in view.picks}
    trace = gate_figures.gate_trace(
        view.dialogue.dialogue_id, view.gate_scores, view.thresholds, [turn in placed for turn in view.turns]
    )
    with Image.open(io.BytesIO(plots.png_bytes(trace))) as opened:
        plot = opened.convert("RGB")
    rows = [phones[start : start + PHONES] for start in range(0, len(phones), PHONES)]
    width = max(plot.width, *(sum(p.width + GAP for p in row) - GAP for row in rows))
    top = plot.height + 44
    sheet = Image.new("RGB", (width, top + sum(max(p.height for p in row) + GAP for row in rows)), "white")
    sheet.paste(plot, (0, 0))
    pen = ImageDraw.Draw(sheet)
    setting = view.settings
    said = (
        f"{setting.strategy}, θ0 = {setting.theta0:.2f}, Δ = {setting.penalty:g}, λ = {setting.decay:g}, "
        f"K = {setting.top_k}; {formula(setting.weights)}"
    )
    for line, text in enumerate((said, provenance(view.dialogue))):
        pen.text((8, plot.height + 14 + 20 * line), text, font=fonts.pil_font(14), fill="#333", anchor="ls")
    for row in rows:
        for number, phone in enumerate(row):
            sheet.paste(phone, (number * (phone.width + GAP), top))
        top += max(p.height for p in row) + GAP
    return sheet


def _placement(pick: Pick, view: View) -> Placement:
    speaker = next(turn.speaker for turn in view.dialogue.turns if turn.turn == pick.turn)
    return Placement(
        source="computed",
        dialogue_id=view.dialogue.dialogue_id,
        turn=pick.turn,
        speaker=speaker,
        strategy=view.settings.strategy,
        meme_id=pick.meme_id,
        rank=pick.rank,
        score=pick.score,
        gate_score=None,
        threshold=None,
        fold="none",
    )
