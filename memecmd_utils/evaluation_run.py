"""Stage 05 over a run: opens judges and scorers of the profile."""

from collections.abc import Callable, Mapping, Sequence

from PIL import Image

from memecmd_utils import (
    chinese_clip,
    consistency,
    evaluation,
    judges,
    llm,
    paths,
    screenshots,
)
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Consistency, Dialogue, Meme, Placement, Rating


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
    spec = screenshots.chat_from_dialogue(dialogue, mine, n_turns, meme_position=run.profile.meme_position)
    return screenshots.spec_sha256(spec), screenshots.draw(spec, meme_files(run, memes))


def drawing(run: Run, memes: Mapping[str, Meme]) -> evaluation.Draw:
    """What specifies, and at need draws, the screenshot that a judge with eyes is shown."""
    files = meme_files(run, memes)

    def draw(dialogue: Dialogue, shown: Sequence[Placement], n_turns: int) -> tuple[str, Callable[[], bytes]]:
        spec = screenshots.chat_from_dialogue(
            dialogue, shown, n_turns, meme_position=run.profile.meme_position
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
    for number, judge in enumerate(run.profile.judges):
        with run.chat("judge", "evaluation", number) as chat:
            name = judges.numbered(f"{chat.backend.model.name} {judge.kind}", names)
            by_meme = judge.kind == "yes_no" or run.profile.judge_unit == "meme"
            shown = evaluation.to_judge(placements, run.profile) if by_meme else placements
            common = (shown, dialogues, memes, chat, run.profile, name)
            if judge.kind == "yes_no":
                work = evaluation.rate_yes_no(*common)
            else:
                sees = judge.llm == "openai" and run.endpoint("judge", number).vision
                work = evaluation.rate_screenshots(*common, draw if sees else None)
            mine = llm.run(work)
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
    checkpoint = paths.root / profile.clip_checkpoint if profile.clip_checkpoint else None
    folder = paths.interim / "clip"
    here = chinese_clip.weights_file(profile.clip_model, folder, checkpoint).is_file()
    # A replay computes what is not recorded, but fetches no weights for it.
    mode = run.vector_mode if here else profile.mode
    return chinese_clip.ChineseClipScorer(
        profile.clip_model,
        lambda meme: files[meme.meme_id],
        folder,
        checkpoint,
        run.read_dirs,
        None if mode == "recorded" else run.write_dir,
        mode,
        run.folder,
    )


def measure(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> tuple[list[Consistency], str]:
    """Consistency of all placed memes, and the scorer's name with what it could not read."""
    profile = run.profile
    if profile.consistency == "cn_clip":
        scorer = clip_scorer(run, memes)
        rows = consistency.measure(placements, dialogues, memes, scorer, profile)
        return rows, f"{scorer.name}{cut_texts(scorer.truncated)}"
    embedder = run.embedder(profile.consistency_embedder)
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
