"""Files that people have, read as documents. The command `import` and the route `/files` use the same reader.

Start reading at `reader.FileReader`: bytes in, rows out. It detects encoding and separator (`detection`),
splits the text into lines (`lines`) and records (`records`), and makes documents of them (`columns`,
`conversion`). `preview` shows how a file would read.
"""
