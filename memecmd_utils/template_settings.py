"""Settings of `make templates`: the rule that makes CM50, its annotation, matching and the tuning of CLIP."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from memecmd_utils.settings import Setting, each_once

Beta = Annotated[float, Field(ge=0, lt=1)]


class TemplateRule(Setting):
    """Which ImgFlip575K records enter CM50 (2501.13851, Section 3.1 names the steps, not the thresholds).

    The thresholds are those that the published validation set supports: see `template_evidence`.
    """

    min_text_chars: int = Field(1, ge=0)
    """Characters of all captions together, without surrounding blanks."""
    min_text_words: int = Field(0, ge=0)
    min_votes: int = Field(6, ge=0)
    min_views: int = Field(0, ge=0)
    title_differs: Literal["exact", "case", "letters", "names", "start", "ignored"] = "exact"
    """From what: the template's file name with blanks for hyphens, letter for letter (exact), without case
    (case), in letters and digits only (letters), the same and from all its names (names), or the title does
    not even begin with the file name (start)."""
    titles_unique_in: Literal["nothing", "template", "all"] = "nothing"
    """Of memes with the same title, only the first in the source is kept."""
    min_memes: int = Field(150, ge=1)
    """Memes that a template must keep."""
    n_templates: int = Field(50, ge=1)
    """Templates with most memes that are kept."""
    validation_share: float = Field(1350 / 33173, gt=0, lt=1)
    split: Literal["drawn", "source_order"] = "drawn"
    """drawn: validation memes are drawn by seed within each template; source_order: the last 4 % of each
    template in the order of the source, as the published validation set is."""


class TemplateAnnotation(Setting):
    """How template memes are annotated (2501.13851, Section 3 and Appendix A)."""

    prompt: str = "gpt4o"
    """Name of the captioning prompt: see `template_prompts`. Empty: only literary devices are asked for."""
    devices_prompt: str = "three_step_12"
    """Name of the literary-device prompt. Empty: the devices are those that the captioning prompt gives."""
    context: bool = True
    """Whether the template's "about" text is given."""
    labels: Literal["paper", "code"] = "paper"
    """What `antithesis` counts as, which Table 12 names twice: None, or contrast as the paper's code does."""
    sample: int | None = Field(200, ge=1)
    """Memes to annotate, drawn by seed and template, by a model that sees among those with a picture; None:
    all, which costs what `make templates` says."""
    evaluate: list[str] = Field([])
    """Prompts that are asked about memes of MemeCap and FigMemes, to fill Tables 9 to 11."""
    max_tokens: int = Field(1500, ge=64)
    """Longest reply; the paper's code allows 4000."""
    temperature: float | None = Field(None, ge=0)
    """None: the endpoint's own, as in the paper's code."""


class TemplateMatching(Setting):
    """How instances of templates are found (2501.13851, Section 3.3.1)."""

    thresholds: Literal["code", "paper"] = "code"
    """code: distance 30, cosine 0.1, LPIPS 0.29 at 64 pixels (with the cosine 0.3); paper: 30, 1 and 1."""
    clip: str = "openai/clip-vit-large-patch14-336"
    """Name or folder of the CLIP that embeds images and texts; the limits belong to ViT-L/14."""
    lpips: str | None = None
    """File of AlexNet weights for LPIPS; None: downloaded by torchvision."""
    lpips_scale: Literal["code", "lpips"] = "code"
    """Values given to LPIPS: 0 to 1, as the paper's code does, or -1 to 1, which LPIPS was trained on."""
    confirmed: str | None = None
    """CSV that the confirmation sheet of MemeCap saved; None: nobody looked yet."""
    confirmed_figmemes: str | None = None
    """The same of FigMemes' sheet."""


class MemeRetrieval(Setting):
    """Fine-tuning and measuring CLIP for meme-text retrieval (2501.13851, Section 4)."""

    images: str | None = None
    """Folder of meme images; None: where `make templates` fetches them to."""
    fetch: int = Field(0, ge=0)
    """Images that a run fetches at most, one a second."""
    tune: bool = False
    """Whether CLIP is fine-tuned: a GPU for hours at full size."""
    model: str = "openai/clip-vit-large-patch14-336"
    baselines: list[str] = Field(
        ["kakaobrain/align-base", "openai/clip-vit-base-patch32", "openai/clip-vit-large-patch14-336"]
    )
    """Models of Table 2, by hub name or folder."""
    text: Literal["meme_caption", "image_caption", "embedded_text", "title"] = "meme_caption"
    batch_size: int = Field(2048, ge=2)
    """Pairs that stand against each other in the loss."""
    mini_batch_size: int = Field(8, ge=1)
    """Pairs that are in memory at a time: 8 take about 14 GB with ViT-L/14 at 336 pixels, 32 about 32 GB."""
    mask_same_template: bool = False
    """Memes of one template in a batch are no negatives of each other."""
    mask_same_text: bool = False
    """Pairs with the same text in a batch are no negatives of each other."""
    augment: bool = True
    """Training images are cut at random to 80-100 % of their area, as in the paper's code."""
    checkpoint_steps: int = Field(5, ge=1)
    """Steps between two states to resume from, beside the one after each epoch: 5 GB each with ViT-L/14."""
    workers: int = Field(0, ge=0)
    """Processes that decode images ahead; each holds a whole batch of pixels."""
    epochs: int = Field(20, ge=1)
    warmup_epochs: float = Field(1.0, ge=0)
    learning_rate: float = Field(1e-5, gt=0)
    edge_learning_rate: float = Field(1e-6, gt=0)
    """Where the cosine schedule starts and ends."""
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    epsilon: float = Field(1e-8, gt=0)
    selection: Literal["validation", "paper"] = "validation"
    """Which R@1 picks the epoch: the validation set's, or the test set's as the paper's code does."""
    trials: int = Field(0, ge=0)
    """Trials of a hyperparameter search before the tuning (the `search` extra); the paper's code makes 15."""

    @field_validator("baselines")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        return list(each_once(value))

    @model_validator(mode="after")
    def _a_schedule(self) -> "MemeRetrieval":
        if self.warmup_epochs > self.epochs:
            raise ValueError(f"warmup_epochs {self.warmup_epochs:g} must not exceed epochs {self.epochs}")
        if self.edge_learning_rate > self.learning_rate:
            raise ValueError(
                f"edge_learning_rate {self.edge_learning_rate:g}, where the schedule starts and ends, must "
                f"not exceed learning_rate {self.learning_rate:g}, its peak"
            )
        return self


class AnnotationMetrics(Setting):
    """Weights of the metrics of Table 10 (2501.13851)."""

    bertscore: str | None = None
    """Encoder of BERTScore by hub name or folder, `roberta-large` in the paper; None: not computed."""
    bertscore_layer: int | None = Field(None, ge=1)
    """Layer that is compared; None: what bert-score tuned for the model."""
    bleurt: str | None = None
    """BLEURT-20 checkpoint by hub name or folder; None: not computed."""
