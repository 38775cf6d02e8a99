"""The rating form as a panel for JupyterLab: same items, same blindness, saved after every answer.

Pictures go through `Image` widgets: texts of users and models are drawn, never read as markup.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ipywidgets import (
    Button,
    Checkbox,
    HBox,
    Image,
    IntProgress,
    Label,
    Layout,
    SelectionSlider,
    Text,
    ToggleButtons,
    VBox,
)
from pydantic import ValidationError

from memecmd_utils import human_ratings, screenshots
from memecmd_utils.human_ratings import HumanRating
from memecmd_utils.rating_items import CHOICES, QUESTIONS, Form, Item
from memecmd_utils.schemas import DIMENSIONS

NOT_YET = "–"
"""Position of a slider that was not moved: no number that could be a hint."""
STEPS = (NOT_YET, *range(0, 101, 5))
PICTURE_WIDTH = 390


def panel(form: Form, meme_files: Mapping[str, Path], save_to: Path) -> VBox:
    """Return a widget that collects answers to `form` in CSV files of the folder `save_to`.

    It shows the first item at once; nothing is saved before a pseudonym and the consent are given.
    """
    return RatingPanel(form, meme_files, save_to).widget


class RatingPanel:
    """State and widgets of the panel. `clock` returns seconds and is replaced in tests."""

    def __init__(
        self,
        form: Form,
        meme_files: Mapping[str, Path],
        save_to: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.form, self.meme_files, self.save_to, self.clock = form, meme_files, save_to, clock
        self.answers: dict[str, HumanRating] = {}
        self.position, self.shown_at, self.fault = 0, 0.0, ""
        self.rater = Text(description="化名 Name", placeholder="not your real name", continuous_update=False)
        self.consent = Checkbox(
            description="自愿参加，同意以化名使用和公开评分 I agree that my ratings are used and published",
            indent=False,
            layout=Layout(width="auto"),
        )
        self.trial = Checkbox(description="只是试试，标为编造 Trial: mark as made up", indent=False)
        self.pictures = HBox()
        self.sliders = {name: self._slider(name) for name in DIMENSIONS}
        self.choice = ToggleButtons(
            options=[("A", "A"), ("B", "B"), ("没有差别 No difference", CHOICES[2])], value=None
        )
        self.comment = Text(description="留言 Note", placeholder="optional")
        self.back = Button(description="← 上一题 Back")
        self.skip = Button(description="跳过 Skip")
        self.next = Button(description="下一题 Next →", button_style="success")
        self.progress = IntProgress(max=len(form.items), layout=Layout(width="12em"))
        self.count, self.message = Label(), Label()
        self.rater.observe(lambda _: self._resume(), names="value")
        self.back.on_click(lambda _: self._move(-1))
        self.skip.on_click(lambda _: self._move(1))
        self.next.on_click(lambda _: self.submit())
        rated = form.kind == "rating"
        questions = (
            list(self.sliders.values()) if rated else [Label("哪个版本更好？ Which is better?"), self.choice]
        )
        self.widget = VBox(
            [
                HBox([self.rater, self.trial]),
                self.consent,
                HBox([self.progress, self.count]),
                HBox([self.pictures, VBox([*questions, self.comment])], layout=Layout(flex_flow="row wrap")),
                HBox([self.back, self.skip, self.next]),
                self.message,
            ]
        )
        self._show()

    @staticmethod
    def _slider(name: str) -> SelectionSlider:
        zh, _, english = QUESTIONS[name]
        return SelectionSlider(
            options=STEPS,
            value=NOT_YET,
            description=f"{zh} {english}",
            style={"description_width": "20em"},
            layout=Layout(width="36em", max_width="100%"),
        )

    @property
    def item(self) -> Item:
        """The item that is shown."""
        return self.form.items[self.position]

    @property
    def file(self) -> Path:
        """Where this rater's answers go; the form's download has the same name."""
        return self.save_to / f"ratings_{self.form.form}_{self.rater.value.strip()}.csv"

    def submit(self) -> None:
        """Save the answer to the item shown and go on; says what is missing instead, if anything is."""
        missing = self._missing()
        if missing:
            self.message.value = missing
            return
        rated = self.form.kind == "rating"
        before = self.answers.get(self.item.item)
        given = {name: slider.value for name, slider in self.sliders.items() if slider.value != NOT_YET}
        try:
            answer = HumanRating(
                source="made up" if self.trial.value else "human",
                form=self.form.form,
                item=self.item.item,
                rater=self.rater.value.strip(),
                kind=self.form.kind,
                choice=None if rated else self.choice.value,
                seconds=round((before.seconds if before else 0) + self.clock() - self.shown_at, 1),
                at=datetime.now(UTC),
                comment=self.comment.value.strip(),
                **(given if rated else {}),
            )
        except ValidationError:
            self.message.value = "还没答完。 Some answers are missing."
            return
        answers = {**self.answers, answer.item: answer}
        try:
            human_ratings.write_answers(self.file, answers.values())
        except OSError as error:  # raised in a callback it would be seen by nobody
            self.message.value = f"没有存上。 Not saved: {error}"
            return
        self.answers = answers
        last = self.position == len(self.form.items) - 1
        self._move(1)
        if last and self._open():
            self.message.value = f"还有 {len(self._open())} 题没答。 {len(self._open())} items are open."

    def _missing(self) -> str:
        if not self._named():
            return "化名只用文字、数字、_ 和 -。 Give a pseudonym of letters, digits, _ and -."
        if self.fault:
            return self.fault
        return "" if self.consent.value else "请先勾选同意。 Please tick that you agree."

    def _named(self) -> bool:
        # The name becomes part of a file's name: no separators, no dots.
        name = self.rater.value.strip()
        return bool(name) and all(sign.isalnum() or sign in "_-" for sign in name)

    def _resume(self) -> None:
        """Take up what this rater has saved, and go to the first open item."""
        self.answers, self.fault = {}, ""
        if self._named() and self.file.is_file():
            try:
                self.answers = {rating.item: rating for rating in human_ratings.read_answers(self.file)}
            except human_ratings.RatingsError as error:
                self.fault = str(error)  # and nothing is written over the file
            self.trial.value = any(rating.source == "made up" for rating in self.answers.values())
        self.position = self._open()[0] if self._open() else 0
        self._show()

    def _open(self) -> list[int]:
        return [i for i, item in enumerate(self.form.items) if item.item not in self.answers]

    def _move(self, step: int) -> None:
        self.position = min(max(self.position + step, 0), len(self.form.items) - 1)
        self._show()

    def _show(self) -> None:
        answer = self.answers.get(self.item.item)
        self.pictures.children = [self._picture(number) for number in range(len(self.item.memes))]
        for name, slider in self.sliders.items():
            given = getattr(answer, name, None)
            # A form's file may hold a value between two steps.
            slider.value = NOT_YET if given is None else 5 * round(given / 5)
        self.choice.value = answer.choice if answer else None
        self.comment.value = answer.comment if answer else ""
        self.progress.value = len(self.answers)
        self.count.value = f"{self.position + 1} / {len(self.form.items)}"
        self.back.disabled = self.position == 0
        self.skip.disabled = self.position == len(self.form.items) - 1
        if self.fault:
            self.message.value = self.fault
            return
        self.message.value = "" if self._open() else f"谢谢！ All answers are saved in {self.file.name}."
        self.shown_at = self.clock()

    def _picture(self, number: int) -> Image:
        meme = self.item.memes[number]
        bubbles = tuple(
            screenshots.Bubble(
                side=line.side, name=line.name, text=line.text, meme_id="" if line.text else meme
            )
            for line in self.item.lines
        )
        names = [bubble.name for bubble in bubbles if bubble.side == "left"]
        title = "AB"[number] if len(self.item.memes) > 1 else "".join(names[:1])
        spec = screenshots.ChatSpec(title=title, bubbles=bubbles)
        png = screenshots.encode(screenshots.draw(spec, self.meme_files))
        return Image(value=png, format="png", width=PICTURE_WIDTH)
