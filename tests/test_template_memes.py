"""CM50: data sets are read as released and nothing about who made a meme; the filter by hand, step by step;
prompts say what their rows say; replies that cannot be used are told why; and the method of appendix 07b.
"""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import appendix
import numpy as np
import pandas as pd
import pytest
import template_world
from PIL import Image
from scripted import ScriptedBackend
from template_world import FIVE, STEPS, TEMPLATES, record

from memecmd_utils import fetch
from memecmd_utils.files import paths
from memecmd_utils.llm import replies, types
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.recordings import normalise
from memecmd_utils.schemas import TemplateMeme
from memecmd_utils.settings import Cm50Settings, Profile
from memecmd_utils.template_memes import data_sets, prompts

METHOD = appendix.load("07b_templates_with_data")
NO_SAMPLE = pd.DataFrame(columns=data_sets.COLUMNS)
CORPORA = paths.root.parent / "shared" / "corpora"
MEME = TemplateMeme(
    meme_id="a1", template="Sad-Kettle", url="https://i.imgflip.com/a1.jpg", captions=["so >>> hot", " "],
    source="made up",
)  # fmt: skip
ABOUT = "It cries steam."


def table_of(records: dict[str, list[dict]]) -> pd.DataFrame:
    rows = [
        {"template": template, "position": position, **data_sets._entry(raw)}
        for template, mine in records.items()
        for position, raw in enumerate(mine)
    ]
    return pd.DataFrame(rows, columns=data_sets.COLUMNS)


# --- data sets ----------------------------------------------------------------------------------------


def test_data_sets_are_read_as_released_and_nobody_who_made_a_meme(tmp_path: Path, capsys) -> None:
    made = {name: Path(path) for name, path in template_world.data_sets(tmp_path).items()}
    table = data_sets.read_records(made["imgflip"])
    assert len(table) == 6 * 14 and list(table.columns) == data_sets.COLUMNS
    assert template_world.AUTHOR not in table.to_string()
    first = table[table["template"] == "Sad-Kettle"].iloc[0]
    assert (first["meme_id"], first["position"], len(first["captions"])) == ("sa00012", 0, 2)
    train = made["published"] / "data" / "train_x.json"
    twice = template_world.annotated("Sad-Kettle", record("Sad-Kettle", 11), "x")
    train.write_text(json.dumps([twice, {"type": "x"}]), encoding="utf-8")
    memes, published, about, blank = data_sets.read_cm50(made["published"])
    assert Counter(meme.split for meme in memes) == {"train": 54, "validation": 18}, "of both in validation"
    assert {r.source for r in published} == {"gpt-4o@cm50"} and published[0].emotion == "joy"
    assert about["Sad-Kettle"] == "What Sad-Kettle means." and set(blank) == set(TEMPLATES)
    memecap = data_sets.read_memecap(made["memecap"])
    assert len(memecap) == 13 and len(memecap[0].meme_captions) == 2 and memecap[0].image == "memes_0.png"
    labels = made["figmemes_labels"]
    (tmp_path / "figmemes_ocrs.tsv").write_text('img_name\ttext\nmemes_0.png\t"so\n')
    first = data_sets.read_figmemes(made["figmemes"], labels)[0]
    assert (first.image, first.text) == ("memes_0.png", '"so')
    for place in (labels, labels.parent):
        assert data_sets.read_labels(place)["memes_0"] == ["allusion", "anthrop"]

    bad = [{}, {"url": "https://imgflip.com/"}, {"metadata": {"views": "2K", "img-votes": "1"}}]
    broken = [record("Sad-Kettle", n) | change for n, change in enumerate(bad)]
    file = made["imgflip"] / "dataset" / "memes" / "Sad-Kettle.json"
    file.write_text(json.dumps(broken), encoding="utf-8")
    assert len(data_sets.read_records(made["imgflip"])) == 5 * 14 + 1
    told = capsys.readouterr().out
    assert "Sad-Kettle.json: 2 records cannot be read, the first is record 2" in told
    assert "train_x.json: 1 records cannot be read" in told
    labels.write_text(labels.read_text().replace("1", "2"))
    with pytest.raises(data_sets.DataSetError, match="a cell is not 0 or 1"):
        data_sets.read_labels(labels)


