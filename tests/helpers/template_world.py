"""Made-up template memes in the forms of ImgFlip575K, CM50, MemeCap and FigMemes; no text is real.

Records and replies for tests of single functions; and for `make templates` whole data sets with drawn memes,
a simulated annotator and tiny random models.
"""

import gzip
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import appendix
import pandas as pd
import tiny_models
from fault_server import Answer, chat_reply
from PIL import Image, ImageDraw
from whole_pipeline import schema_of

from memecmd_utils.template_memes.data_sets import FIGMEMES_LABELS

TEMPLATES = ("Sad-Kettle", "Dont-Feed-Dave", "Tall-Goat", "Loud-Tuba", "Late-Bus", "Wet-Sock")
NAMES = {"Dont-Feed-Dave": "Don't Feed Dave"}


def title_of(template):
    """The name as people write it: with the apostrophe that the file name lacks."""
    return NAMES.get(template, template.replace("-", " "))


def record(template, number, votes=7, views=400, title=None, boxes=("when the", "kettle sings")):
    """One record as the source nests it."""
    name = f"{template[:2].lower()}{number:05d}"
    return {
        "url": f"https://i.imgflip.com/{name}.jpg",
        "post": f"https://imgflip.com/i/{name}",
        "metadata": {
            "views": f"{views:,}",
            "img-votes": str(votes) if votes else 0,
            "title": f"made-up {name}" if title is None else title,
            "author": "nobody-in-particular",
        },
        "boxes": list(boxes),
    }


def world(seed=3, sizes=(900, 700, 600, 500, 400, 300)):
    """Records by template: votes mostly low, half of the titles the template's name, some texts short."""
    chance = random.Random(seed)
    found = {}
    for template, size in zip(TEMPLATES, sizes, strict=True):
        rows = []
        for number in range(size):
            votes = int(chance.expovariate(0.22))
            # Each template has a share of its own of kept titles, so that shares tell rules apart.
            named = chance.random() < (0.85 if template in NAMES else 0.2 + 0.1 * TEMPLATES.index(template))
            words = ["word"] * chance.choice([1, 2, 3, 5, 8])
            title = title_of(template) if named else f"{template} made up {number}"
            rows.append(
                record(template, number, votes, chance.randint(50, 4000), title, [" ".join(words), " "])
            )
        found[template] = rows
    return found


