"""A made-up world for `make templates`: data sets with drawn memes, and tiny random models.

No text is from the real data sets.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import appendix
import made_templates
import tiny_clips
import tiny_metrics
from fault_server import Answer, chat_reply
from made_templates import FIVE, STEPS, TEMPLATES, annotated, record, title_of
from PIL import Image, ImageDraw
from whole_pipeline import schema_of

from memecmd_utils.template_memes.data_sets import FIGMEMES_LABELS

MEMES, HELD_OUT, UNPOPULAR = 12, 3, 2
"""Of each template: memes that pass the filter, how many of them are for validation, memes without votes."""
CAPS = 12
"""Memes of MemeCap with a picture; one more has none."""
WHO = ("the cook", "a goat", "my boss", "the bus", "a tuba", "one sock")
WHAT = ("sings", "waits", "is late", "counts money", "asks again", "hides")


def fit_rule(root: Path, **constants: str) -> None:
    """In a checkout's own notebooks: the rule for a world of so few memes, and other values of constants."""
    rule = f"template_memes.TemplateRule(min_memes={MEMES}, validation_share={HELD_OUT / MEMES})"
    appendix.edit(root / "notebooks" / "07b_templates_with_data.ipynb", rule=rule, **constants)


def about(template: str) -> str:
    return f"What {template} means."


def blank(number: int) -> Image.Image:
    """The picture of a template: its own ground, with a shape in the middle."""
    picture = Image.new("RGB", (96, 80), (40 * number, 220 - 35 * number, 90 + 25 * (number % 3)))
    pen, place = ImageDraw.Draw(picture), (28 + 3 * number, 24, 68, 64)
    (pen.ellipse if number % 2 else pen.rectangle)(place, fill=(255, 255 - 40 * number, 30 * number))
    return picture


def meme(number: int, n: int, words: str) -> Image.Image:
    """A template's picture with words on it, and a mark by which a tiny model can tell memes apart."""
    picture = blank(number)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((4 + 7 * n, 68, 10 + 7 * n, 78), fill=(20 * n, 250 - 20 * n, 128))
    pen.text((4, 4), words, fill="white")
    return picture


def meaning(number: int, n: int) -> str:
    return f"{WHO[n % 6]} {WHAT[(n // 6 + number) % 6]} and {WHO[number]} laughs {n}"


def data_sets(folder: Path) -> dict[str, Any]:
    """ImgFlip575K, CM50 with its training file, MemeCap and FigMemes below `folder`; keys of the profile.

    Pictures of Imgflip's and of MemeCap's memes lie in one folder, as `mtrclip.images` wants it.
    """
    images = folder / "pictures"
    images.mkdir(parents=True)
    records, rows = {}, {"train": [], "validation": []}
    for number, template in enumerate(TEMPLATES):
        mine = []
        for n in range(MEMES):
            words = f"{WHO[n % 6]} {WHAT[(n + number) % 6]}"
            raw = record(template, n, votes=7 + n, title=f"when {words} {n}", boxes=(words, f"again {n}"))
            meme(number, n, words).save(images / f"{template[:2].lower()}{n:05d}.png")
            row = annotated(template, raw) | {"meaning of the meme": meaning(number, n)}
            rows["validation" if n >= MEMES - HELD_OUT else "train"].append(row)
            mine.append(raw)
        records[template] = mine + [record(template, MEMES + n, votes=0) for n in range(UNPOPULAR)]
    imgflip = made_templates.write_source(folder, records)
    held_out = [(t, r) for t, mine in records.items() for r in mine[MEMES - HELD_OUT : MEMES]]
    cm50 = made_templates.write_cm50(folder, held_out)
    data = cm50 / "data" / "meme_retrieval_data"
    (data / "validation_set.zip").unlink()  # its readings are all alike
    for part, said in rows.items():
        (data / f"{part}_dev.json.gz").write_bytes(gzip.compress(json.dumps(said).encode()))
    for number, template in enumerate(TEMPLATES):
        blank(number).save(data / "dataset" / "templates" / "img" / f"{template}.jpg", quality=95)
    return {
        "imgflip": str(imgflip),
        "published": str(cm50),
        "memecap": str(_memecap(folder, images)),
        "figmemes": str(_splits(folder)),
        "figmemes_labels": str(_labels(folder)),
        "images": str(images),
    }


def _memecap(folder: Path, images: Path) -> Path:
    rows = []
    for n in range(CAPS + 1):
        number = n % len(TEMPLATES)
        if n < CAPS:
            meme(number, n, f"{WHAT[n % 6]} twice").save(images / f"memes_{n}.png")
        said = (f"The poster says that {meaning(number, n)}.", f"{title_of(TEMPLATES[number])} {n}.")
        row = {"post_id": f"p{n}", "title": f"{WHO[n % 6]} {WHAT[(n + 2) % 6]} {n}", "metaphors": []}
        row |= {"url": f"https://example.org/{n}", "img_fname": f"memes_{n}.png"}
        rows.append(row | {"img_captions": [about(TEMPLATES[number])], "meme_captions": said})
    (folder / "memecap").mkdir()
    (folder / "memecap" / "memes-test.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder / "memecap"


def _splits(folder: Path) -> Path:
    """The split of FigMemes: its test set are the pictures of MemeCap under their names."""
    (folder / "figmemes").mkdir()
    lines = ["img_name\tsplit", *(f"memes_{n}.png\ttest" for n in range(CAPS)), "other.png\ttrain"]
    (folder / "figmemes" / "standard_split.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "figmemes"


def _labels(folder: Path) -> Path:
    """Labels as FigMemes has them, under the names of the matched pictures."""
    lines = ["\t".join(("img_name", *FIGMEMES_LABELS))]
    for n in range(CAPS):
        lines.append("\t".join((f"memes_{n}.png", *(str(int((n + i) % 3 == 0)) for i in range(6)))))
    path = folder / "figmemes_annotations.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def models(folder: Path) -> dict[str, str]:
    """Tiny random models of the real classes, each a folder or file below `folder`."""
    texts = [meaning(number, n) for number in range(6) for n in range(CAPS)]
    made = {
        "clip": tiny_clips.folder_of("clip", folder / "tiny-clip"),
        "baseline": tiny_clips.folder_of("align", folder / "tiny-align", seed=1),
        "bert": tiny_metrics.bert_folder(folder / "tiny-bert", [*texts, "The poster says that"]),
    }
    return {name: str(path) for name, path in made.items()}


MEANING = "The poster says that one sock laughs."


def annotator(body: dict[str, Any]) -> Answer:
    """A simulated model: the same reply to every meme, in the form that was asked for."""
    five = FIVE | {"meaning of the meme": MEANING}
    said = {"ThreeStep12Reply": STEPS, "FiveTasksReply": five}
    return Answer(chat_reply(json.dumps(said[schema_of(body)])))
