"""Made-up template memes in the forms of ImgFlip575K, CM50, MemeCap and FigMemes; no text is real.

Records and replies for tests of single functions, and for readers and `make templates` whole data sets with
drawn memes and a simulated annotator.
"""

import gzip
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import appendix
import pandas as pd
from fault_replies import Asked
from fault_server import Answer, chat_reply
from PIL import Image, ImageDraw

from memecmd_utils.template_memes import FIGMEMES_LABELS

TEMPLATES = ("Sad-Kettle", "Dont-Feed-Dave", "Tall-Goat", "Loud-Tuba", "Late-Bus", "Wet-Sock")
MEMES, HELD_OUT, UNPOPULAR = 12, 3, 2
"""Of each template: memes that pass the filter, how many of them are for validation, memes without votes."""
CAPS = 12
"""Memes of MemeCap with a picture; one more has none."""
WHO = ("the cook", "a goat", "my boss", "the bus", "a tuba", "one sock")
WHAT = ("sings", "waits", "is late", "counts money", "asks again", "hides")
AUTHOR = "nobody-in-particular"
FIVE = {
    "explanation": "A long wait.",
    "visual elaboration": "A heron stands at a bus stop.",
    "detected text": "text, below",
    "meaning of the meme": "The poster says that one sock laughs.",
    "literary device": "hyperbole",
    "emotion word": "sadness",
}
STEPS = {
    "multiple choice": ["irony", "contrast"],
    "extraction of answer": ["irony", "contrast"],
    "choice by choice comparison": [
        {"label": "irony", "why": "it is meant otherwise", "explains": "yes"},
        {"label": "contrast", "why": "nothing is set side by side", "explains": "no"},
    ],
    "literary device": ["irony"],
}
"""With `FIVE`: what a made-up annotator replies to the two prompts that are asked by default."""


def annotator(body: dict[str, Any]) -> Answer:
    """A simulated model: the same reply to every meme, in the form that was asked for."""
    reply = {"ThreeStep12Reply": STEPS, "FiveTasksReply": FIVE}[Asked(body).name]
    return Answer(chat_reply(json.dumps(reply)))


def record(template, number, votes=7, views=400, title=None, boxes=("when the", "kettle sings")):
    """One record as the source nests it."""
    name = f"{template[:2].lower()}{number:05d}"
    return {
        "url": f"https://i.imgflip.com/{name}.jpg",
        "post": f"https://imgflip.com/i/{name}",
        "metadata": {
            "views": f"{views:,}", "img-votes": str(votes) if votes else 0, "author": AUTHOR,
            "title": f"made-up {name}" if title is None else title,
        },
        "boxes": list(boxes),
    }  # fmt: skip


def world() -> dict[str, list[dict]]:
    """Records by template: votes mostly low, many titles the template's name, some texts short."""
    chance, records = random.Random(3), {}
    for number, template in enumerate(TEMPLATES):
        records[template] = []
        for n in range(900 - 120 * number):
            votes, views = int(chance.expovariate(0.22)), chance.randint(50, 4000)
            # Each template has a share of its own of kept titles, so that shares tell rules apart.
            title = template.replace("-", " ") if chance.random() < 0.2 + 0.1 * number else f"made up {n}"
            boxes = " ".join(["word"] * chance.choice([1, 2, 3, 5, 8])), " "
            records[template].append(record(template, n, votes, views, title, boxes))
    return records


def annotated(template, raw, meaning):
    """A record as CM50 publishes it, with a made-up reading."""
    said = {"visual elaboration": "A kettle stands on a stove.", "detected text": "\n".join(raw["boxes"])}
    said |= {"literary device": ["irony", "allusion"], "emotion word": "joy", "meaning of the meme": meaning}
    about = {name: raw[name] for name in ("url", "post", "metadata")}
    return said | about | {"type": template, "ocr": raw["boxes"], "title": raw["metadata"]["title"]}


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


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def data_sets(folder: Path) -> dict[str, str]:
    """ImgFlip575K, CM50 with its training file, MemeCap and FigMemes below `folder`; keys of the profile.

    Pictures of Imgflip's and of MemeCap's memes lie in one folder, as `mtrclip.images` wants it.
    """
    images, cm50 = folder / "pictures", folder / "cm50" / "data"
    blanks = cm50 / "meme_retrieval_data" / "dataset" / "templates" / "img"
    for place in (images, blanks):
        place.mkdir(parents=True)
    train, validation = [], []
    for number, template in enumerate(TEMPLATES):
        records = [record(template, MEMES + n, votes=0) for n in range(UNPOPULAR)]
        for n in range(MEMES):
            words = f"{WHO[n % 6]} {WHAT[(n + number) % 6]}"
            raw = record(template, n, votes=7 + n, title=f"when {words} {n}", boxes=(words, f"again {n}"))
            meme(number, n, words).save(images / f"{template[:2].lower()}{n:05d}.png")
            part = validation if n >= MEMES - HELD_OUT else train
            part.append(annotated(template, raw, meaning(number, n)))
            records.append(raw)
        _write(folder / "checkout" / "dataset" / "memes" / f"{template}.json", records)
        blank(number).save(blanks / f"{template}.jpg", quality=95)
    _write(cm50 / "50_template_info.json", {name: {"about": f"What {name} means."} for name in TEMPLATES})
    (cm50 / "train_dev.json.gz").write_bytes(gzip.compress(json.dumps(train).encode()))
    with zipfile.ZipFile(cm50 / "validation_set.zip", "w") as archive:
        archive.writestr("__MACOSX/._validation_dev.json", b"\0\0")
        archive.writestr("validation_set/validation_dev.json", json.dumps(validation))

    names, rows = [f"memes_{n}.png" for n in range(CAPS)], []
    for n in range(CAPS + 1):
        number = n % len(TEMPLATES)
        if n < CAPS:
            meme(number, n, f"{WHAT[n % 6]} twice").save(images / names[n])
        captions = [f"The poster says that {meaning(number, n)}.", f"{TEMPLATES[number]} {n}."]
        row = {"post_id": str(n), "img_fname": f"memes_{n}.png", "url": f"https://example.org/{n}.png"}
        row |= {"title": f"{WHO[n % 6]} {n}", "img_captions": [f"What {TEMPLATES[number]} means."]}
        rows.append(row | {"meme_captions": captions, "metaphors": []})
    _write(folder / "memecap" / "memes-test.json", rows)
    figmemes, labels = folder / "figmemes" / "standard_split.tsv", folder / "figmemes_annotations.tsv"
    figmemes.parent.mkdir()
    split = pd.DataFrame({"img_name": [*names, "other.png"], "split": ["test"] * CAPS + ["train"]})
    split.to_csv(figmemes, sep="\t", index=False)
    marks = {label: [int((n + i) % 3 == 0) for n in range(CAPS)] for i, label in enumerate(FIGMEMES_LABELS)}
    pd.DataFrame({"img_name": names, **marks}).to_csv(labels, sep="\t", index=False)
    places = folder / "checkout", folder / "cm50", folder / "memecap", figmemes.parent, labels, images
    keys = "imgflip", "published", "memecap", "figmemes", "figmemes_labels", "images"
    return dict(zip(keys, map(str, places), strict=True))


def fit_rule(root: Path, **constants: str) -> None:
    """In a checkout's own notebooks: the rule for a world of so few memes, and other values of constants."""
    rule = f"TemplateRule(min_memes={MEMES}, validation_share={HELD_OUT / MEMES})"
    appendix.edit(root / "notebooks" / "07b_templates_with_data.ipynb", rule=rule, **constants)
