"""Notebook 07, the second paper (2501.13851): template memes and their annotation with knowledge.

It knows nothing of the first paper's stages.
"""

from memecmd_utils.cm50.annotation import (
    estimate_readings,
    evaluate_prompts,
    read_memes,
    reading_counts,
    sampled_memes,
    shows_pictures,
)
from memecmd_utils.cm50.data import load_data, note_sources, write_memes
from memecmd_utils.cm50.filter import (
    filter_records,
    rule_edges,
    rule_evidence,
    sample_agreement,
    sizes_figure,
    validation_places,
    write_templates,
)
from memecmd_utils.cm50.lesson import derived_counts, draw_template, made_up_records
from memecmd_utils.cm50.matching import confirmed_matches, match_counts, match_data_set, write_match_sheet
from memecmd_utils.cm50.metrics import all_metrics
from memecmd_utils.cm50.pictures import fetch_pictures, local_pictures, picture_folder
from memecmd_utils.cm50.prompts import prompt_table
from memecmd_utils.cm50.references import TITLES
from memecmd_utils.cm50.survey import paper_votes, vote_totals, write_survey
from memecmd_utils.cm50.tables import (
    clip_counter,
    embedded_text_pairs,
    embedded_text_table,
    quality_tables,
    table_notes,
    text_lengths,
    text_lengths_figure,
)
from memecmd_utils.core.fetch.datasets import may_fetch, source_states, source_table
from memecmd_utils.llm.budget import estimate_text

__all__ = [
    "TITLES",
    "all_metrics",
    "clip_counter",
    "confirmed_matches",
    "derived_counts",
    "draw_template",
    "embedded_text_pairs",
    "embedded_text_table",
    "estimate_readings",
    "estimate_text",
    "evaluate_prompts",
    "fetch_pictures",
    "filter_records",
    "load_data",
    "local_pictures",
    "made_up_records",
    "match_counts",
    "match_data_set",
    "may_fetch",
    "note_sources",
    "paper_votes",
    "picture_folder",
    "prompt_table",
    "quality_tables",
    "read_memes",
    "reading_counts",
    "rule_edges",
    "rule_evidence",
    "sample_agreement",
    "sampled_memes",
    "shows_pictures",
    "sizes_figure",
    "source_states",
    "source_table",
    "table_notes",
    "text_lengths",
    "text_lengths_figure",
    "validation_places",
    "vote_totals",
    "write_match_sheet",
    "write_memes",
    "write_survey",
    "write_templates",
]
