"""Two stages of template matching on tables made by hand, and once through tiny random models."""

from pathlib import Path

import made_matches
import numpy as np
import pytest

from memecmd_utils.cm50 import matching
from memecmd_utils.cm50.matching import RULES, combine, distinct_pairs, match, match_counts, nearest
from memecmd_utils.core.encoders import clip

MEMES = [f"meme {n} <b>.png" for n in range(3)]


def test_the_ways_to_combine_image_and_text() -> None:
    pictures, texts = np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]])
    assert combine(pictures, texts, "concatenated").tolist() == [[3, 4, 0, 2]], "lengths stay"
    assert combine(pictures, texts, "fancy_fusion")[0] == pytest.approx([0.3, 0.9])


def test_the_nearest_row_is_that_of_a_plain_search(monkeypatch) -> None:
    monkeypatch.setattr(matching, "QUERIES_AT_ONCE", 7)
    rng = np.random.default_rng(1)
    queries, rows = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(9, 6)).astype(np.float32)
    index, distance = nearest(queries, rows)
    for query, best, value in zip(queries, index, distance, strict=True):
        all_of = [float(np.sqrt(((query.astype(float) - row) ** 2).sum())) for row in rows]
        assert best == int(np.argmin(all_of)) and value == pytest.approx(min(all_of), abs=1e-9)
    far = np.full((1, 6), 1e4, dtype=np.float32)
    assert nearest(far, np.vstack([far, far + 1]))[1][0] == 0, "no cancelling of large squares"
    assert nearest(far, np.vstack([far, far]))[0][0] == 0, "the first of equals"


def world(tmp_path: Path):
    return made_matches.instances(tmp_path / "memes"), made_matches.templates(tmp_path), tmp_path


def test_the_rules_of_the_code(tmp_path: Path) -> None:
    memes, templates, folder = world(tmp_path)
    # Every row has the length that the limit is made for: 30 is kept, what is above is not.
    rows = {
        "Round.png": (0, 0), "Square.png": (100, 0), "Cross.png": (0, 100), "about Round": (0, 0),
        MEMES[0]: (18, 0), "a Round": (24, 0), MEMES[1]: (100, 30.1), MEMES[2]: (0, 105),
        "words 0": (1, 0), "words 1": (-1, -0.05), "words 2": (0.2, 5),
    }  # fmt: skip
    lpips = made_matches.Distances({(MEMES[0], "Round.png"): 0.29, (MEMES[2], "Cross.png"): 0.2899})
    done = match(memes, templates, folder, made_matches.Encoder(rows), lpips)
    first, second = done.pairs[:3], done.pairs[3:]
    assert [p.template for p in first] == ["Round", "Square", "Cross"]
    assert [p.distance for p in first] == pytest.approx([30, 30.1, 5], abs=1e-5)
    assert [p.why for p in first] == ["LPIPS 0.29 not below 0.29", "distance 30.1 above 30", ""]
    assert [p.kept for p in first] == [False, False, True] and first[1].lpips is None
    assert [p.template for p in second] == ["Square", "Round", "Cross"]
    assert second[1].why == "cosine 0 below 0.1" and second[0].kept, "LPIPS of that pair is 0"
    assert second[2].distance == pytest.approx(5 / np.hypot(0.2, 5)) and second[2].lpips == 0.2899
    assert lpips.asked.count((MEMES[2], "Cross.png")) == 1, "a pair of two variants is looked at once"
    assert (MEMES[1], "Square.png") not in lpips.asked, "what stage 1 drops is not"
    both = distinct_pairs(done.pairs)
    assert [(p.instance, p.template, p.variant) for p in both] == [
        (MEMES[2], "Cross", "concatenated, ocr_cosine"),
        (MEMES[0], "Square", "ocr_cosine"),
    ]
    assert done.models == "made-up encoder, made-up LPIPS" and done.not_computed == ""


def test_the_rules_of_the_paper(tmp_path: Path) -> None:
    memes, templates, folder = world(tmp_path)
    rows = {"Round.png": (1, 0), "Square.png": (0, 1), "Cross.png": (-1, 0)}
    rows |= {MEMES[0]: (9, 0), "a Round": (-2, 0)}
    rows |= {f"about {name}": (1, 0) for name in made_matches.SHADES}
    lpips = made_matches.Distances({(MEMES[0], "Round.png"): 0.999, (MEMES[1], "Square.png"): 1})
    done = match(memes, templates, folder, made_matches.Encoder(rows), lpips, "paper")
    assert [rule.limit for rule in done.rules] == [30, 1] and {r.lpips for r in done.rules} == {1}
    fancy = [p for p in done.pairs if p.variant == "fancy_fusion"]
    # mean((1,0), (-1,0)) = 0; templates: (1,0), (.5,.5), (0,0): the nearest is Cross, at 0.
    assert fancy[0].template == "Cross" and fancy[0].distance == pytest.approx(0)
    assert all(p.kept is (p.lpips < 1) for p in done.pairs if p.lpips is not None)


