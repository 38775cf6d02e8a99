"""Made-up records in the forms of ImgFlip575K, CM50 and MemeCap, and readings; no text is from there."""

import json
import random
import zipfile

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
