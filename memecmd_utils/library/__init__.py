"""Stage 01: from folders of images to one clean meme library.

Candidates of all sources are decoded safely, read by OCR and freed of duplicates; a funnel says where every
image went.
"""

from memecmd_utils.library.build import build_library
from memecmd_utils.library.curation import check_ocr_on_sample, closest_pictures
from memecmd_utils.library.duplicates import near_duplicate_groups, phash
from memecmd_utils.library.examples import ExampleMeme, example_memes
from memecmd_utils.library.ocr import RapidOcr
from memecmd_utils.library.sources import find_candidates
from memecmd_utils.library.text_similarity import alike, normalise_text, similarity
from memecmd_utils.pictures import ImageRejected, decode, decode_bytes

__all__ = [
    "ExampleMeme",
    "ImageRejected",
    "RapidOcr",
    "alike",
    "build_library",
    "check_ocr_on_sample",
    "closest_pictures",
    "decode",
    "decode_bytes",
    "example_memes",
    "find_candidates",
    "near_duplicate_groups",
    "normalise_text",
    "phash",
    "similarity",
]
