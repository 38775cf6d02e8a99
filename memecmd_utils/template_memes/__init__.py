"""The second paper (2501.13851), notebooks 07 and 08: CM50, its annotation with knowledge, and mtrCLIP.

Listed is what the notebooks use; what one appendix alone needs stands in that appendix. The room knows
nothing of the first paper's stages.
"""

from memecmd_utils.template_memes.data_sets import (
    FIGMEMES_LABELS,
    NOT_COMPUTED,
    TITLES,
    DataSetError,
    is_readable,
    load_data,
    picture_folder,
    pictures_below,
    read_memecap,
)
from memecmd_utils.template_memes.prompts import paper_rows, prompt, to_figmemes, word
from memecmd_utils.template_memes.readings import TEXT_ONLY, draw, read_memes, sees
from memecmd_utils.template_memes.recall import Preprocess, as_files, rank_all
