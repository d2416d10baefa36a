"""Reads documents from files. The command `import` and the route `/files` use this package.

Start reading at `reader.FileReader`, which turns bytes into rows. `detection` finds the encoding and the
separator. `lines` splits text into lines and records. `columns` and `conversion` build documents. `preview`
shows how a file would be read.
"""
