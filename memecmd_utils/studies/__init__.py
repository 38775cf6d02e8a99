"""Notebook 05b: studies of what the paper leaves open, each with its tables."""

from memecmd_utils.studies.specification_curve import leave_one_out, shares, specifications
