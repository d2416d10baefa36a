"""The command line of Simile: `simile COMMAND`. Start reading at `__main__.main`.

    simile NAME ─▶ commands.COMMANDS ─▶ service, models or training, imported only then

`python -m service`, `python -m models` and `python -m training` run the same commands without this package.
"""
