"""Stage 02: what every meme means, in four dimensions (2507.00891, Eq. 1 and 2).

One annotator gives fitting scenarios S+, unfitting scenarios S-, emotion E, motivation Psi and a safety flag.
"""

from memecmd_utils.annotation.annotator import annotate, annotation_request
from memecmd_utils.annotation.keywords import count_keywords, word_clouds
from memecmd_utils.core.html import data_url

__all__ = ["annotate", "annotation_request", "count_keywords", "data_url", "word_clouds"]
