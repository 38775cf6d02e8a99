import json
import re
from pathlib import Path

import made_release
import pytest
from made_release import NASTY

from memecmd_utils import files
from memecmd_utils.release import card, manifest, tables
from memecmd_utils.release import write as release_write
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme
from memecmd_utils.settings import Profile

PROFILE = Profile(name="made")
MADE = "made up for a test"
READ = """
import json, sys
import mlcroissant as mlc
from datasets import load_dataset
folder = sys.argv[1]
data = mlc.Dataset(folder + "/croissant.json")
issues = [*data.metadata.ctx.issues.errors, *data.metadata.ctx.issues.warnings]
plain = lambda value: value.decode() if isinstance(value, bytes) else value
found = {"issues": issues, "language": data.metadata.in_language}
for table in data.metadata.record_sets:
    found[table.id] = [{k.split("/", 1)[1]: v for k, v in row.items()} for row in data.records(table.id)]
    loaded = load_dataset(folder, table.id, split="train")
    found[table.id + " loaded"] = [loaded.num_rows, loaded.column_names]
found["default"] = load_dataset(folder)["train"].column_names
print(json.dumps(found, default=plain))
"""


def info(template: str, **changes: object) -> TemplateInfo:
    values = {
        "source": "imgflip575k",
        "template": template,
        "about": "It means much.",
        "names": ["One", "Two"],
    }
    return TemplateInfo(
        **{**values, "picture": f"img/{template}.jpg", "url": "https://i.example/t.jpg", **changes}
    )


def meme(meme_id: str, template: str = "Made-Cat", **changes: object) -> TemplateMeme:
    values = {"source": "imgflip575k", "url": f"https://i.example/{meme_id}.jpg", "split": "train"}
    values |= {"captions": ["when the test", "is green"], "views": 12, "votes": 3, "title": MADE}
    return TemplateMeme(meme_id=meme_id, template=template, **{**values, **changes})


def reading(meme_id: str, **changes: object) -> MemeReading:
    values = {"source": "gpt-4o@cm50", "meme_caption": MADE, "literary_devices": ["irony"], "emotion": "joy"}
    return MemeReading(meme_id=meme_id, **{**values, **changes})


def write(target: Path, **changes: object) -> dict[str, int]:
    values = {
        "infos": [info("Made-Cat"), info("Made-Dog", source="cm50"), info("Unused")],
        "memes": [meme("a1"), meme("a2", split="validation"), meme("b1", "Made-Dog")],
        "readings": [reading("a1"), reading("a1", source="tiny-model@q4", prompt="gpt4o", context=True)],
        "profile": PROFILE,
        "inputs": {"imgflip": "files 3 sha256 00"},
        **changes,
    }
    return release_write.write_template_release(target, **values)


def test_the_tables_are_those_of_the_records(tmp_path: Path) -> None:
    target = tmp_path / "release"
    counts = write(target, run="some-run")
    assert counts == {"templates": 2, "template_memes": 3, "readings": 2} == manifest.check_release(target)
    assert tables.read_parquet(target, "template_memes")[0] == meme("a1")
    templates = files.read_jsonl(target / "templates.jsonl", TemplateInfo)
    assert [t.template for t in templates] == ["Made-Cat", "Made-Dog"], "one without a meme is left out"
    assert {t.picture for t in templates} == {""} and templates[0].url
    assert tables.read_parquet(target, "readings")[1].context is True
    said = manifest.read(target)
    assert (said.dataset, said.run, said.counts) == ("templates", "some-run", counts)
    assert said.models["readings"] == ["gpt-4o@cm50", "tiny-model@q4"]
    assert said.inputs["sources"] == {"imgflip": "files 3 sha256 00"}
    assert {entry.stage for entry in said.files} == {"07_template_memes"}
    assert sorted(p.name for p in target.iterdir() if p.is_dir()) == [], "no image"
    assert not list(tmp_path.glob(".*"))


def test_the_same_records_make_the_same_bytes_and_no_reading_makes_no_table(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    assert (tmp_path / "one" / manifest.SUMS).read_bytes() == (tmp_path / "two" / manifest.SUMS).read_bytes()
    assert "readings" not in write(tmp_path / "two", readings=[])
    assert not (tmp_path / "two" / "readings.jsonl").exists()
    assert set(write(tmp_path / "empty", infos=[], memes=[], readings=[]).values()) == {0}


def test_no_author_and_no_folder_of_the_user_is_in_it(tmp_path: Path) -> None:
    assert "author" not in {*TemplateMeme.model_fields, *MemeReading.model_fields, *TemplateInfo.model_fields}
    given = {key: str(tmp_path / "secret" / key) for key in ("imgflip", "cm50", "memecap", "figmemes_labels")}
    inner = {
        "template_matching": {"clip": str(tmp_path / "c"), "lpips": str(tmp_path / "l.pth")},
        "meme_retrieval": {
            "images": str(tmp_path / "i"),
            "model": str(tmp_path / "m"),
            "baselines": [str(tmp_path / "b"), "kakaobrain/align-base"],
        },
    }
    write(tmp_path / "r", profile=Profile(name="x", **given, **inner))
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in (tmp_path / "r").iterdir())
    assert str(tmp_path) not in text and "secret" not in text and "~/" not in text
    settings = manifest.read(tmp_path / "r").profile.settings
    assert settings["imgflip"] == "imgflip" and settings["meme_retrieval"]["baselines"][0] == "b"
    assert "template_rule" in settings and settings["template_matching"]["lpips"] == "l.pth"
    of_dialogues = manifest.public_settings(Profile(name="x", **given, **inner))
    assert str(tmp_path) not in json.dumps(of_dialogues) and "template_rule" not in of_dialogues


