"""The dataset as a folder that others can load, with a card and a manifest, and its check."""

from memecmd_utils.release.write import write_template_release

__all__ = ["write_template_release"]
