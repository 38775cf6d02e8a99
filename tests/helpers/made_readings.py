"""What a made-up annotator replies to the two prompts of template memes that are asked by default."""

FIVE = {
    "explanation": "A long wait.",
    "visual elaboration": "A heron stands at a bus stop.",
    "detected text": "text, below",
    "meaning of the meme": "The poster waits for too long.",
    "literary device": "hyperbole",
    "emotion word": "sadness",
}
STEPS = {
    "multiple choice": ["irony", "contrast"],
    "extraction of answer": ["irony", "contrast"],
    "choice by choice comparison": [
        {"label": "irony", "why": "it is meant otherwise", "explains": "yes"},
        {"label": "contrast", "why": "nothing is set side by side", "explains": "no"},
    ],
    "literary device": ["irony"],
}