def test_pictures_are_fetched_once_and_only_what_is_one(tmp_path: Path, monkeypatch) -> None:
    asked = []
    Image.effect_noise((40, 30), 50).save(tmp_path / "made.png")

    def get(url: str) -> tuple[bytes, str]:
        asked.append(url)
        if "gone" in url:
            raise fetch.FetchError("HTTP 404")
        return b"<html>" if "page" in url else (tmp_path / "made.png").read_bytes(), ""

    monkeypatch.setattr(fetch, "Client", lambda _: SimpleNamespace(get=get))
    named = ({"meme_id": n, "url": f"https://x.org/{n}"} for n in ("a", "gone", "page", "b"))
    memes, folder = [MEME.model_copy(update=change) for change in named], tmp_path / "pictures"
    for name in fetch.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    counts = METHOD.fetch_pictures(memes, folder, 3)
    assert counts["fetched"] == 1 and counts["HTTP 404"] == 1 and counts["not asked for"] == 1
    assert METHOD.fetch_pictures(memes[:1], folder, 9)["there"] == 1 and len(asked) == 3


# --- the filter ---------------------------------------------------------------------------------------


def test_steps_of_the_filter_by_hand() -> None:
    kettle = [
        record("Sad-Kettle", 0, votes=7), record("Sad-Kettle", 0, votes=9),  # the same meme twice
        record("Sad-Kettle", 1, votes=5), record("Sad-Kettle", 2, title="Sad Kettle"),
        record("Sad-Kettle", 3, boxes=(" ", "")), *(record("Sad-Kettle", n) for n in range(4, 8)),
    ]  # fmt: skip
    goat = [record("Tall-Goat", n) for n in range(3)]
    rule = METHOD.TemplateRule(min_memes=4, n_templates=1, validation_share=0.4)
    records = table_of({"Sad-Kettle": kettle, "Tall-Goat": goat})
    memes, steps, table = METHOD.filter_records(records, rule, 13, NO_SAMPLE)
    assert steps["left out"].tolist() == [0, 1, 1, 1, 1, 3, 0]
    assert memes["meme_id"].tolist() == ["sa00000", *(f"sa0000{n}" for n in range(4, 8))]
    assert Counter(memes["split"]) == {"train": 3, "validation": 2}
    assert table["kept"].tolist()[0] == 5 and table["chosen"].tolist() == [True, False]
    assert table["estimate"].isna().all(), "no sample, no estimate"


def test_the_split_keeps_published_memes_and_templates_keep_their_place() -> None:
    table = table_of({t: [record(t, n) for n in range(50 - i)] for i, t in enumerate(TEMPLATES[:3])})
    rule = METHOD.TemplateRule(min_memes=1, n_templates=3, validation_share=0.1)
    sample = pd.concat([table.iloc[[3, 60]], table.iloc[:1].assign(template="Cold-Soup", meme_id="co1")])
    training = set(table["meme_id"].iloc[10:40])
    memes, _, templates = METHOD.filter_records(table, rule, 5, sample, training)
    again, *_ = METHOD.filter_records(table.sample(frac=1, random_state=0), rule, 5, sample, training)
    pd.testing.assert_frame_equal(memes, again)
    held = set(memes.loc[memes["split"] == "validation", "meme_id"])
    assert len(held) == 10 and set(sample["meme_id"][:2]) <= held and not held & training
    assert templates.loc[templates["chosen"], "template"].tolist() == list(TEMPLATES[:2])
    soup = templates.set_index("template").loc["Cold-Soup"]
    assert pd.isna(soup["kept"]) and soup["note"] == "in CM50, but no records here"
    assert soup["estimate"] == METHOD.CM50_MEMES / 3 and 0 < soup["low"] < soup["high"] < METHOD.CM50_MEMES


def test_the_rule_that_made_a_sample_explains_it_best() -> None:
    table = table_of(template_world.world())
    kept, *_ = METHOD.filter_records(table, METHOD.TemplateRule(min_memes=1), 13, NO_SAMPLE)
    sample = kept.sample(frac=0.3, random_state=1)
    evidence = METHOD.rule_evidence(table, sample, METHOD.candidate_rules(), len(kept))
    assert evidence.iloc[0]["rule"] == "at least 6 votes, title is not the template's name"
    assert evidence.iloc[0]["left out"] == 0 and evidence["left out"].max() > 0
    counts = kept["template"].value_counts()
    seen = sample["template"].value_counts().reindex(counts.index)
    deviance = 2 * (seen * np.log(seen / (counts * len(sample) / len(kept)))).sum()
    assert evidence.iloc[0]["deviance"] == pytest.approx(deviance)
    edges = METHOD.rule_edges(table, sample, METHOD.TemplateRule(), len(kept)).set_index("quantity")
    assert edges.loc["votes", "smallest"] == 6 and edges.loc["votes", "chance"] < 1e-6