def test_a_meme_without_a_caption_goes_by_its_ocr_text(tmp_path: Path) -> None:
    memes, templates, folder = world(tmp_path)
    memes = [memes[0]._replace(caption="")]
    rows = {"words 0": (3, 4)}
    done = match(memes, templates, folder, made_matches.Encoder(rows), made_matches.Distances())
    assert done.pairs[0].distance == pytest.approx(5)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    memes, templates, folder = world(tmp_path)
    memes[1].image.write_bytes(b"no image")
    (folder / "img" / "Cross.png").unlink()
    encoder = made_matches.Encoder({"Round.png": (0, 0)})
    done = match(memes, templates, folder, encoder, made_matches.Distances())
    assert dict(done.unreadable).keys() == {"Cross", MEMES[1]}
    assert list(done.templates) == ["Round", "Square"]
    assert {p.instance for p in done.pairs} == {MEMES[0], MEMES[2]}
    nothing = match([], templates, folder, encoder, made_matches.Distances())
    assert nothing.not_computed == "not computed here: there is no readable image of a meme"
    nothing = match(memes, [], folder, encoder, made_matches.Distances())
    assert nothing.not_computed.endswith("blank picture of a template")
    with pytest.raises(ValueError, match="have one name"):
        match([memes[0], memes[0]], templates, folder, encoder, made_matches.Distances())


def test_without_models_nothing_is_claimed(tmp_path: Path) -> None:
    memes, templates, folder = world(tmp_path)
    encoder = made_matches.Encoder({"a": (0, 0)}, missing="CLIP needs torch")
    done = match(memes, templates, folder, encoder, made_matches.Distances())
    assert done.pairs == [] and done.not_computed == "not computed here: CLIP needs torch"
    shown = match_counts(done, [], "memecap")["pairs"]
    assert set(shown.iloc[2:]) == {"not computed here: CLIP needs torch"}
    encoder = made_matches.Encoder({"a": (0, 0)})
    half = match(memes, templates, folder, encoder, made_matches.Distances(missing="no file"))
    undecided = [p for p in half.pairs if p.kept is None]
    assert len(undecided) == 3 and {p.why for p in undecided} == {"not computed here: no file"}
    shown = match_counts(half, [], "memecap")["pairs"]
    assert shown["concatenated: distance at most 30"] == 3
    assert shown["pairs of all variants"] == "not computed here: no file"


def test_numbers_stand_beside_the_papers_with_its_models_only(tmp_path: Path) -> None:
    memes, templates, folder = world(tmp_path)
    wide = made_matches.Encoder({"a Round": [1] * matching.PAPER_WIDTH})
    done = match(memes, templates, folder, wide, made_matches.Distances())
    assert done.comparable and done.models == "made-up encoder, made-up LPIPS"
    other = made_matches.Distances()
    other.published = False
    assert not match(memes, templates, folder, wide, other).comparable
    narrow = made_matches.Encoder({"a Round": (1, 0)})
    assert not match(memes, templates, folder, narrow, made_matches.Distances()).comparable
    far = made_matches.Encoder({"a Round": (99, 0), "a Square": (99, 0), "a Cross": (99, 0)})
    done = match(memes, templates, folder, far, made_matches.Distances(missing="never asked for"))
    assert done.not_computed == "" and {p.kept for p in done.pairs} == {False}, "nothing was left for LPIPS"


def test_the_named_rules() -> None:
    assert RULES["code"] == (("concatenated", 30, 0.29), ("ocr_cosine", 0.1, 0.3))
    assert RULES["paper"] == (("concatenated", 30, 1), ("fancy_fusion", 1, 1))


def test_the_whole_way_through_tiny_random_models(tmp_path: Path) -> None:
    """Wiring tested, values not: the models know nothing, but a copy of a template is at distance 0 of it."""
    torch = pytest.importorskip("torch")
    for name in ("transformers", "torchvision", "lpips"):
        pytest.importorskip(name)
    import tiny_clips
    import torchvision

    folder = tiny_clips.folder_of("clip", tmp_path / "clip")
    torch.save(torchvision.models.alexnet(weights=None).state_dict(), tmp_path / "alex.pth")
    memes, templates, pictures = world(tmp_path)
    copies = []
    for meme, template in zip(memes, templates, strict=True):
        meme.image.write_bytes((pictures / template.picture).read_bytes())
        copies.append(meme._replace(caption=template.about))
    encoder = clip.load(folder)
    done = match(copies, templates, pictures, encoder, matching.Lpips(tmp_path / "alex.pth"))
    own = [p for p in done.pairs if p.variant == "concatenated"]
    assert [p.template for p in own] == list(made_matches.SHADES)
    assert [p.distance for p in own] == [0, 0, 0] and [p.lpips for p in own] == [0, 0, 0]
    assert all(p.kept for p in own) and not done.comparable and done.models.startswith("clip:clip@")
    assert match_counts(done, [], "memecap").loc["confirmed by a person", "paper"] == "other models: none"
