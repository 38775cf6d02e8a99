"""Fine-tuning CLIP on pairs of meme and text, with a batch far larger than the memory holds (2501.13851, 4).

The trainer and the loss are those of sentence-transformers: the towers see a mini-batch at a time (GradCache,
Gao et al. 2021, arXiv 2101.06983), the loss sees all pairs of the batch. Added are CLIP's learned temperature
and the paper's schedule. A tuning that was killed goes on from its last epoch.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import fetch, files, pictures
from memecmd_utils.embedders import ModelReference, loading
from memecmd_utils.settings import MtrclipSettings

LOG_SCALE_RANGE = (0.0, 4.6052)
"""Bounds of `logit_scale`: a temperature between 1 and 0.01, as in the paper's code."""
CROP_SHARE = (0.8, 1.0)  # share of the area that a random cut keeps, as in the paper's code
SETS = {"validation": "validation", "paper": "test"}
"""What a selection measures: the paper's code picks the epoch by the test set."""
TOKENS = {"clip": 77, "chinese_clip": 52}
"""Kinds that can be tuned, and the longest text that their makers trained on. ALIGN is none: its image tower
has batch norms, which in mini-batches see other numbers than in the batch."""
AT_ONCE = 64  # pictures that are decoded at a time


class Pair(NamedTuple):
    """An image and what is said of it."""

    image: Path
    text: str


class Tuned(NamedTuple):
    """A finished tuning: a row an epoch (0 is the model before), the best one, and where its weights are."""

    history: pd.DataFrame
    epoch: int
    folder: Path


def learning_rates(settings: MtrclipSettings, steps_per_epoch: int) -> np.ndarray:
    """Learning rate of every step of a tuning: linear from the edge to the peak, a cosine back to the edge.

    Source: Section 4 and the code of 2501.13851: 1e-6, 1e-5, 1e-6.
    """
    edge, peak = settings.edge_learning_rate, settings.learning_rate
    steps, warmup = np.arange(settings.epochs * steps_per_epoch), settings.warmup_epochs * steps_per_epoch
    fall = np.clip((steps - warmup) / max(len(steps) - 1 - warmup, 1e-9), 0, 1)
    share = np.where(steps < warmup, steps / max(warmup, 1e-9), (1 + np.cos(np.pi * fall)) / 2)
    return edge + (peak - edge) * share


def load_model(name: str) -> Any:
    """A CLIP or Chinese-CLIP by hub name, `name@COMMIT` or folder, in float32, for sentence-transformers."""
    reference = ModelReference(name, ())
    options = {"revision": reference.commit(), "local_files_only": not fetch.may_fetch()}
    with loading(f"{reference.label} for a tuning"):
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()  # a tuning reads and writes weights after every epoch
        model = SentenceTransformer(reference.source, model_kwargs={"dtype": torch.float32}, **options)
        kind = model[0].auto_model.config.model_type
        if kind not in TOKENS:
            raise ValueError(f"its kind is {kind}, but must be one of {', '.join(TOKENS)}")
    model.max_seq_length = min(model.max_seq_length, TOKENS[kind])
    return model


def log_scale(model: Any) -> Any:
    """The parameter `logit_scale` of a CLIP: log of 1 / temperature."""
    return next(p for name, p in model.named_parameters() if name.endswith("logit_scale"))


def contrastive_loss(model: Any, mini_batch_size: int) -> Any:
    """Mean of the image-to-text and text-to-image cross-entropies over all pairs of a batch, GradCache."""
    import torch
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.util import cos_sim

    def cosines(a: Any, b: Any) -> Any:
        with torch.autocast(a.device.type, enabled=False):  # a hundred times a bfloat16 would be too coarse
            return cos_sim(a.float(), b.float())

    class LearnedScale(CachedMultipleNegativesRankingLoss):
        @property
        def scale(self) -> Any:  # read anew in each product, so the gradient reaches the parameter
            return log_scale(model).exp()

    return LearnedScale(
        model,
        similarity_fct=cosines,
        mini_batch_size=mini_batch_size,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )


def recall_at_1(similar: np.ndarray) -> float:
    """Share of rows whose own column is above all others, as the paper's code counts; a tie is a miss."""
    others = similar.copy()
    np.fill_diagonal(others, -np.inf)
    return float((similar.diagonal() > others.max(axis=1)).mean())


