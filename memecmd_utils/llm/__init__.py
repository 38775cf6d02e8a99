"""Language models behind one door: what is on record is read, the rest is asked within the caps, once."""

from memecmd_utils.llm import gloss
from memecmd_utils.llm.authored import load_role_pairs
from memecmd_utils.llm.chat import run
