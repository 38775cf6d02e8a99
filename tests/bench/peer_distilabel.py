"""Run by the interpreter that MEMECMD_PEER_PYTHON names: single generations with distilabel.

`peer_distilabel.py URL PROMPTS AT_ONCE` sends every prompt once and prints one line of JSON at the end. The
time is that of `run`, without imports.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path


def main(url: str, prompts: str, at_once: int) -> dict[str, object]:
    from distilabel.models import OpenAILLM
    from distilabel.pipeline import Pipeline
    from distilabel.steps import LoadDataFromDicts
    from distilabel.steps.tasks import TextGeneration

    messages = json.loads(Path(prompts).read_text(encoding="utf-8"))
    # One text each: the task takes an instruction. The worked examples stand in it as they are.
    rows = [{"instruction": "\n".join(m["content"] for m in one)} for one in messages]
    model = OpenAILLM(
        model="simulated",
        base_url=url,
        api_key="simulated",
        generation_kwargs={"max_new_tokens": 60, "temperature": 0.9},
    )
    with Pipeline(name="peer") as pipeline:
        load = LoadDataFromDicts(data=rows, batch_size=at_once)
        load >> TextGeneration(llm=model, input_batch_size=at_once)
    begun = time.monotonic()
    made = pipeline.run(use_cache=False)
    seconds = time.monotonic() - begun
    texts = [row["generation"] for row in made["default"]["train"]]
    return {
        "name": "distilabel",
        "version": version("distilabel"),
        "seconds": seconds,
        "generations": sum(bool(text) for text in texts),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
