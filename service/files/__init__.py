"""Reads documents from files, for the command `import` and the route `/files`.

Start reading at `reader.FileReader`, which turns bytes into rows. It detects encoding and separator
(`detection`), splits the text into lines and records (`lines`), and builds documents (`columns`,
`conversion`). `preview` shows how a file will be read.
"""
