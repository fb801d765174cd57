"""Property tests draw the same examples on every run, and no machine is too slow for them."""

from hypothesis import settings

settings.register_profile("polykv", derandomize=True, deadline=None)
settings.load_profile("polykv")
