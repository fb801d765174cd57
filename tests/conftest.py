"""Property tests draw the same examples on every run, and no machine is too slow for them."""

from hypothesis import HealthCheck, settings

settings.register_profile("polykv", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("polykv")
