import made_up
import pytest

from memecmd_utils.library.curation import check_ocr_on_sample, closest_pictures


class Reads:
    """Reads the same text from every picture."""

    ocr_id = "fake 1"

    def read_text(self, image):
        return "上面的"


def test_ocr_is_held_against_known_texts(tmp_path):
    made_up.meme_files(tmp_path / "images", (24, 24))
    memes = [
        made_up.meme("m1").model_copy(update={"text": "上面的 下面的", "text_source": "known"}),
        made_up.meme("m2").model_copy(update={"text": "上面的！", "text_source": "known"}),
        made_up.meme("m3").model_copy(update={"text": "别的", "text_source": "ocr"}),
    ]
    sample = check_ocr_on_sample(memes, tmp_path, Reads(), n=1, seed=1)
    assert list(sample.columns) == ["meme_id", "known", "read", "similarity"] and len(sample) == 1
    whole = check_ocr_on_sample(memes, tmp_path, Reads())
    assert dict(zip(whole.meme_id, whole.similarity, strict=True)) == {
        "m1": pytest.approx(2 * 3 / 9),
        "m2": 1.0,
    }
    assert check_ocr_on_sample(memes[2:], tmp_path, Reads()).empty


def test_the_closest_pictures_come_first():
    known = {"m0": (0b0, "早"), "m1": (0b1, "早！"), "m2": (0b111, "晚安"), "far": (2**64 - 1, "早")}
    memes = [
        made_up.meme(name).model_copy(update={"phash": f"{bits:016x}", "text": text})
        for name, (bits, text) in known.items()
    ]
    pairs = closest_pictures(memes, n=2)
    assert pairs.values.tolist() == [["m0", "早", "m1", "早！", 1, 1.0], ["m1", "早！", "m2", "晚安", 2, 0.0]]
    # Beyond the first distance that is tried, and where there are not as many.
    assert closest_pictures(memes, n=4).bits.tolist() == [1, 2, 3, 61]
    assert len(closest_pictures(memes, n=99)) == 5, "a picture and its negative share no bit"
    assert closest_pictures(memes[:1]).empty and list(closest_pictures([]).columns) == list(pairs.columns)
