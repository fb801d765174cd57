"""The flows: stages and their order, the only place that knows Prefect."""
