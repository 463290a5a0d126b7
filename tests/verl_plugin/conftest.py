"""verl chooses its platform when it is imported, so the choice must be in the environment before any test module is."""

import os

os.environ["VERL_PLATFORM"] = "cpu"
os.environ["VERL_USE_EXTERNAL_MODULES"] = "boostapr.verl_plugin.platform_cpu"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