@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="real data sets are not here")
def test_the_shipped_counts_are_those_of_the_data_sets() -> None:
    records = data_sets.read_records(CORPORA / "imgflip575k")
    sample = METHOD.part_of(data_sets.read_cm50(CORPORA / "cm50")[0], "validation")
    names = ("templates", "template"), ("edges", "quantity")
    counts = (pd.read_csv(paths.data / "paper" / f"cm50_{name}.csv", index_col=by) for name, by in names)
    templates, shipped = counts
    rule = METHOD.TemplateRule()
    edges = METHOD.rule_edges(records, sample, rule).set_index("quantity").loc[shipped.index]
    assert (edges[["smallest", "below"]] == shipped[["smallest", "below"]]).all(axis=None)
    sizes = METHOD.filter_records(records, rule, 13, sample)[2]
    known = templates.dropna(subset="kept")
    kept = sizes.set_index("template")["kept"].astype(float)[known.index]
    assert (kept == known["kept"]).all() and len(known) == 39


# --- prompts and annotation ---------------------------------------------------------------------------


def test_prompts_have_what_their_rows_say() -> None:
    assert METHOD.SPECS["gpt4o"].published == 49
    assert {spec.table for spec in METHOD.SPECS.values()} == {5, 9, 10, 11}
    for name, spec in METHOD.SPECS.items():
        sees, context = prompts.FORMS[spec.file].sees, METHOD.gives_context(spec, True)
        text = prompts.message(spec.file, MEME, ABOUT, context, None).text
        assert ("It cries steam." in text) == (spec.context != "no"), name
        assert "hot" in text and ">>> hot" not in text, "fenced"
        assert ("Sad-Kettle" in text) == sees
        seen = prompts.message(spec.file, MEME, ABOUT, False, types.Image(image_id="x", load=str))
        assert len(seen.images) == sees and "It cries steam." not in seen.text


def test_replies_give_the_fields_of_a_reading_and_devices_the_labels_of_figmemes() -> None:
    words = ["sarcasm", "simile", "hyperbole", "antithesis", "oxymoron", "anthrop", "nonsense"]
    assert METHOD.to_figmemes(words) == ["exaggeration", "irony", "anthrop", "metaphor", "contrast"]

    def fields(said: dict, form: str) -> dict:
        return replies.structured(types.Reply(text=json.dumps(said)), prompts.FORMS[form].schema).fields()

    five = fields(FIVE, "gpt4o")
    assert five["literary_devices"] == ["hyperbole"] and five["emotion"] == "sadness"
    assert fields(FIVE | {"literary device": "N/A"}, "gpt4o")["literary_devices"] == []
    free = FIVE | {"literary device": "Irony; wordplay", "emotion word": "Glee."}
    assert fields(free, "llava")["literary_devices"] == ["irony", "wordplay"]
    assert fields(STEPS, "three_step") == {"literary_devices": ["irony"]}, "refuted"
    bad = [
        (FIVE | {"emotion word": "glee"}, "gpt4o"),
        (STEPS | {"extraction of answer": ["irony", "metaphor"]}, "three_step_12"),  # not compared
    ]
    for said, form in bad:
        with pytest.raises(types.UnusableReply):
            fields(said, form)


def test_the_sample_is_in_proportion_and_stays() -> None:
    templates = {f"{t}{n}": t for t, m in (("A", 60), ("B", 30), ("C", 10)) for n in range(m)}
    drawn = METHOD.draw(templates, 10, 3)
    assert Counter(templates[meme_id] for meme_id in drawn) == {"A": 6, "B": 3, "C": 1}
    assert drawn == METHOD.draw(dict(reversed(templates.items())), 10, 3)
    assert METHOD.draw(templates, None, 3) == set(templates)


