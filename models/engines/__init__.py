"""The engines that compute a version's graph. form.py defines their interface; opening.py opens an engine."""
