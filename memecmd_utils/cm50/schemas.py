"""Records of CM50: template memes and what is said of them (2501.13851, Section 3)."""

from typing import Literal

from pydantic import Field

from memecmd_utils.schemas import Record, Text

Split = Literal["train", "validation"]


class TemplateMeme(Record):
    """One meme of a template, as ImgFlip575K records it; who made it is not kept."""

    meme_id: Text
    """Imgflip's id: the base name of the image's address."""
    template: Text
    """Name as in ImgFlip575K, for example `10-Guy`."""
    url: Text
    post: str = ""
    title: str = ""
    views: int = Field(0, ge=0)
    votes: int = Field(0)
    captions: list[str] = Field([])
    """Texts of the boxes, top to bottom as in the source."""
    split: Split | None = None

    @property
    def text(self) -> str:
        """All captions that are not blank, one a line: the embedded text of the record."""
        return "\n".join(stripped for caption in self.captions if (stripped := caption.strip()))


class MemeReading(Record):
    """What an annotator says of a template meme (Table 5): captions, devices, emotion."""

    meme_id: Text
    template: str = ""
    image_caption: str = ""
    """"Visual elaboration" of the prompts."""
    embedded_text: str = ""
    """"Detected text"."""
    meme_caption: str = ""
    """"Meaning of the meme"."""
    literary_devices: list[str] = Field([])
    emotion: str = ""
    prompt: str = ""
    """Name of the prompt file; empty where it is not known."""
    context: bool | None = None
    """Whether the template's "about" text was given; None: not known."""
    unscored: str = ""
    """Why there is no annotation; then the texts are empty."""


class TemplateInfo(Record):
    """A template: its names, what it means, and its blank picture."""

    template: Text
    title: str = ""
    names: list[str] = Field([])
    """Other names."""
    about: str = ""
    """What the template means: the context of knowledge-grounded annotation."""
    url: str = ""
    """Address of the blank picture."""
    picture: str = ""
    """File of the blank picture below the folder it was read from; empty where there is none."""