def write_source(folder, records):
    """`dataset/memes/<template>.json`, as the source lays it out; gives the checkout."""
    place = folder / "checkout" / "dataset"
    (place / "memes").mkdir(parents=True)
    for template, rows in records.items():
        (place / "memes" / f"{template}.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder / "checkout"


def annotated(template, raw):
    """A record as CM50 publishes it, with a made-up reading."""
    name = raw["url"].rpartition("/")[2]
    return {
        "image_dir": f"../data/meme_retrieval_data/dataset/meme_images/{name}",
        "visual elaboration": "A kettle stands on a stove.",
        "detected text": "\n".join(raw["boxes"]),
        "meaning of the meme": "The kettle is said to be a singer.",
        "literary device": ["irony", "allusion"],
        "emotion word": "joy",
        "about_section": "",
        "url": raw["url"],
        "post": raw["post"],
        "metadata": raw["metadata"],
        "type": template,
        "ocr": raw["boxes"],
        "title": raw["metadata"]["title"],
    }


def write_cm50(folder, pairs):
    """A validation set of (template, record) pairs and the texts of their templates, as CM50 lays it out."""
    place = folder / "cm50" / "data"
    data = place / "meme_retrieval_data"
    (data / "dataset" / "templates" / "img").mkdir(parents=True)
    text = json.dumps([annotated(template, raw) for template, raw in pairs])
    with zipfile.ZipFile(data / "validation_set.zip", "w") as archive:
        archive.writestr("__MACOSX/._validation_dev.json", b"\0\0")
        archive.writestr("validation_set/validation_dev.json", text)
    about = {name: {"about": f"What {name} means.", "example meme": ""} for name, _ in pairs}
    (place / "50_template_info.json").write_text(json.dumps(about), encoding="utf-8")
    for name in about:
        (data / "dataset" / "templates" / "img" / f"{name}.jpg").write_bytes(b"not opened here")
    return folder / "cm50"


def memecap_row(name: str = "a1", **changes) -> dict:
    """A record of MemeCap."""
    return {
        "category": "memes",
        "img_captions": [f"a drawn cat in {name}"],
        "meme_captions": [f"{name} is tired.", f"{name} wants the weekend."],
        "title": f"Title of {name}",
        "url": f"https://example.org/{name}.png",
        "img_fname": f"memes_{name}.png",
        "metaphors": [{"metaphor": "cat", "meaning": "the poster"}],
        "post_id": name,
    } | changes


FIVE = {
    "explanation": "A long wait.",
    "visual elaboration": "A heron stands at a bus stop.",
    "detected text": "text, below",
    "meaning of the meme": "The poster waits for too long.",
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


# --- whole data sets, for `make templates`

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
    imgflip = write_source(folder, records)
    held_out = [(t, r) for t, mine in records.items() for r in mine[MEMES - HELD_OUT : MEMES]]
    cm50 = write_cm50(folder, held_out)
    data = cm50 / "data" / "meme_retrieval_data"
    (data / "validation_set.zip").unlink()  # its readings are all alike
    for part, said in rows.items():
        (data / f"{part}_dev.json.gz").write_bytes(gzip.compress(json.dumps(said).encode()))
    for number, template in enumerate(TEMPLATES):
        blank(number).save(data / "dataset" / "templates" / "img" / f"{template}.jpg", quality=95)
    places = imgflip, cm50, _memecap(folder, images), *_figmemes(folder), images
    names = "imgflip", "published", "memecap", "figmemes", "figmemes_labels", "images"
    return dict(zip(names, map(str, places), strict=True))


def _memecap(folder: Path, images: Path) -> Path:
    rows = []
    for n in range(CAPS + 1):
        number = n % len(TEMPLATES)
        if n < CAPS:
            meme(number, n, f"{WHAT[n % 6]} twice").save(images / f"memes_{n}.png")
        said = [f"The poster says that {meaning(number, n)}.", f"{title_of(TEMPLATES[number])} {n}."]
        title, shown = f"{WHO[n % 6]} {WHAT[(n + 2) % 6]} {n}", [about(TEMPLATES[number])]
        rows.append(memecap_row(str(n), title=title, img_captions=shown, meme_captions=said))
    (folder / "memecap").mkdir()
    (folder / "memecap" / "memes-test.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder / "memecap"


def _figmemes(folder: Path) -> tuple[Path, Path]:
    """The split and the labels of FigMemes: its test set are the pictures of MemeCap under their names."""
    (folder / "figmemes").mkdir()
    names = [f"memes_{n}.png" for n in range(CAPS)]
    split = pd.DataFrame({"img_name": [*names, "other.png"], "split": ["test"] * CAPS + ["train"]})
    split.to_csv(folder / "figmemes" / "standard_split.tsv", sep="\t", index=False)
    marks = {label: [int((n + i) % 3 == 0) for n in range(CAPS)] for i, label in enumerate(FIGMEMES_LABELS)}
    labels = folder / "figmemes_annotations.tsv"
    pd.DataFrame({"img_name": names, **marks}).to_csv(labels, sep="\t", index=False)
    return folder / "figmemes", labels


def models(folder: Path) -> dict[str, str]:
    """Tiny random models of the real classes, each a folder or file below `folder`."""
    texts = [meaning(number, n) for number in range(6) for n in range(CAPS)]
    made = {
        "clip": tiny_models.clip_folder("clip", folder / "tiny-clip"),
        "baseline": tiny_models.clip_folder("align", folder / "tiny-align", seed=1),
        "bert": tiny_models.bert_folder(
            folder / "tiny-bert", " ".join([*texts, "The poster says that"]).split()
        ),
    }
    return {name: str(path) for name, path in made.items()}


MEANING = "The poster says that one sock laughs."


def annotator(body: dict[str, Any]) -> Answer:
    """A simulated model: the same reply to every meme, in the form that was asked for."""
    five = FIVE | {"meaning of the meme": MEANING}
    said = {"ThreeStep12Reply": STEPS, "FiveTasksReply": five}
    return Answer(chat_reply(json.dumps(said[schema_of(body)])))