def test_the_card_says_where_everything_comes_from(tmp_path: Path) -> None:
    target = tmp_path / "r"
    write(target, readings=[reading("a1"), reading("a2", source="authored"), reading("b1", unscored="no")])
    card = (target / "README.md").read_text(encoding="utf-8")
    note = (target / "LICENSE.md").read_text(encoding="utf-8")
    assert "| memes | 3 (2 train, 1 validation) |" in card and "| Made-Cat | 2 | 1 | 1 | 2 |" in card
    assert "| readings | 3, of which 1 came to nothing |" in card and "not the dataset of that paper" in card
    assert f"| `min_memes` | {PROFILE.cm50.rule.min_memes} |" in card and "not moderated" in card
    for text in (card, note):
        assert "template memes (`imgflip575k`) | none stated: the rights are yours to check" in text
        assert "readings (`gpt-4o@cm50`) | Apache-2.0, as stated" in text
    assert "Apache License 2.0" in note and "Creative Commons Attribution 4.0" in note


def test_a_licence_is_promised_only_where_one_was_stated() -> None:
    rows = card.template_provenance({"template_memes": [meme("a")], "readings": [reading("a", source="m@1")]})
    found = card.template_licences(rows)
    assert found["tags"] == ["other"] and found["urls"] == ["LICENSE.md"]
    assert (
        found["models"] == ["m@1"]
        and ("readings (`m@1`)", "the terms of the model and of its provider") in found["parts"]
    )
    assert found["unknown"] and not found["cm50"]
    rows = card.template_provenance({"template_memes": [meme("a", source="authored")]})
    assert card.template_licences(rows)["tags"] == ["cc-by-4.0"]


def test_texts_of_any_kind_survive_and_make_valid_croissant(tmp_path: Path) -> None:
    write(tmp_path / "r", published="2026-01-31", **nasty())
    assert tables.read_parquet(tmp_path / "r", "templates")[0].about == NASTY
    file = str(tmp_path / "r" / "croissant.json")
    _, log = made_release.outside(made_release.VALIDATE_CROISSANT, tmp_path, "validate", "--jsonld", file)
    assert "Done." in log and not re.findall(r"^[WE]\d{4} .*|WARN.*", log, re.M)


def nasty() -> dict[str, object]:
    unread = reading("a1", source=NASTY, meme_caption=NASTY, emotion=NASTY, literary_devices=[NASTY, ""])
    return {
        "infos": [info(NASTY, about=NASTY, source=NASTY)],
        "memes": [meme("a1", NASTY, captions=[NASTY, ""], title=NASTY, source=NASTY, split=None)],
        "readings": [unread],
        "profile": Profile(name="a: b #c"),
    }


@pytest.mark.slow
def test_datasets_and_mlcroissant_read_every_table(tmp_path: Path) -> None:
    write(tmp_path / "a release 发布", published="2026-01-31")
    found = json.loads(made_release.outside(READ, tmp_path, str(tmp_path / "a release 发布"))[0])
    assert found["issues"] == [] and found["language"] in ("en", ["en"])
    for table, count in {"templates": 2, "template_memes": 3, "readings": 2}.items():
        columns = tables.arrow_schema(table).names
        assert len(found[table]) == count and found[f"{table} loaded"] == [count, columns]
    assert found["default"] == list(TemplateMeme.model_fields)
    assert found["template_memes"][1]["split"] == "validation"
    assert found["template_memes"][0]["captions"] == ["when the test", "is green"]
    assert found["readings"][0]["context"] is None and found["readings"][1]["context"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"readings": [reading("zz")]}, "reading of zz: no meme zz"),
        ({"readings": [reading("a1", template="Made-Dog")]}, "reading of a1: of 'Made-Dog'"),
        ({"readings": [reading("a1"), reading("a1")]}, "stands twice"),
        ({"memes": [meme("a1"), meme("a1")], "readings": []}, "template_meme 'a1' stands twice"),
        ({"memes": [meme("a1", "Unknown")], "readings": []}, "template_meme of 'Unknown': no such template"),
        ({"memes": [meme("a1"), meme("a2", split=None)], "readings": []}, "1 of 2 belong to no split"),
    ],
)
def test_a_wrong_release_is_never_put_in_place(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    target = tmp_path / "r"
    write(target)
    before = (target / manifest.SUMS).read_bytes()
    with pytest.raises(manifest.ReleaseError, match=message):
        write(target, **changes)
    assert (target / manifest.SUMS).read_bytes() == before and not list(tmp_path.glob(".*"))
