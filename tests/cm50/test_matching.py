"""Two stages of template matching on tables made by hand, and once through tiny random models."""

import sys
from pathlib import Path

import made_matches
import numpy as np
import pytest
import tiny_metrics
from PIL import Image

from memecmd_utils import files
from memecmd_utils.cm50 import matching
from memecmd_utils.cm50.matching import (
    RULES,
    Matches,
    TemplateMatch,
    combine,
    confirm,
    distinct_pairs,
    match,
    match_counts,
    nearest,
)
from memecmd_utils.core.encoders import clip
from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.core.encoders.clip import ModelMissing
from memecmd_utils.pictures import ImageRejected, LibraryError

MEMES = [f"meme {n} <b>.png" for n in range(3)]


def test_the_ways_to_combine_image_and_text() -> None:
    pictures, texts = np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]])
    assert combine(pictures, texts, "concatenated").tolist() == [[3, 4, 0, 2]], "lengths stay"
    assert combine(pictures, texts, "fancy_fusion")[0] == pytest.approx([0.3, 0.9])


def test_the_nearest_row_is_that_of_a_plain_search() -> None:
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


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("torch", "torchvision", "lpips"):
        pytest.importorskip(package)
    return tiny_metrics.alexnet_file(tmp_path_factory.mktemp("weights") / "alex.pth")


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{name}.png" for name in made_matches.SHADES]
    for file, (name, shade) in zip(files, made_matches.SHADES.items(), strict=True):
        made_matches.draw(name, shade).save(file)
    return files


def direct(weights: Path, one: Path, other: Path, normalize: bool) -> float:
    """The package itself with its own AlexNet, preprocessing by torchvision as in the paper's code."""
    import lpips
    import torch
    import torchvision
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize, ToTensor

    net = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
    whole = torchvision.models.alexnet(weights=None)
    whole.load_state_dict(torch.load(weights))
    for name in ("slice1", "slice2", "slice3", "slice4", "slice5"):
        for number, part in getattr(net.net, name).named_children():
            part.load_state_dict(whole.features[int(number)].state_dict())
    read = Compose([Resize(64, interpolation=InterpolationMode.BICUBIC), CenterCrop(64), ToTensor()])
    pair = [read(Image.open(file).convert("RGB")).unsqueeze(0) for file in (one, other)]
    with torch.no_grad():
        return net(*pair, normalize=normalize).item()


@pytest.mark.parametrize("scale", ["code", "lpips"])
def test_it_is_the_package_on_torchvisions_crop(weights: Path, pictures: list[Path], scale: str) -> None:
    found = matching.Lpips(weights, scale)
    pairs = [(pictures[0], pictures[1]), (pictures[0], pictures[2]), (pictures[1], pictures[1])]
    values = found.distances(pairs)
    wanted = [direct(weights, *pair, normalize=scale == "lpips") for pair in pairs]
    assert values == pytest.approx(wanted, abs=1e-7) and values[2] == 0 and values[0] != values[1]
    assert found.name == f"lpips-alex@{encoders_weights.file_digest(weights)}-64px-{scale}"
    assert not found.published, "random weights are not those of torchvision"


def test_the_scale_and_the_weights_matter(weights: Path, pictures: list[Path], monkeypatch) -> None:
    pairs = [(pictures[0], pictures[1])] * 3
    code, own = (matching.Lpips(weights, scale).distances(pairs) for scale in ("code", "lpips"))
    assert abs(code[0] - own[0]) > 1e-6
    monkeypatch.setattr(matching, "PAIRS_AT_ONCE", 2)
    assert matching.Lpips(weights).distances(pairs) == pytest.approx(code, abs=1e-7)
    assert matching.Lpips(weights).distances([]).shape == (0,)


