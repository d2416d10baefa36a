"""Work on a team's text before training: hard negatives, mined pairs, near-duplicates, a report."""
