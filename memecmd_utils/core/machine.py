"""Name of the variable with which a headless run says where its status line goes."""

STATUS_VARIABLE = "MEMECMD_STATUS"
"""Names the file in which a headless run's kernel writes one line on how far it is."""