def test_a_meme_is_read_in_two_passes_or_kept_with_the_reason(tmp_path: Path) -> None:
    Image.new("RGB", (30, 30), "red").save(tmp_path / "a1.png")
    memes, asked = [MEME, MEME.model_copy(update={"meme_id": "b2"})], []

    def reply(request) -> str:
        asked.append(request.messages[-1].text)
        if request.subject.startswith("b2") and "three_step" in request.subject:
            return "no"
        return json.dumps(FIVE if "gpt4o" in request.subject else STEPS)

    chat, both = Chat(ScriptedBackend(reply), None, "live", 4), [METHOD.SPECS[name] for name in METHOD.PASSES]
    about, profile = {"Sad-Kettle": ABOUT}, Profile(name="p")
    first, second = asyncio.run(METHOD.annotate(memes, about, chat, profile, both, tmp_path))
    assert len(asked) == 3 + 5 and "it is no JSON object" in asked[-1], "asked again five times in all"
    chinese = [text for text in [*asked, second.unscored] if re.search("[\u3400-\u9fff]", text)]
    assert chinese == [], "and told in English what was wrong"
    assert first.prompt == "gpt4o+three_step_12" and first.context and first.emotion == "sadness"
    assert first.literary_devices == ["irony"] and first.image_caption == FIVE["visual elaboration"]
    assert second.prompt.endswith("(text only)") and second.unscored.startswith("three_step_12:")
    assert second.image_caption == ""
    counts = METHOD.reading_counts([first, second]).set_index(["what", "label"])
    assert counts.loc[("device", "irony"), "share"] == 1 and counts.loc[("unscored", ""), "readings"] == 1


# --- matching -----------------------------------------------------------------------------------------


ROWS = {
    "near": [3, 0], "far": [40, 9], "cat": [3, 1], "dog": [0, 5], "about cat": [2, 0], "about dog": [0, 2],
    "says": [2, 1], "else": [0, -9], "title": [1, 4],
}  # fmt: skip
"""Vectors of pictures, by the name of the file, and of texts."""
ENCODER = SimpleNamespace(
    encode_images=lambda files: np.array([ROWS[file.stem] for file in files]),
    encode_texts=lambda texts: np.array([ROWS[text] for text in texts]),
)


def test_the_nearest_template_is_matched_and_checked(monkeypatch) -> None:
    """Two memes and two templates, by made-up vectors and LPIPS."""
    memes = [("near", Path("near.png"), "says", "title"), ("far", Path("far.png"), "else", "else")]
    templates = [(t, Path(f"{t}.png"), f"about {t}", "") for t in ("cat", "dog")]
    both = [pd.DataFrame(side, columns=METHOD.INSTANCE) for side in (memes, templates)]
    monkeypatch.setitem(METHOD.match.__globals__, "lpips_distances", lambda pairs: np.full(len(pairs), 0.25))
    done = METHOD.match(*both, ENCODER)
    pairs = done.set_index(["instance", "way"])
    gaps = np.subtract([*ROWS["near"], *ROWS["says"]], [*ROWS["cat"], *ROWS["about cat"]])
    assert pairs.loc[("near", "concatenated"), "distance"] == pytest.approx(np.linalg.norm(gaps))
    assert not pairs.loc[("far", "concatenated"), "near"] and not pairs.loc[("far", "concatenated"), "kept"]
    cosine = (normalise(np.array([ROWS["title"]])) @ normalise(np.array([ROWS["dog"]])).T).item()
    row = pairs.loc[("near", "ocr_cosine")]
    assert row["template"] == "dog" and row["distance"] == pytest.approx(cosine) and row["kept"]
    counts = METHOD.match_counts(done, "memecap", METHOD.PAPER_CLIP)
    assert counts.loc["pairs of both ways", "pairs"] == 2 and counts["paper"].iloc[-1] == 42


# --- metrics and tables -------------------------------------------------------------------------------

CHOSEN = Cm50Settings()


def test_metrics_of_the_field_by_hand() -> None:
    said, refs = [["a", "b"], ["c"]], [["r", "s"], ["t"]]
    assert METHOD.expand("extended", said, refs)[0] == ["a", "a", "b", "b", "c"]
    assert METHOD.expand("fully-concatenated", said, refs) == (["a b", "c"], [["r s"], ["t"]])
    assert METHOD.score("ROUGE-L", "extended", [["a b"]], [["a b", "c"]], CHOSEN) == ("0.500", "")
    assert METHOD.bleu(["a b"], [["a c"]]) == 0, "no smoothing"
    assert METHOD.chrf(["abc"], [["abc", "x"]]) == pytest.approx(100)
    truth = {"1": ["irony"], "2": ["allusion", "irony"]}
    both = METHOD.macro_f1({"1": ["sarcasm"], "2": ["irony", "metaphor"]}, truth)
    assert both["macro-F1 per label"] == f"{1 / 6:.3f}"  # irony 1, all other labels 0
    assert both["macro-F1 flattened"] == f"{(2 * 2 / (2 * 2 + 2) + 2 * 8 / (2 * 8 + 2)) / 2:.3f}"
