import io

import pytest
from made_ratings import answers, files, form
from PIL import Image

from memecmd_utils import human_ratings, rating_panel
from memecmd_utils.schemas import DIMENSIONS


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(tmp_path, kind: str = "rating", name: str = "p-1", **changes):
    """A panel with a name and the consent; what is rated here is made up, so `trial` is ticked."""
    made, key = form(kind, n_items=3, **{"repeats": 0, **changes})
    clock = Clock()
    panel = rating_panel.RatingPanel(made, files(tmp_path), tmp_path / "ratings", clock)
    panel.consent.value = panel.trial.value = True
    panel.rater.value = name
    return panel, key, clock


def rate(panel, value: int = 60) -> None:
    for slider in panel.sliders.values():
        slider.value = value
    panel.next.click()


def saved(tmp_path):
    return sorted((tmp_path / "ratings").glob("*.csv"))


def test_the_first_item_is_drawn_at_once_and_nothing_is_saved(tmp_path) -> None:
    made, _ = form("rating", n_items=3)
    widget = rating_panel.panel(made, files(tmp_path), tmp_path / "ratings")
    image = widget.children[3].children[0].children[0]
    assert Image.open(io.BytesIO(image.value)).format == "PNG" and saved(tmp_path) == []


def test_every_answer_is_saved_and_the_next_item_shown(tmp_path) -> None:
    panel, key, clock = opened(tmp_path)
    first = panel.pictures.children[0].value
    clock.now += 7.25
    panel.comment.value = "挺好"
    rate(panel, 60)
    assert panel.pictures.children[0].value != first and panel.count.value == "2 / 3"
    [file] = saved(tmp_path)
    [answer] = human_ratings.load([file], key).ratings
    assert answer.item == panel.form.items[0].item and answer.rater == "p-1" and answer.comment == "挺好"
    assert {getattr(answer, name) for name in DIMENSIONS} == {60.0} and answer.seconds == 7.2
    assert all(slider.value == "–" for slider in panel.sliders.values()), "the next one starts without a hint"
    rate(panel, 0)
    rate(panel, 100)
    assert len(human_ratings.load([file], key).ratings) == 3 and "谢谢" in panel.message.value
    assert panel.progress.value == 3


def test_trials_are_saved_as_made_up_and_the_rest_as_human(tmp_path) -> None:
    panel, key, _ = opened(tmp_path)
    rate(panel)
    panel.trial.value = False
    rate(panel)
    assert [r.source for r in human_ratings.load(saved(tmp_path), key).ratings] == ["made up", "human"]


@pytest.mark.parametrize("name", ["", "  ", "../up", "a/b", "a.b", "="])
def test_without_a_plain_name_nothing_is_saved(tmp_path, name) -> None:
    panel, _, _ = opened(tmp_path, name=name)
    rate(panel)
    assert "pseudonym" in panel.message.value and panel.position == 0
    assert saved(tmp_path) == [] and not list(tmp_path.glob("**/*.csv"))


def test_without_consent_or_with_a_gap_nothing_is_saved(tmp_path) -> None:
    panel, _, _ = opened(tmp_path)
    panel.consent.value = False
    rate(panel)
    assert "agree" in panel.message.value and panel.position == 0
    panel.consent.value = True
    panel.sliders["humor_effect"].value = "–"
    panel.next.click()
    assert "missing" in panel.message.value and saved(tmp_path) == []
    panel.sliders["humor_effect"].value = 0
    panel.next.click()
    assert len(saved(tmp_path)) == 1 and panel.position == 1


def test_a_rater_goes_on_where_she_stopped(tmp_path) -> None:
    panel, key, _ = opened(tmp_path)
    rate(panel, 20)
    panel.skip.click()
    rate(panel, 40)
    assert "1 items are open" in panel.message.value
    again, _, clock = opened(tmp_path)
    assert again.position == 1 and again.progress.value == 2 and again.trial.value
    again.back.click()
    assert {slider.value for slider in again.sliders.values()} == {20}
    clock.now += 5
    rate(again, 25)
    found = human_ratings.load(saved(tmp_path), key)
    assert found.doubled == 0 and len(found.ratings) == 2
    first = next(r for r in found.ratings if r.item == again.form.items[0].item)
    assert first.humor_effect == 25 and first.seconds == 5.0
    other, _, _ = opened(tmp_path, name="p-2")
    assert other.position == 0 and other.progress.value == 0
    rate(other)
    assert len(saved(tmp_path)) == 2


def test_the_ends_are_ends(tmp_path) -> None:
    panel, _, _ = opened(tmp_path)
    assert panel.back.disabled and not panel.skip.disabled
    panel.skip.click()
    panel.skip.click()
    assert panel.count.value == "3 / 3" and panel.skip.disabled and not panel.back.disabled


def test_a_file_of_the_form_is_taken_up(tmp_path) -> None:
    made, key = form("rating", n_items=3, repeats=0)
    given = [r.model_copy(update={"humor_effect": 72.0}) for r in answers(key, ["p-1"])[:1]]
    human_ratings.write_answers(tmp_path / "ratings" / f"ratings_{made.form}_p-1.csv", given)
    panel, _, _ = opened(tmp_path)
    assert panel.progress.value == 1
    for button in [panel.back] * 3 + [panel.skip] * [i.item for i in made.items].index(given[0].item):
        button.click()
    assert panel.sliders["humor_effect"].value == 70, "the nearest step"


def test_pairwise_shows_both_versions_and_takes_a_choice(tmp_path) -> None:
    panel, key, _ = opened(tmp_path, "pairwise")
    one, two = (image.value for image in panel.pictures.children)
    assert one != two
    panel.next.click()
    assert "missing" in panel.message.value
    panel.choice.value = "no difference"
    panel.next.click()
    assert panel.choice.value is None
    panel.choice.value = "B"
    panel.next.click()
    found = human_ratings.load(saved(tmp_path), key)
    assert [r.choice for r in found.ratings] == ["no difference", "B"]
    panel.back.click()
    panel.back.click()
    assert panel.choice.value == "no difference"


def test_a_torn_write_leaves_the_file_as_it_was(tmp_path, monkeypatch) -> None:
    panel, _, _ = opened(tmp_path)
    rate(panel)
    before = saved(tmp_path)[0].read_bytes()

    def full(self, *_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(human_ratings.storage.Path, "write_text", full)
    position = panel.position
    rate(panel)
    assert panel.message.value == "没有存上。 Not saved: no space left on device"
    assert panel.position == position and panel.progress.value == 1
    assert saved(tmp_path)[0].read_bytes() == before


def test_a_file_that_cannot_be_read_is_named_and_not_written_over(tmp_path) -> None:
    panel, _, _ = opened(tmp_path)
    rate(panel)
    [file] = saved(tmp_path)
    broken = file.read_text(encoding="utf-8").replace("60.0", "600")
    file.write_text(broken, encoding="utf-8")
    again, _, _ = opened(tmp_path)
    rate(again)
    assert "scores go from 0 to 100" in again.message.value and file.read_text(encoding="utf-8") == broken
    again.rater.value = "p-2"
    rate(again)
    assert len(saved(tmp_path)) == 2


def test_the_panel_gives_no_strategy_away(tmp_path) -> None:
    panel, key, _ = opened(tmp_path)
    states = str(
        [widget.get_state() for widget in (panel.widget, *panel.sliders.values(), *panel.pictures.children)]
    )
    assert not any(row.strategy in states or row.dialogue_id in states for row in key)
