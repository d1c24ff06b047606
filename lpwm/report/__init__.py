"""What was found, to look at: one self-contained page, and the same as static figures.

`page.write` needs only dictionaries; `gather.gather` reads them from run folders.
"""
