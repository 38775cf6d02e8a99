"""Notebook 05b: studies of what the paper leaves open, each with its tables and a sentence."""

from memecmd_utils.studies.ablation import ablation_sentence, fit_weights, leave_one_out, weights_sentence
from memecmd_utils.studies.collected import Collected
from memecmd_utils.studies.figures import ablation_figure, choice_figure, hubs_figure, specification_figure
from memecmd_utils.studies.hubness import hubness_sentence, hubness_study
from memecmd_utils.studies.selection import (
    choice_sentence,
    choice_tables,
    shape_sentence,
    shape_tables,
    threshold_sentence,
    threshold_tables,
)
from memecmd_utils.studies.specification_curve import (
    influential_choices,
    shares_by_choice,
    shares_by_claim,
    shares_by_measure,
    specification_sentence,
    specifications,
)
from memecmd_utils.studies.summary_sources import (
    compare_sources,
    sources_sentence,
    summarise_with_small_model,
)

__all__ = [
    "Collected",
    "ablation_figure",
    "ablation_sentence",
    "choice_figure",
    "choice_sentence",
    "choice_tables",
    "compare_sources",
    "fit_weights",
    "hubness_sentence",
    "hubness_study",
    "hubs_figure",
    "influential_choices",
    "leave_one_out",
    "shape_sentence",
    "shape_tables",
    "shares_by_choice",
    "shares_by_claim",
    "shares_by_measure",
    "sources_sentence",
    "specification_figure",
    "specification_sentence",
    "specifications",
    "summarise_with_small_model",
    "threshold_sentence",
    "threshold_tables",
    "weights_sentence",
]
