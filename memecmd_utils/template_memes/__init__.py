"""The second paper (2501.13851), notebooks 07 and 08: CM50, its annotation with knowledge, and mtrCLIP.

Listed is what the notebooks use; what one appendix alone needs stands in that appendix. The room knows
nothing of the first paper's stages.
"""

from memecmd_utils.template_memes.data_sets import (
    COLUMNS,
    FIGMEMES_LABELS,
    NOT_COMPUTED,
    DataSetError,
    is_readable,
    picture_folder,
    pictures_below,
    read_cm50,
    read_figmemes,
    read_labels,
    read_memecap,
    read_records,
)
from memecmd_utils.template_memes.prompts import FORMS, message, word
from memecmd_utils.template_memes.recall import Preprocess, as_files, rank_all
