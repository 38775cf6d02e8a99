"""Notebook 08, the second paper (2501.13851): meme-text retrieval by CLIP, measured and tuned."""

from memecmd_utils.mtrclip.models import (
    all_recalls,
    cm50_items,
    measure_models,
    memecap_items,
    model_rows,
    other_models,
    tune,
    tuning_changes,
)
from memecmd_utils.mtrclip.recall import RetrievalItem, gallery, rank_all
from memecmd_utils.mtrclip.tables import (
    history_figure,
    learning_rates,
    printed_table,
    recall_figure,
    schedule_figure,
    table_2,
    table_3,
    table_4,
)
from memecmd_utils.recordings import normalise

__all__ = [
    "RetrievalItem",
    "all_recalls",
    "cm50_items",
    "gallery",
    "history_figure",
    "learning_rates",
    "measure_models",
    "memecap_items",
    "model_rows",
    "normalise",
    "other_models",
    "printed_table",
    "rank_all",
    "recall_figure",
    "schedule_figure",
    "table_2",
    "table_3",
    "table_4",
    "tune",
    "tuning_changes",
]
