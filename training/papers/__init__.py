"""Recipes and blocks that reproduce published methods. The retraining of a service uses none of them.

    recipes/                the recipes, one TOML file per method; the first line names its paper
    schema.json             which blocks the recipes may name, and their numbers
    blocks.py               start here: registers the blocks when a recipe names one of them,
                            and rejects those that do not work together
    crops.py spans.py       sources that cut documents
    objectives.py           objectives
    postprocess.py flow.py  changes of the vectors after training, or instead of it
    word_vectors.py         the command `python -m training word-vectors`

`python -m training train RECIPE` finds these recipes by their names, like those in training/recipes. Many of
them need only the blocks in training/methods. Apart from the command line, no other package imports this one.
"""
