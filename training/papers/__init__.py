"""Recipes and blocks that reproduce published methods. The retraining of a service uses none of them.

    recipes/                the recipes, one TOML file per method; the first line names the paper
    schema.json             JSON Schema of the blocks that recipes may name
    blocks.py               start here: registers the blocks when a recipe names one of them,
                            and rejects those that do not work together
    crops.py spans.py       sources that cut documents
    objectives.py           objectives
    postprocess.py flow.py  post-processors, which change vectors after training or without training
    word_vectors.py         the command `simile training word-vectors`

`simile train RECIPE` finds these recipes by name, like the recipes in training/recipes. Many of
the recipes need only blocks of training/methods. Only the command line and `load_recipe` import this package.
"""