def test_the_crop_is_torchvisions(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize, ToTensor

    read = Compose([Resize(64, interpolation=InterpolationMode.BICUBIC), CenterCrop(64), ToTensor()])
    rng = np.random.default_rng(3)
    for size in [(64, 64), (97, 64), (64, 99), (131, 77), (200, 333), (30, 91), (50, 50)]:
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(tmp_path / "p.png")
        assert np.array_equal(
            matching.crop(tmp_path / "p.png"), read(Image.open(tmp_path / "p.png")).numpy()
        ), size


def test_the_crop_needs_no_torch(pictures: list[Path], tmp_path: Path) -> None:
    part = matching.crop(pictures[1])
    assert part.shape == (3, 64, 64) and part.dtype == np.float32 and part.max() == 1
    # 96 x 80 becomes 76 x 64, then 6 columns go at each side: the square's left edge at 28/96*76 - 6.
    row = part[1, 32]
    assert row[14] < 0.5 < row[19]
    with pytest.raises(ImageRejected, match=r"none\.png: cannot be read"):
        matching.crop(tmp_path / "none.png")


def test_what_is_missing_is_said(pictures: list[Path], tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(encoders_weights, "installed", lambda package: None)
        with pytest.raises(ModelMissing, match="LPIPS needs torch, torchvision, lpips: pip install"):
            matching.Lpips().distances([(pictures[0], pictures[1])])
    if encoders_weights.installed("lpips") is None:
        return
    with pytest.raises(ModelMissing, match=r"^there is no file none\.pth: give alexnet-owt-7be5be79\.pth"):
        matching.Lpips(tmp_path / "none.pth").distances([(pictures[0], pictures[1])])
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(ModelMissing, match=r"^bad\.pth is no file of weights"):
        matching.Lpips(tmp_path / "bad.pth").distances([(pictures[0], pictures[1])])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "lpips", None)
        with pytest.raises(ModelMissing, match="LPIPS cannot be loaded"):
            matching.Lpips().distances([(pictures[0], pictures[1])])


def test_weights_that_are_not_downloaded_or_of_another_net(tmp_path: Path, pictures, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("lpips")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    pair = [(pictures[0], pictures[1])]
    said = r"LPIPS needs alexnet-owt-7be5be79\.pth: give it as cm50\.matching\.lpips"
    with pytest.raises(ModelMissing, match=said):
        matching.Lpips(download=False).distances(pair)
    from torchvision.models import AlexNet_Weights

    def refuse(self: object, **options: object) -> None:
        raise OSError("no way to the server (simulated)")

    monkeypatch.setattr(AlexNet_Weights, "get_state_dict", refuse)
    with pytest.raises(ModelMissing, match=r"cannot be downloaded \(OSError: no way to the server"):
        matching.Lpips().distances(pair)
    torch.save({"features.0.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ModelMissing, match=r"^other\.pth holds no AlexNet of torchvision"):
        matching.Lpips(tmp_path / "other.pth").distances(pair)


def pair(
    instance: str, template: str, variant: str = "concatenated", kept: bool | None = True
) -> TemplateMatch:
    return TemplateMatch(
        instance=instance, template=template, variant=variant, distance=12.5, lpips=0.2, kept=kept
    )


PAIRS = [
    pair("a.png", "Round"), pair("b.png", "Square"), pair("c.png", "Round", kept=False),
    pair("a.png", "Round", "ocr_cosine"), pair("b.png", "Cross", "ocr_cosine"),
]  # fmt: skip


def csv_file(folder: Path, *lines: str) -> Path:
    path = folder / "said.csv"
    path.write_text("\n".join(["instance,template,action,why", *lines]) + "\n", encoding="utf-8-sig")
    return path


def test_decisions_come_back_and_confirm(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'a.png,Round,keep,"yes, it is"', "b.png,Cross,reject,", ",,,")
    said = confirm(distinct_pairs(PAIRS), path)
    assert [(p.instance, p.template, p.confirmed, p.why) for p in said] == [
        ("a.png", "Round", True, "yes, it is"), ("b.png", "Square", None, ""), ("b.png", "Cross", False, ""),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [" a.png ", "=1.png", "'=1.png", "-a.png", "a.png"])
def test_odd_names_are_read_as_the_sheet_saves_them_and_as_they_are(tmp_path: Path, name: str) -> None:
    pairs = [pair(name, "Round")]
    for cell in (files.guarded(name), name, *([f" {name}"] if name == name.strip() else [])):
        (said,) = confirm(pairs, csv_file(tmp_path, f'"{cell}",Round,keep,-'))
        assert (said.instance, said.confirmed, said.why) == (name, True, "-")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png,Round,drop,", "line 2: action 'drop' is neither keep nor reject"),
        ("z.png,Round,keep,", "line 2: 'z.png' and 'Round' are no pair of this sheet"),
        ("a.png,Round,keep,\na.png,Round,reject,", "line 3: 'a.png' and 'Round' are both kept and rejected"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(LibraryError, match=message):
        confirm(PAIRS, csv_file(tmp_path, line))


def test_counts_stand_beside_those_of_the_paper(tmp_path: Path) -> None:
    done = Matches(RULES["code"], {"a.png": Path("a"), "b.png": Path("b")}, {"Round": Path("r")}, [])
    done.comparable = True
    done.pairs = [*PAIRS, pair("d.png", "Round", kept=False).model_copy(update={"lpips": None})]
    shown = match_counts(done, [], "memecap")
    assert shown["pairs"].tolist() == [2, 1, 3, 2, 2, 2, 3, "nobody looked yet"]
    assert shown.loc["confirmed by a person", "paper"] == 42
    said = confirm(distinct_pairs(PAIRS), csv_file(tmp_path, "a.png,Round,keep,", "b.png,Cross,reject,"))
    shown = match_counts(done, said, "figmemes")
    assert shown.loc["confirmed by a person"].tolist() == ["1 (2 of 3 looked at)", 46]
    done.comparable = False
    assert match_counts(done, said, "figmemes").loc["confirmed by a person", "paper"] == "other models: none"
