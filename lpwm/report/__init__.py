"""What other verbs wrote, to look at: one self-contained page, and static figures. No weights are loaded.

`gather` reads the files; `page.write` and `figures.write` take what it gathered.
"""