def measure(model: Any, sets: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    """R@1 of each set, in 0 to 1, the mean of both directions, and the log of the scale."""
    found = {"log_scale": float(log_scale(model).detach())}
    options = {"normalize_embeddings": True, "show_progress_bar": False}
    for name, pairs in sets.items():
        parts = [pairs[start : start + AT_ONCE] for start in range(0, len(pairs), AT_ONCE)]
        rows = [model.encode([pictures.decode(pair.image) for pair in part], **options) for part in parts]
        similar = model.encode([pair.text for pair in pairs], **options) @ np.concatenate(rows).T
        found[f"{name}_R@1"] = (recall_at_1(similar) + recall_at_1(similar.T)) / 2
    return found


def make_trainer(
    model: Any, pairs: Sequence[Pair], sets: Mapping[str, Sequence[Pair]], settings: MtrclipSettings,
    folder: Path, seed: int,
) -> Any:  # fmt: skip
    """sentence-transformers' trainer of `pairs`; its checkpoints, one an epoch, go to `folder`."""
    with loading("the trainer of sentence-transformers"):
        import datasets
        import torch
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.base.evaluation import BaseEvaluator
        from torchvision.transforms import InterpolationMode, RandomResizedCrop
        from tqdm.auto import tqdm
        from transformers import PrinterCallback, TrainerCallback
    side = model[0].auto_model.config.vision_config.image_size
    cut = RandomResizedCrop(side, scale=CROP_SHARE, interpolation=InterpolationMode.BICUBIC)
    batch = min(settings.batch_size, len(pairs))
    rates = learning_rates(settings, len(pairs) // batch)

    def decoded(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
        found = [pictures.decode(Path(file)) for file in rows["image"]]
        return {**rows, "image": list(map(cut, found)) if settings.augment else found}

    class Evaluator(BaseEvaluator):
        def __call__(self, model: Any, *_: Any, **__: Any) -> dict[str, float]:
            return measure(model, sets)

    class Steps(TrainerCallback):
        bar = tqdm(total=len(rates), desc="tuning", unit="step")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            log_scale(model).data.clamp_(*LOG_SCALE_RANGE)
            self.bar.update(state.global_step - self.bar.n)

    class Trainer(SentenceTransformerTrainer):
        def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
            """None: a card would quote pairs and name files of this machine."""

    many, few = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    # As in the paper's code biases, norms and the temperature do not decay.
    groups = [{"params": many, "weight_decay": settings.weight_decay}, {"params": few, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, settings.learning_rate, settings.betas, settings.epsilon)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: float(rates[min(step, len(rates) - 1)]) / settings.learning_rate
    )
    cuda = torch.cuda.is_available()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        num_train_epochs=settings.epochs,
        max_grad_norm=0.0,
        seed=seed,
        use_cpu=not cuda,
        bf16=cuda and torch.cuda.is_bf16_supported(),
        dataloader_drop_last=True,
        dataloader_num_workers=settings.workers,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{SETS[settings.selection]}_R@1",
        greater_is_better=True,
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
    )
    columns = {"image": [str(pair.image) for pair in pairs], "text": [pair.text for pair in pairs]}
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(columns).with_transform(decoded),
        loss=contrastive_loss(model, settings.mini_batch_size),
        evaluator=Evaluator(),
        callbacks=[Steps()],
        optimizers=(optimizer, schedule),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def tune(
    pairs: Sequence[Pair],
    sets: Mapping[str, Sequence[Pair]],
    settings: MtrclipSettings,
    folder: Path,
    seed: int,
) -> Tuned:
    """Fine-tune `settings.model` on `pairs`; the best epoch's weights go to `folder/weights`.

    `sets` are measured after each epoch: `validation` and, where it is there, `test`. A tuning that is
    finished is read, one that was broken off goes on from its last epoch.
    """
    if not (folder / "history.csv").is_file():
        model, states = load_model(settings.model), folder / "checkpoints"
        rows = [{"epoch": 0, "loss": float("nan")} | measure(model, sets)]
        trainer = make_trainer(model, pairs, sets, settings, states, seed)
        # The state is what a checkpoint ends with: killed before that, it is passed over.
        found = (p for p in states.glob("checkpoint-*/trainer_state.json") if p.read_text().endswith("}\n"))
        whole = sorted(found, key=lambda path: path.stat().st_mtime)
        trainer.train(resume_from_checkpoint=str(whole[-1].parent) if whole else None)
        log = trainer.state.log_history
        losses = [entry["loss"] for entry in log if "loss" in entry]
        measured = [entry for entry in log if "eval_log_scale" in entry]
        for epoch, (loss, found) in enumerate(zip(losses, measured, strict=True), start=1):
            rows.append({"epoch": epoch, "loss": loss} | {k: found[f"eval_{k}"] for k in list(rows[0])[2:]})
        model[0].auto_model.save_pretrained(folder / "weights")
        model[0].processor.save_pretrained(folder / "weights")
        files.write_text(folder / "history.csv", pd.DataFrame(rows).to_csv(index=False))
        shutil.rmtree(states)
    history = pd.read_csv(folder / "history.csv")
    best = int(history[f"{SETS[settings.selection]}_R@1"].iloc[1:].idxmax())
    return Tuned(history, best, folder / "weights")
