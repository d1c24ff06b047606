"""What other verbs wrote, to look at: one self-contained page, and static figures. No weights are loaded."""
