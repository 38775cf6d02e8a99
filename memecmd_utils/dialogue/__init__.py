"""Stage 03: dialogues of two agents, started from news or from role pairs (2507.00891, Eq. 3 to 17).

Two agents take turns under prompts of four phases and rules that are checked; a third sums up every turn.
"""

from memecmd_utils.dialogue.cluster import prepare
from memecmd_utils.dialogue.cold_start import from_news, plan, role_cold_starts
from memecmd_utils.dialogue.generation import generate, phase_of, speaker_of, utterance_request
from memecmd_utils.dialogue.news import load_news
from memecmd_utils.dialogue.rules import violations

__all__ = [
    "from_news",
    "generate",
    "load_news",
    "phase_of",
    "plan",
    "prepare",
    "role_cold_starts",
    "speaker_of",
    "utterance_request",
    "violations",
]
