"""The second paper (2501.13851), notebooks 07 and 08: CM50, its annotation with knowledge, and mtrCLIP.

It knows nothing of the first paper's stages.
"""

from memecmd_utils.fetch import source_table
from memecmd_utils.llm.spending import estimate_text
from memecmd_utils.template_memes.annotation import (
    estimate_readings,
    evaluate_prompts,
    read_memes,
    reading_counts,
)
from memecmd_utils.template_memes.data_sets import (
    TITLES,
    fetch_pictures,
    load_data,
    picture_folder,
    pictures_below,
    write_memes,
)
from memecmd_utils.template_memes.filter import (
    filter_records,
    rule_edges,
    rule_evidence,
    write_templates,
)
from memecmd_utils.template_memes.lesson import derived_counts, draw_template, made_up_records
from memecmd_utils.template_memes.matching import (
    kept_pairs,
    match_counts,
    match_data_set,
)
from memecmd_utils.template_memes.metrics import all_metrics
from memecmd_utils.template_memes.prompts import prompt_table
from memecmd_utils.template_memes.recall import (
    cm50_items,
    measure,
    memecap_items,
    models_of,
    paper_table,
    printed_table,
    rank_all,
    tune,
)
from memecmd_utils.template_memes.tables import (
    quality_tables,
    text_lengths,
    votes,
)
from memecmd_utils.template_memes.tuning import learning_rates
